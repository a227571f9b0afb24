//! Placement of progress threads: the CPUs that each is bound to, and the rails that it serves.

/// Name of an interface, and the CPUs that it is bound to.
pub type Bound<'a> = (&'a str, &'a [u32]);

/// Progress threads of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs of each thread; empty if it is not bound.
    pub cpus: Vec<Vec<u32>>,
    /// Threads by rail.
    pub of_rail: Vec<RailProxies>,
}

/// Progress threads that serve a rail, perhaps among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailProxies {
    /// Never empty.
    pub proxies: Vec<usize>,
    /// Number of rails that the threads serve, and the position of this one among them.
    rails: u32,
    position: u32,
}

impl Placement {
    /// Places `count` progress threads, at least one, on rails with these interfaces. If several interfaces of a rail
    /// are bound, the first counts.
    ///
    /// Without bindings, every thread serves every rail, on the CPUs of `list`. With bindings, the rails of one
    /// interface have their own threads on the interface's CPUs, and interfaces without a binding use `list`. Fewer
    /// threads than interfaces serve several each.
    pub fn new(rails: &[Vec<&str>], count: u32, list: &[u32], bindings: &[Bound<'_>]) -> Self {
        let count = count.max(1) as usize;
        let of_name = |interface: &&str| bindings.iter().position(|(name, _)| name == interface);
        let bound = |interfaces: &Vec<&str>| interfaces.iter().find_map(of_name);
        // A group is a bound interface, or all that are not bound.
        let mut groups: Vec<Option<usize>> = Vec::new();
        for interfaces in rails {
            let group = bound(interfaces);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let cpus_of = |group: &Option<usize>| match group {
            Some(at) => bindings[*at].1,
            None => list,
        };
        let mut cpus = vec![Vec::new(); count];
        let mut served_by = vec![Vec::new(); groups.len()];
        for (at, group) in groups.iter().enumerate() {
            // Threads go round the groups; where there are fewer, groups go round the threads.
            let mine: Vec<usize> = if count < groups.len() {
                vec![at % count]
            } else {
                (at..count).step_by(groups.len()).collect()
            };
            for (proxy, part) in mine.iter().zip(divided(cpus_of(group), mine.len())) {
                cpus[*proxy].extend(part);
            }
            served_by[at] = mine;
        }
        for list in &mut cpus {
            list.sort_unstable();
            list.dedup();
        }
        let mut counts = vec![0; groups.len()];
        let mut of_rail = Vec::new();
        for interfaces in rails {
            let group = bound(interfaces);
            // The groups were made from these interfaces.
            let Some(at) = groups.iter().position(|other| *other == group) else { continue };
            let proxies = served_by[at].clone();
            of_rail.push((at, RailProxies { proxies, rails: 0, position: counts[at] }));
            counts[at] += 1;
        }
        let of_rail =
            of_rail.into_iter().map(|(at, rail)| RailProxies { rails: counts[at], ..rail });
        Self { of_rail: of_rail.collect(), cpus }
    }

    /// Returns the thread of the flow or channel with this number, where these go round all `rails`, `width` at a time.
    /// Neighbours among those of the same threads are spread over these.
    pub fn proxy(&self, rail: usize, number: u32, rails: u32, width: u32) -> usize {
        let at = &self.of_rail[rail];
        let round = number / (rails * width).max(1);
        let nth = (round * at.rails + at.position) * width + number % width.max(1);
        at.proxies[nth as usize % at.proxies.len()]
    }

    /// Returns the threads of all rails, each once.
    pub fn proxies(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.of_rail.iter().flat_map(|rail| rail.proxies.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Renumbers the threads from `start`.
    pub fn starting_at(mut self, start: usize) -> Self {
        for proxy in self.of_rail.iter_mut().flat_map(|rail| &mut rail.proxies) {
            *proxy += start;
        }
        self
    }
}

/// Splits `list` over `count` threads. Up to as many threads as CPUs get their own CPUs; CPUs are shared only once all
/// are in use.
fn divided(list: &[u32], count: usize) -> Vec<Vec<u32>> {
    let part = |index: usize| -> Vec<u32> {
        if count <= list.len() {
            list.iter().copied().skip(index).step_by(count).collect()
        } else {
            list.get(index % list.len().max(1)).copied().into_iter().collect()
        }
    };
    (0..count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(interfaces: &[&str], count: u32, list: &[u32], bound: &[Bound<'_>]) -> Placement {
        let rails: Vec<Vec<&str>> = interfaces.iter().map(|name| vec![*name]).collect();
        Placement::new(&rails, count, list, bound)
    }

    fn proxies(placement: &Placement) -> Vec<&[usize]> {
        placement.of_rail.iter().map(|rail| rail.proxies.as_slice()).collect()
    }

    #[test]
    fn without_bindings_every_proxy_serves_every_rail_and_channels_go_round_them() {
        let placement = place(&["eth1", "eth2"], 3, &[4, 5, 6, 7], &[]);
        assert_eq!(proxies(&placement), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(placement.cpus, [vec![4, 7], vec![5], vec![6]]);
        for number in 0..12 {
            let (rail, expected) = (number as usize % 2, number as usize % 3);
            assert_eq!(placement.proxy(rail, number, 2, 1), expected, "{number}");
            let rail = number as usize / 3 % 2;
            assert_eq!(placement.proxy(rail, number, 2, 3), expected, "{number}");
        }
        assert_eq!(place(&["lo"], 3, &[9], &[]).cpus, [[9], [9], [9]]);
        assert_eq!(place(&["lo"], 2, &[], &[]).cpus, [[], [] as [u32; 0]]);
    }

    #[test]
    fn each_interface_has_proxies_of_its_own_on_its_cpus() {
        let placement =
            place(&["eth1", "eth2"], 4, &[], &[("eth1", &[0, 1, 2, 3]), ("eth2", &[8, 9])]);
        assert_eq!(proxies(&placement), [[0, 2], [1, 3]]);
        assert_eq!(placement.cpus, [vec![0, 2], vec![8], vec![1, 3], vec![9]]);
        let of_numbers: Vec<usize> =
            (0..8).map(|number| placement.proxy(number as usize % 2, number, 2, 1)).collect();
        assert_eq!(of_numbers, [0, 1, 2, 3, 0, 1, 2, 3]);
        let placement = placement.starting_at(10);
        assert_eq!(proxies(&placement), [[10, 12], [11, 13]]);
        assert_eq!(placement.proxies(), [10, 11, 12, 13]);
    }

    #[test]
    fn rails_of_one_interface_share_its_cpus_and_the_others_go_by_the_list() {
        let placement = place(&["lo", "lo", "eth1"], 3, &[7], &[("lo", &[0, 1])]);
        assert_eq!(proxies(&placement), [vec![0, 2], vec![0, 2], vec![1]]);
        assert_eq!(placement.cpus, [[0], [7], [1]]);
        let of_rails: Vec<usize> =
            (0..3).map(|number| placement.proxy(number as usize, number, 3, 1)).collect();
        assert_eq!(of_rails, [0, 2, 1]);
    }

    #[test]
    fn fewer_proxies_than_interfaces_serve_several_each_on_the_cpus_of_all() {
        let placement =
            place(&["a", "b", "c"], 2, &[], &[("a", &[0]), ("b", &[1]), ("c", &[2, 3])]);
        assert_eq!(proxies(&placement), [[0], [1], [0]]);
        assert_eq!(placement.cpus, [vec![0, 2, 3], vec![1]]);
        assert_eq!(place(&["a", "b"], 0, &[], &[("a", &[1]), ("b", &[1])]).cpus, [[1]]);
    }

    #[test]
    fn an_interface_that_begins_like_another_is_another() {
        let placement = place(&["eth10", "eth1"], 2, &[], &[("eth1", &[3])]);
        assert_eq!(placement.cpus, [vec![], vec![3]]);
    }

    #[test]
    fn a_hosted_device_is_bound_by_its_name_and_else_by_the_interface_of_its_connection() {
        let hosted = [vec!["eth1", "eth0"], vec!["eth2", "eth0"], vec!["eth0"]];
        let place = |bound: &[Bound<'_>]| Placement::new(&hosted, 3, &[7], bound);
        let placement = place(&[("eth0", &[0]), ("eth1", &[1]), ("eth2", &[2])]);
        assert_eq!(proxies(&placement), [[0], [1], [2]]);
        assert_eq!(placement.cpus, [[1], [2], [0]]);
        let placement = place(&[("eth1", &[1]), ("eth0", &[0])]);
        assert_eq!(proxies(&placement), [vec![0, 2], vec![1], vec![1]]);
        assert_eq!(placement.cpus, [[1], [0], [1]]);
        let placement = place(&[("eth2", &[2])]);
        assert_eq!(proxies(&placement), [vec![0, 2], vec![1], vec![0, 2]]);
        assert_eq!(placement.cpus, [[7], [2], [7]]);
    }
}
