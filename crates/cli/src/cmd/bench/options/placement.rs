//! Choice of CPUs for the progress threads, based on the topology of the machine.
//!
//! Interfaces with a device get the bindings that `polyrail host plan bindings` would give. If both ends are on this
//! machine, threads of all rails and directions share one pool for each end. The pool has whole cores of the node with
//! the most cores, so that one end's writes are in a cache of the other.

use polyrail::{Config, EngineError};
use polyrail_config::{Progress, ProxyLayout};
use polyrail_host::bindings::{Options, suggest};
use polyrail_host::{CpuSet, Sysroot, Topology};
use polyrail_report::PlacedBy;

use super::choices::PlaceThreads;
use super::role::Role;

/// Settings that place threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) by: PlacedBy,
    /// Chosen CPUs, or the reason why none were chosen.
    pub(crate) why: String,
    /// Settings for this end, the one that measures.
    pub(crate) mine: Vec<(&'static str, String)>,
    /// Settings for the other process, if this one starts it.
    pub(crate) theirs: Vec<(&'static str, String)>,
}

/// Chooses CPUs for the role. `inside_lab`: this process is the client that a bench starts in its lab.
pub(crate) fn place(
    config: &Config,
    role: &Role,
    inside_lab: bool,
    wanted: PlaceThreads,
) -> Result<Placed, EngineError> {
    if !(config.tx_bindings.is_empty() && config.rx_bindings.is_empty()) {
        return Ok(Placed { by: PlacedBy::Settings, ..Placed::nothing("by the settings") });
    }
    if wanted == PlaceThreads::None {
        return Ok(Placed::nothing("not asked for"));
    }
    if config.progress == Progress::Caller {
        return Ok(Placed::nothing("callers move the data, and their threads are never bound"));
    }
    let topology = match Topology::read(&Sysroot::live()) {
        Ok(topology) => topology,
        Err(error) => return Ok(Placed::nothing(&error.to_string())),
    };
    Ok(match role {
        // The process that started this one has placed its threads.
        Role::ServeParent => Placed::nothing("by the process that measures"),
        Role::NcclRank => Placed::nothing("its threads do nothing"),
        Role::Lab { rates } => both_here(config, rates.len(), &topology),
        Role::Both => both_here(config, polyrail::rails(config)?.len(), &topology),
        Role::Connect(_) if inside_lab => {
            both_here(config, polyrail::rails(config)?.len(), &topology)
        }
        Role::Connect(_) | Role::Listen { .. } => by_interface(config, &topology)?,
    })
}

/// Returns settings that place the threads of engines that all send and receive in this process, one transfer at a
/// time. Sending threads go where `polyrail bench` would place those of this end, and receiving threads where it would
/// place those of the other end.
pub(crate) fn place_together(config: &Config) -> Vec<(&'static str, String)> {
    let placed = place(config, &Role::Both, false, PlaceThreads::Auto);
    // Without any rails, the engine refuses to start and reports the reason.
    placed.map_or_else(|_| Vec::new(), |placed| together(&placed))
}

fn together(placed: &Placed) -> Vec<(&'static str, String)> {
    let of = |settings: &[(&'static str, String)], name: &str| {
        settings.iter().find(|(setting, _)| *setting == name).cloned()
    };
    let (tx, rx) = (of(&placed.mine, "tx_bindings"), of(&placed.theirs, "rx_bindings"));
    // A merged layout has one pool for both directions, which would be that of one end only.
    tx.zip(rx).map_or_else(Vec::new, |(tx, rx)| vec![tx, rx])
}

impl Placed {
    /// Describes the placement: its author and the CPUs, or the reason for having none.
    pub(crate) fn words(by: PlacedBy, why: &str) -> String {
        match by {
            PlacedBy::Topology => format!("by the topology, {why}"),
            PlacedBy::Settings => why.to_owned(),
            PlacedBy::Nobody => format!("not placed: {why}"),
        }
    }

    fn nothing(why: &str) -> Self {
        let (mine, theirs) = (Vec::new(), Vec::new());
        Self { by: PlacedBy::Nobody, why: why.to_owned(), mine, theirs }
    }
}

/// Places each interface's threads near the interface, for rails that lead to other hosts.
fn by_interface(config: &Config, topology: &Topology) -> Result<Placed, EngineError> {
    let rails = polyrail::rails(config)?;
    let mut interfaces: Vec<String> = rails.into_iter().map(|rail| rail.interface).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    if let Some(name) = interfaces.iter().find(|name| topology.carriers(name).is_empty()) {
        let why = format!("{name} is virtual and belongs to no NUMA node");
        return Ok(Placed::nothing(&why));
    }
    let count = interfaces.len();
    let suggestion = suggest(topology, &Options { interfaces, ..Options::default() });
    if !suggestion.notes.is_empty() || suggestion.tx.entries.len() != count {
        return Ok(Placed::nothing(&suggestion.notes.join("; ")));
    }
    let (tx, rx) = (suggestion.tx.to_string(), suggestion.rx.to_string());
    let why = format!("sending {tx}, receiving {rx}");
    let mine = match config.proxy_layout {
        ProxyLayout::Split => vec![("tx_bindings", tx), ("rx_bindings", rx)],
        ProxyLayout::Merged => vec![("tx_bindings", tx)],
    };
    Ok(Placed { by: PlacedBy::Topology, why, mine, theirs: Vec::new() })
}

/// Divides one node's cores between the two ends on this machine.
fn both_here(config: &Config, rails: usize, topology: &Topology) -> Placed {
    let usable = topology.usable_cpus().difference(&topology.cpus.isolated);
    let nodes = topology.nodes.iter().map(|node| (Some(node.id), node.cpus.intersection(&usable)));
    let mut places: Vec<(Option<u32>, Vec<CpuSet>)> =
        nodes.map(|(id, cpus)| (id, topology.cpus.cores(&cpus))).collect();
    if places.is_empty() {
        places.push((None, topology.cpus.cores(&usable)));
    }
    // The sort is stable: the first of the nodes with the most cores comes first.
    places.sort_by_key(|(_, cores)| std::cmp::Reverse(cores.len()));
    let Some((node, cores)) = places.into_iter().next() else {
        return Placed::nothing("no CPU can be used");
    };
    // The engine chooses the number of threads in the same way.
    let automatic = rails.min(topology.usable_cpus().len());
    let threads = |setting: u32| if setting == 0 { automatic } else { setting as usize };
    let (tx, rx) = (threads(config.proxies.tx), threads(config.proxies.rx));
    let needed = 2 * (tx + rx + 1);
    let place = node.map_or("this machine".to_owned(), |node| format!("node {node}"));
    if cores.len() < needed {
        let have = cores.len();
        return Placed::nothing(&format!(
            "{place} has {have} cores, and the two processes want {needed}: each {tx} to send, {rx} to receive, \
             and 1 for its other threads"
        ));
    }
    let (client, server) = cores.split_at(cores.len() / 2);
    let (client, server) = (pool(client), pool(server));
    let why = format!("{place}: threads here on {client}, there on {server}");
    // Bytes mostly go one way at a time, so sending and receiving threads share all CPUs of their end.
    let settings = |cpus: &CpuSet| match config.proxy_layout {
        ProxyLayout::Split => {
            vec![("tx_bindings", cpus.to_string()), ("rx_bindings", cpus.to_string())]
        }
        ProxyLayout::Merged => vec![("tx_bindings", cpus.to_string())],
    };
    let (mine, theirs) = (settings(&client), settings(&server));
    Placed { by: PlacedBy::Topology, why, mine, theirs }
}

/// Returns the CPUs for an end's progress threads. The end's first core is left for the program's own threads.
fn pool(cores: &[CpuSet]) -> CpuSet {
    let (_, moving) = cores.split_at(1.min(cores.len()));
    moving.iter().fold(CpuSet::new(), |all, core| all.union(core))
}

#[cfg(test)]
mod tests {
    use polyrail_host::fixtures;

    use super::*;

    fn config(settings: &[(&str, &str)]) -> Config {
        let builder = Config::builder().set("rails", "127.0.0.1,127.0.0.2").unwrap();
        let set = |builder: polyrail_config::ConfigBuilder, pair: &(&str, &str)| {
            builder.set(pair.0, pair.1).unwrap()
        };
        settings.iter().fold(builder, set).build().unwrap()
    }

    #[test]
    fn both_ends_here_share_no_core_and_no_node() {
        let fixture = fixtures::a3_high();
        let topology = Topology::read(&fixture.root()).unwrap();
        let placed = both_here(&config(&[]), 2, &topology);
        assert_eq!(placed.by, PlacedBy::Topology);
        let mine = [("tx_bindings", "1-25,105-129"), ("rx_bindings", "1-25,105-129")];
        let theirs = [("tx_bindings", "27-51,131-155"), ("rx_bindings", "27-51,131-155")];
        assert_eq!(placed.mine, mine.map(|(name, list)| (name, list.to_owned())));
        assert_eq!(placed.theirs, theirs.map(|(name, list)| (name, list.to_owned())));
        let together = together(&placed);
        assert_eq!(together, [mine[0], theirs[1]].map(|(name, list)| (name, list.to_owned())));
        let merged = both_here(&config(&[("proxy_layout", "merged")]), 2, &topology);
        assert_eq!(merged.mine, [("tx_bindings", "1-25,105-129".to_owned())]);
    }

    #[test]
    fn too_few_cores_are_a_reason_to_leave_threads_alone() {
        let fixture = fixtures::laptop();
        let topology = Topology::read(&fixture.root()).unwrap();
        let placed = both_here(&config(&[]), 2, &topology);
        assert_eq!((placed.by, placed.mine.len()), (PlacedBy::Nobody, 0));
        assert!(
            placed.why.contains("has 4 cores") && placed.why.contains("want 10"),
            "{}",
            placed.why
        );
        let one = config(&[("proxies", "1"), ("rails", "127.0.0.1")]);
        let needed = both_here(&one, 1, &topology).why;
        assert!(needed.contains("want 6"), "{needed}");
    }

    #[test]
    fn what_the_settings_say_is_left_alone() {
        for setting in [("tx_bindings", "0"), ("rx_bindings", "lo:0")] {
            let placed =
                place(&config(&[setting]), &Role::Both, false, PlaceThreads::Auto).unwrap();
            assert_eq!((placed.by, placed.mine.len()), (PlacedBy::Settings, 0));
        }
        let caller = config(&[("progress", "caller")]);
        let placed = place(&caller, &Role::Both, false, PlaceThreads::Auto).unwrap();
        assert!(placed.why.contains("never bound"), "{}", placed.why);
        let placed = place(&config(&[]), &Role::Both, false, PlaceThreads::None).unwrap();
        assert_eq!((placed.by, placed.why.as_str()), (PlacedBy::Nobody, "not asked for"));
        let placed = place(&config(&[]), &Role::ServeParent, false, PlaceThreads::Auto).unwrap();
        assert_eq!(placed.by, PlacedBy::Nobody);
    }

    #[test]
    fn interfaces_without_a_device_are_near_nothing() {
        let fixture = fixtures::a3_high();
        let topology = Topology::read(&fixture.root()).unwrap();
        let placed = by_interface(&config(&[]), &topology).unwrap();
        assert_eq!(placed.why, "lo is virtual and belongs to no NUMA node");
        let words = "not placed: lo is virtual and belongs to no NUMA node";
        assert_eq!(Placed::words(placed.by, &placed.why), words);
    }
}
