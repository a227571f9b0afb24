//! Counters of single queues, from drivers that report them over netlink.

use std::collections::{BTreeMap, HashSet};

use polyrail_host::Sysroot;
use polyrail_nic::{Netdev, QueueKind};
use polyrail_sample::{QueueCounts, ReadQueues};

/// Returns the sampler's callback for counters of queues. Interfaces whose driver has no such counters are asked once
/// only.
pub(crate) fn read_queues() -> ReadQueues {
    let root = Sysroot::live();
    let mut netdev = Netdev::open().ok();
    let mut silent: HashSet<String> = HashSet::new();
    Box::new(move |names| {
        let Some(netdev) = &mut netdev else { return BTreeMap::new() };
        let mut all = BTreeMap::new();
        for name in names.iter().filter(|name| !silent.contains(*name)).collect::<Vec<_>>() {
            let counts = index(&root, name).and_then(|index| counts(netdev, index));
            match counts {
                Some(counts) => {
                    all.insert(name.clone(), counts);
                }
                None => {
                    silent.insert(name.clone());
                }
            }
        }
        all
    })
}

fn index(root: &Sysroot, name: &str) -> Option<u32> {
    root.read_parsed(format!("/sys/class/net/{name}/ifindex")).ok()?
}

/// Returns the counters of an interface's queues, or `None` if the driver has none.
fn counts(netdev: &mut Netdev, index: u32) -> Option<QueueCounts> {
    let mut queues = QueueCounts::new();
    for stats in netdev.queue_stats(index).ok()? {
        let direction = match stats.kind? {
            QueueKind::Rx => "rx",
            QueueKind::Tx => "tx",
        };
        let counters = stats.counters.into_iter().map(|(name, count)| (name.to_owned(), count));
        queues.insert(format!("{direction}-{}", stats.id?), counters.collect());
    }
    (!queues.is_empty()).then_some(queues)
}
