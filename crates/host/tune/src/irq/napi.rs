//! Queues that an interrupt serves, as reported by the kernel where the driver supports that.

use std::collections::BTreeMap;

use polyrail_host::Sysroot;
use polyrail_nic::{Napi, Netdev, Queue, QueueKind};

use super::role::Role;
use super::vectors::Vectors;

/// Replaces roles derived from names with the kernel's. Drivers that report nothing, kernels before 6.8 and copies of
/// another machine's files leave everything as it is.
pub(super) fn ask(root: &Sysroot, vectors: &mut Vectors) {
    if !root.is_live() {
        return;
    }
    let Ok(mut netdev) = Netdev::open() else { return };
    for nic in vectors.nics() {
        let index = root.read_parsed::<u32>(format!("/sys/class/net/{nic}/ifindex"));
        let Ok(Some(index)) = index else { continue };
        let (Ok(napis), Ok(queues)) = (netdev.napis(index), netdev.queues(index)) else { continue };
        let told = by_irq(&napis, &queues);
        let of_nic = vectors.list.iter_mut().filter(|vector| vector.nics.contains(&nic));
        for vector in of_nic {
            if let Some((role, queue)) = told.get(&vector.irq) {
                vector.role = *role;
                vector.queue = Some(*queue);
            }
        }
    }
}

/// Maps each interrupt to its role and queue. An interrupt of several queues gets the lowest of
/// them.
fn by_irq(napis: &[Napi], queues: &[Queue]) -> BTreeMap<u32, (Role, u32)> {
    let mut told: BTreeMap<u32, (Role, u32)> = BTreeMap::new();
    for queue in queues {
        let napi = napis.iter().find(|napi| Some(napi.id) == queue.napi);
        let Some(irq) = napi.and_then(|napi| napi.irq) else { continue };
        let role = match queue.kind {
            QueueKind::Rx => Role::Rx,
            QueueKind::Tx => Role::Tx,
        };
        let known = told.entry(irq).or_insert((role, queue.id));
        if known.0 != role {
            known.0 = Role::Both;
        }
        known.1 = known.1.min(queue.id);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_of_both_directions_serves_both_and_an_untold_one_nothing() {
        let napi = |id, irq| Napi { id, irq, pid: None };
        let queue = |kind, id, napi| Queue { kind, id, napi };
        let napis = [napi(1, Some(44)), napi(2, Some(45)), napi(3, None)];
        let queues = [
            queue(QueueKind::Rx, 0, Some(1)),
            queue(QueueKind::Tx, 0, Some(1)),
            queue(QueueKind::Rx, 7, Some(2)),
            queue(QueueKind::Rx, 8, Some(3)),
            queue(QueueKind::Tx, 8, None),
        ];
        let told = by_irq(&napis, &queues);
        assert_eq!(told, BTreeMap::from([(44, (Role::Both, 0)), (45, (Role::Rx, 7))]));
    }
}
