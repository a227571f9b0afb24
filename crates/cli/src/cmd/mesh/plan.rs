//! Plan of a mesh: endpoints, their processes, pairs, and steps of pairs that run at once.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How the endpoints of a node are divided among processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// One process for all endpoints of a node.
    One,
    /// A process for each endpoint.
    PerGpu,
}

/// Which pairs run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// One pair after the other, each with the network to itself.
    Pairwise,
    /// In each step every endpoint sends to one other and receives from one other.
    Rotation,
    /// All pairs at once.
    All,
}

/// All endpoints: each has memory on a node, and sends to all endpoints of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grid {
    pub(crate) nodes: usize,
    /// Endpoints of each node.
    pub(crate) endpoints: usize,
    pub(crate) layout: Layout,
}

/// An endpoint, and an endpoint on another node that it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Layout {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::PerGpu => "per-gpu",
        }
    }
}

impl Pattern {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pairwise => "pairwise",
            Self::Rotation => "rotation",
            Self::All => "all",
        }
    }
}

impl Grid {
    /// Endpoints of all nodes.
    pub(crate) fn total(&self) -> usize {
        self.nodes * self.endpoints
    }

    pub(crate) fn node_of(&self, endpoint: usize) -> usize {
        endpoint / self.endpoints
    }

    /// Processes of all nodes.
    pub(crate) fn workers(&self) -> usize {
        self.nodes * self.workers_per_node()
    }

    pub(crate) fn workers_per_node(&self) -> usize {
        match self.layout {
            Layout::One => 1,
            Layout::PerGpu => self.endpoints,
        }
    }

    pub(crate) fn worker_of(&self, endpoint: usize) -> usize {
        match self.layout {
            Layout::One => self.node_of(endpoint),
            Layout::PerGpu => endpoint,
        }
    }

    pub(crate) fn node_of_worker(&self, worker: usize) -> usize {
        worker / self.workers_per_node()
    }

    pub(crate) fn endpoints_of(&self, worker: usize) -> Range<usize> {
        match self.layout {
            Layout::One => worker * self.endpoints..(worker + 1) * self.endpoints,
            Layout::PerGpu => worker..worker + 1,
        }
    }

    /// Name of an endpoint in output.
    pub(crate) fn endpoint_name(&self, endpoint: usize) -> String {
        match self.endpoints {
            1 => format!("node{endpoint}"),
            several => format!("node{}:{}", endpoint / several, endpoint % several),
        }
    }

    /// Name of a worker, in the group and in messages.
    pub(crate) fn worker_name(&self, worker: usize) -> String {
        match self.layout {
            Layout::One => format!("node{worker}"),
            Layout::PerGpu => {
                format!("node{}-{}", worker / self.endpoints, worker % self.endpoints)
            }
        }
    }

    /// Every pair, by sender and then by receiver.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let ends = (0..self.total()).flat_map(|from| (0..self.total()).map(move |to| (from, to)));
        let apart = ends.filter(|(from, to)| self.node_of(*from) != self.node_of(*to));
        apart.map(|(from, to)| Pair { from, to }).collect()
    }

    /// Pairs of each step. Every pair is in one step.
    pub(crate) fn steps(&self, pattern: Pattern) -> Vec<Vec<Pair>> {
        match pattern {
            Pattern::All => vec![self.pairs()],
            Pattern::Pairwise => self.pairs().into_iter().map(|pair| vec![pair]).collect(),
            Pattern::Rotation => {
                let turns =
                    (1..self.nodes).flat_map(|by| (0..self.endpoints).map(move |e| (by, e)));
                turns.map(|(nodes, endpoints)| self.turned(nodes, endpoints)).collect()
            }
        }
    }

    /// Pairs of a step in which every endpoint sends to the one `nodes` nodes and `places` places of a node further on.
    fn turned(&self, nodes: usize, places: usize) -> Vec<Pair> {
        let to = |from: usize| {
            let node = (self.node_of(from) + nodes) % self.nodes;
            node * self.endpoints + (from % self.endpoints + places) % self.endpoints
        };
        (0..self.total()).map(|from| Pair { from, to: to(from) }).collect()
    }
}

impl Pair {
    /// Number of the pair in messages.
    pub(crate) fn id(self, grid: &Grid) -> u32 {
        // A mesh has at most some thousand endpoints.
        (self.from * grid.total() + self.to) as u32
    }

    /// Returns `None` for a number that does not belong to a pair.
    pub(crate) fn of_id(id: u32, grid: &Grid) -> Option<Self> {
        let id = id as usize;
        let pair = Self { from: id / grid.total(), to: id % grid.total() };
        let is_one = pair.from < grid.total() && grid.node_of(pair.from) != grid.node_of(pair.to);
        is_one.then_some(pair)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PATTERNS: [Pattern; 3] = [Pattern::Pairwise, Pattern::Rotation, Pattern::All];

    fn grids() -> Vec<Grid> {
        let sizes = [(2, 1), (3, 1), (3, 2), (8, 1), (4, 3), (2, 8)];
        let both = |(nodes, endpoints)| {
            [Layout::One, Layout::PerGpu].map(|layout| Grid { nodes, endpoints, layout })
        };
        sizes.into_iter().flat_map(both).collect()
    }

    #[test]
    fn every_pattern_has_every_pair_once_and_none_within_a_node() {
        for grid in grids() {
            let all: BTreeSet<Pair> = grid.pairs().into_iter().collect();
            let count = grid.total() * (grid.nodes - 1) * grid.endpoints;
            assert_eq!(all.len(), count, "{grid:?}");
            assert!(all.iter().all(|pair| grid.node_of(pair.from) != grid.node_of(pair.to)));
            for pattern in PATTERNS {
                let steps: Vec<Pair> = grid.steps(pattern).concat();
                assert_eq!(steps.len(), count, "{grid:?} {pattern:?}");
                assert_eq!(steps.into_iter().collect::<BTreeSet<_>>(), all);
            }
        }
    }

    #[test]
    fn in_a_rotation_every_endpoint_sends_once_and_receives_once() {
        for grid in grids() {
            for step in grid.steps(Pattern::Rotation) {
                let from: BTreeSet<usize> = step.iter().map(|pair| pair.from).collect();
                let to: BTreeSet<usize> = step.iter().map(|pair| pair.to).collect();
                assert_eq!((from.len(), to.len()), (grid.total(), grid.total()), "{grid:?}");
            }
        }
    }

    #[test]
    fn a_worker_has_the_endpoints_that_are_said_to_be_its() {
        for grid in grids() {
            for endpoint in 0..grid.total() {
                let worker = grid.worker_of(endpoint);
                assert!(grid.endpoints_of(worker).contains(&endpoint), "{grid:?}");
                assert_eq!(grid.node_of_worker(worker), grid.node_of(endpoint));
            }
            let names: BTreeSet<String> =
                (0..grid.workers()).map(|worker| grid.worker_name(worker)).collect();
            assert_eq!(names.len(), grid.workers());
        }
    }

    #[test]
    fn a_pair_is_known_by_its_number_and_other_numbers_are_no_pair() {
        let grid = Grid { nodes: 3, endpoints: 2, layout: Layout::One };
        for pair in grid.pairs() {
            assert_eq!(Pair::of_id(pair.id(&grid), &grid), Some(pair));
        }
        for id in [0, 1, 7, 36, u32::MAX] {
            assert_eq!(Pair::of_id(id, &grid), None, "{id}");
        }
    }
}
