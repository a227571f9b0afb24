//! The `netdev` family: queues, the NAPI that serves each, and the interrupt that wakes it.

use std::collections::BTreeMap;

use polyrail_netlink::{any_uint, attributes, find_u32};
use serde::Serialize;

use crate::error::NicError;
use crate::generic::Family;

/// A socket to the kernel's `netdev` family, which came with Linux 6.3; queues with 6.8.
#[derive(Debug)]
pub struct Netdev {
    family: Family,
}

/// A NAPI instance, which polls one queue or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// The instance's number, which sockets report as `SO_INCOMING_NAPI_ID`.
    pub id: u32,
    /// The interrupt that wakes the instance, if the driver reports it.
    pub irq: Option<u32>,
    /// The kernel thread that runs the instance, if it is threaded.
    pub pid: Option<u32>,
}

/// The direction of a queue's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    Rx,
    Tx,
}

/// A queue of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    pub kind: QueueKind,
    /// Counts from 0 in each direction.
    pub id: u32,
    /// The NAPI instance that serves the queue, if the driver reports it.
    pub napi: Option<u32>,
}

/// Counters of a queue, by the kernel's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The direction; `None` if the counters are those of the whole interface.
    pub kind: Option<QueueKind>,
    /// The queue, as in [`Queue::id`].
    pub id: Option<u32>,
    /// Counters by name, such as `rx-packets` and `rx-hw-drops`.
    pub counters: BTreeMap<&'static str, u64>,
}

const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const QSTATS_GET: u8 = 12;
const QSTATS_SCOPE: u16 = 4;
const SCOPE_QUEUE: u32 = 1;

/// The counters by their attribute.
const COUNTERS: &[(u16, &str)] = &[
    (8, "rx-packets"),
    (9, "rx-bytes"),
    (10, "tx-packets"),
    (11, "tx-bytes"),
    (12, "rx-alloc-fail"),
    (13, "rx-hw-drops"),
    (14, "rx-hw-drop-overruns"),
    (15, "rx-csum-complete"),
    (16, "rx-csum-unnecessary"),
    (17, "rx-csum-none"),
    (18, "rx-csum-bad"),
    (19, "rx-hw-gro-packets"),
    (20, "rx-hw-gro-bytes"),
    (21, "rx-hw-gro-wire-packets"),
    (22, "rx-hw-gro-wire-bytes"),
    (23, "rx-hw-drop-ratelimits"),
    (24, "tx-hw-drops"),
    (25, "tx-hw-drop-errors"),
    (26, "tx-csum-none"),
    (27, "tx-needs-csum"),
    (28, "tx-hw-gso-packets"),
    (29, "tx-hw-gso-bytes"),
    (30, "tx-hw-gso-wire-packets"),
    (31, "tx-hw-gso-wire-bytes"),
    (32, "tx-hw-drop-ratelimits"),
    (33, "tx-stop"),
    (34, "tx-wake"),
];

impl Netdev {
    /// Opens a socket to the `netdev` family.
    ///
    /// # Errors
    /// [`NicError::NoFamily`] on kernels without it, and [`NicError::Open`] if no netlink socket
    /// can be opened.
    pub fn open() -> Result<Self, NicError> {
        Ok(Self { family: Family::open("netdev")? })
    }

    /// Returns the NAPI instances of an interface; none while it is down.
    ///
    /// # Errors
    /// [`NicError`] if there is no such interface, or this kernel does not list them.
    pub fn napis(&mut self, ifindex: u32) -> Result<Vec<Napi>, NicError> {
        let asked = format!("NAPI instances of interface {ifindex}");
        let found = self.family.dump(NAPI_GET, &asked, |message| {
            message.attribute_u32(1, ifindex);
        })?;
        Ok(found.iter().filter_map(|body| napi(body)).collect())
    }

    /// Returns the queues of an interface; none while it is down.
    ///
    /// # Errors
    /// [`NicError`] if there is no such interface, or this kernel does not list them.
    pub fn queues(&mut self, ifindex: u32) -> Result<Vec<Queue>, NicError> {
        let asked = format!("queues of interface {ifindex}");
        let found = self.family.dump(QUEUE_GET, &asked, |message| {
            message.attribute_u32(2, ifindex);
        })?;
        Ok(found.iter().filter_map(|body| queue(body)).collect())
    }

    /// Returns the counters of each queue of an interface.
    ///
    /// # Errors
    /// [`NicError`] if there is no such interface, or its driver does not count per queue.
    pub fn queue_stats(&mut self, ifindex: u32) -> Result<Vec<QueueStats>, NicError> {
        let asked = format!("queue counters of interface {ifindex}");
        let found = self.family.dump(QSTATS_GET, &asked, |message| {
            message.attribute_u32(1, ifindex);
            message.attribute_u32(QSTATS_SCOPE, SCOPE_QUEUE);
        })?;
        Ok(found.iter().map(|body| stats(body)).collect())
    }
}

/// For fuzzing: reads each kind of object.
pub(crate) fn examine(body: &[u8]) -> usize {
    usize::from(napi(body).is_some())
        + usize::from(queue(body).is_some())
        + stats(body).counters.len()
}

fn napi(body: &[u8]) -> Option<Napi> {
    Some(Napi { id: find_u32(body, 2)?, irq: find_u32(body, 3), pid: find_u32(body, 4) })
}

fn queue(body: &[u8]) -> Option<Queue> {
    Some(Queue { id: find_u32(body, 1)?, kind: kind(find_u32(body, 3)?)?, napi: find_u32(body, 4) })
}

fn stats(body: &[u8]) -> QueueStats {
    let counters = attributes(body).filter_map(|(found, value)| {
        let (_, name) = COUNTERS.iter().find(|(attribute, _)| *attribute == found)?;
        Some((*name, any_uint(value)?))
    });
    QueueStats {
        kind: find_u32(body, 2).and_then(kind),
        id: find_u32(body, 3),
        counters: counters.collect(),
    }
}

fn kind(number: u32) -> Option<QueueKind> {
    match number {
        0 => Some(QueueKind::Rx),
        1 => Some(QueueKind::Tx),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use polyrail_netlink::{Message, replies};

    use super::*;

    fn body(fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new(0, &[]);
        fill(&mut message);
        let bytes = message.finish(0, 0);
        replies(&bytes).next().unwrap().unwrap().body.to_vec()
    }

    #[test]
    fn a_napi_without_an_interrupt_is_one_whose_driver_does_not_tell() {
        let told = body(|m| {
            m.attribute_u32(2, 8209);
            m.attribute_u32(3, 44);
        });
        assert_eq!(napi(&told), Some(Napi { id: 8209, irq: Some(44), pid: None }));
        let untold = body(|m| m.attribute_u32(2, 257));
        assert_eq!(napi(&untold), Some(Napi { id: 257, irq: None, pid: None }));
        assert_eq!(napi(&[]), None);
    }

    #[test]
    fn counters_of_a_queue_have_the_kernels_names_and_unknown_ones_are_left_out() {
        let bytes = body(|m| {
            m.attribute_u32(2, 0);
            m.attribute_u32(3, 7);
            m.attribute(8, &u64::MAX.to_ne_bytes());
            m.attribute_u32(13, 5);
            m.attribute_u32(999, 5);
        });
        let found = stats(&bytes);
        assert_eq!((found.kind, found.id), (Some(QueueKind::Rx), Some(7)));
        assert_eq!(found.counters, BTreeMap::from([("rx-packets", u64::MAX), ("rx-hw-drops", 5)]));
    }
}
