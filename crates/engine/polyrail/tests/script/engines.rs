//! A script performed by two engines, whose only rail leads through relays.

use polyrail::{Engine, Peer, PostError, Region, RemoteRegion, Request, Transfer, TransferError};
use polyrail_proto::Failure;
use polyrail_testkit::oracle::Kind;
use polyrail_testkit::script::{
    CHUNK_BYTES, Order, REGION_BYTES, REGIONS, Report, Script, Seen, Step,
};

use crate::common::relay::{Cut, Relay, RelayedPair, with};
use crate::common::*;

/// Two engines with regions like those of the simulated nodes.
pub(crate) struct Engines {
    pair: RelayedPair,
    nodes: [Node; 2],
    operations: Vec<Operation>,
}

struct Node {
    /// By slot; `None` once dropped.
    regions: Vec<Option<Region>>,
    /// The peer's regions, by slot.
    remote: Vec<RemoteRegion>,
    /// Bytes of the regions that operations use: none is used twice.
    used: u64,
    /// Operations whose notification arrived, in order.
    notified: Vec<usize>,
}

struct Operation {
    order: Order,
    /// The offset of its bytes in the region, at either end.
    at: u64,
    transfer: Result<Transfer, PostError>,
}

impl Engines {
    pub(crate) fn new() -> Self {
        let chunk_bytes = CHUNK_BYTES.to_string();
        let pair =
            RelayedPair::new(&with(&[("rails", "127.0.0.1"), ("channels", "1"), ("sockets", "1")]));
        assert_eq!(pair.a.config().settings().chunk_bytes.to_string(), chunk_bytes);
        let own = |engine: &Engine| -> Vec<Region> {
            (0..REGIONS).map(|_| zeroed(engine, REGION_BYTES as usize)).collect()
        };
        let (a, b) = (own(&pair.a), own(&pair.b));
        let seen = |engine: &Engine, regions: &[Region]| -> Vec<RemoteRegion> {
            regions.iter().map(|region| remote(engine, region)).collect()
        };
        let remote = [seen(&pair.a, &b), seen(&pair.b, &a)];
        let node = |(regions, remote): (Vec<Region>, _)| Node {
            regions: regions.into_iter().map(Some).collect(),
            remote,
            used: 0,
            notified: Vec::new(),
        };
        let [to_b, to_a] = remote;
        let nodes = [(a, to_b), (b, to_a)].map(node);
        Self { pair, nodes, operations: Vec::new() }
    }

    pub(crate) fn perform(mut self, script: &Script) -> Report {
        let mut report = Report::default();
        self.settle();
        for (number, step) in script.steps().iter().enumerate() {
            match *step {
                Step::Post(order) => self.post(order),
                Step::Cancel(operation) => {
                    if let Ok(transfer) = &self.operations[operation].transfer {
                        transfer.cancel();
                    }
                }
                Step::Drop(node, slot) => {
                    if let Some(region) = self.nodes[node].regions[slot as usize].take() {
                        region.end();
                    }
                }
                Step::Hold => self.pair.relays().for_each(Relay::stall),
                Step::Cut => {
                    self.fetch();
                    self.pair.relays().for_each(|relay| relay.cut(Cut::Reset));
                }
                Step::Release => {
                    self.fetch();
                    let open = self.open(script);
                    report.seen.push((number, Seen::Open(open)));
                    self.pair.heal();
                }
                Step::Await(operation) => report.seen.push((number, self.seen(operation))),
                Step::Settle => self.settle(),
                Step::Close(node) => self.engine(node).close(),
            }
        }
        self.take_notifications();
        report.notified = self.nodes.each_mut().map(|node| std::mem::take(&mut node.notified));
        report
    }

    /// Waits until the protocol knows all posts, as it does at once in the simulated world.
    fn fetch(&self) {
        let is_fetched = |engine: &Engine| engine.dump().contains(" 0 posted and not fetched");
        wait_for("posts to be fetched", || is_fetched(&self.pair.a) && is_fetched(&self.pair.b));
    }

    /// Sends notifications without data behind all that is on its way. The longest chain is the answer to an answer:
    /// the refusal of a read's data, and the resulting message to the reader.
    fn settle(&mut self) {
        const ROUNDS: u32 = 3;
        for _ in 0..ROUNDS {
            for node in [0, 1] {
                self.engine(node).notify(self.peer(node), &[]).unwrap().ended().unwrap();
            }
        }
    }

    fn engine(&self, node: usize) -> &Engine {
        [&self.pair.a, &self.pair.b][node]
    }

    fn peer(&self, node: usize) -> &Peer {
        [&self.pair.to_b, &self.pair.to_a][node]
    }

    fn region(&self, node: usize, slot: u32) -> Option<&Region> {
        self.nodes[node].regions[slot as usize].as_ref()
    }

    fn post(&mut self, order: Order) {
        let Order { node, kind, notify, len, slot, within } = order;
        let number = self.operations.len();
        let at = self.nodes[0].used.max(self.nodes[1].used);
        self.nodes.iter_mut().for_each(|node| node.used = at + len);
        if let (Some(source), _) = order.ends() {
            let region = self.region(source, slot).expect("a region that is not dropped");
            region.write_at(at, &pattern(len as usize, number as u64)).unwrap();
        }
        let local = || self.region(node, slot).unwrap().slice(at, len).unwrap();
        let remote = || self.nodes[node].remote[slot as usize].slice(at, len).unwrap();
        let peer = self.peer(node);
        let data = if notify { (number as u64).to_le_bytes().to_vec() } else { Vec::new() };
        let within = within.unwrap_or(2 * LONG);
        let engine = self.engine(node);
        let transfer = match kind {
            Kind::Write => {
                let write = Request::write(peer).segment(local(), remote()).timeout(within);
                engine.post(if notify { write.notification(data) } else { write })
            }
            Kind::Notify => engine.post(Request::write(peer).notification(data).timeout(within)),
            Kind::Read => {
                engine.post(Request::read(peer).segment(local(), remote()).timeout(within))
            }
            Kind::Send { tag } => {
                engine.post(Request::send(peer, tag).local(local()).timeout(within))
            }
            Kind::Receive { tag } => {
                engine.post(Request::receive(peer, tag).local(local()).timeout(within))
            }
        };
        self.operations.push(Operation { order, at, transfer });
    }

    /// Returns the operations that are not over, of those that count.
    fn open(&self, script: &Script) -> Vec<usize> {
        let is_open = |operation: &usize| {
            let transfer = &self.operations[*operation].transfer;
            script.counts_as_open(*operation) && transfer.as_ref().is_ok_and(|it| !it.is_over())
        };
        (0..self.operations.len()).filter(is_open).collect()
    }

    /// Waits for the end of an operation. All that the end promises has happened by then.
    fn seen(&mut self, operation: usize) -> Seen {
        let Operation { order, transfer, .. } = &self.operations[operation];
        let order = *order;
        let end = match transfer {
            Ok(transfer) => {
                let end = transfer.wait(LONG);
                let end = end.unwrap_or_else(|| {
                    panic!("operation {operation} is under way\n{}", self.engine(order.node).dump())
                });
                end.map(|outcome| outcome.bytes).map_err(|error| kind_of(&error, order.kind))
            }
            Err(PostError::PeerGone { .. }) => Err(Failure::PeerLost.to_string()),
            Err(error) => panic!("operation {operation} can't be posted: {error}"),
        };
        self.take_notifications();
        let is_notified = self.nodes[1 - order.node].notified.contains(&operation);
        assert!(is_notified || end.is_err() || !order.notify, "{operation} is done, unnotified");
        let met = match (order.kind, &end) {
            (Kind::Receive { .. }, Ok(bytes)) => self.met(operation, *bytes),
            _ => None,
        };
        if met.is_none() {
            self.check_bytes(operation, end.is_ok());
        }
        Seen::Over { operation, end, met }
    }

    /// Returns the send whose bytes are in a receive.
    fn met(&self, receive: usize, bytes: u64) -> Option<usize> {
        let Operation { order, at, .. } = &self.operations[receive];
        let region = self.region(order.node, order.slot)?;
        let mut here = vec![0; bytes as usize];
        region.read_at(*at, &mut here).unwrap();
        let is_it = |(send, operation): (usize, &Operation)| {
            let is_send = matches!(operation.order.kind, Kind::Send { .. });
            let is_whole = operation.order.len == bytes;
            (is_send && is_whole && here == pattern(bytes as usize, send as u64)).then_some(send)
        };
        self.operations.iter().enumerate().find_map(is_it)
    }

    /// Checks that all bytes of a write or a read are in place if it is done. If it failed, each is in place or was
    /// never written.
    fn check_bytes(&self, number: usize, is_done: bool) {
        let Operation { order, at, .. } = &self.operations[number];
        let (Kind::Write | Kind::Read, (_, Some(node))) = (order.kind, order.ends()) else {
            return;
        };
        let Some(region) = self.region(node, order.slot) else { return };
        let mut here = vec![0; order.len as usize];
        region.read_at(*at, &mut here).unwrap();
        let wanted = pattern(order.len as usize, number as u64);
        let is_right = |(here, wanted): (&u8, &u8)| here == wanted || !is_done && *here == 0;
        assert!(here.iter().zip(&wanted).all(is_right), "bytes of operation {number}");
    }

    fn take_notifications(&mut self) {
        for node in [0, 1] {
            for notification in self.engine(node).take_notifications() {
                if let Some(number) = notification.data.first_chunk() {
                    self.nodes[node].notified.push(u64::from_le_bytes(*number) as usize);
                }
            }
        }
    }
}

/// Returns the kind of a failure, in the terms of the simulated world.
fn kind_of(error: &TransferError, kind: Kind) -> String {
    match error {
        TransferError::Cancelled => Failure::Cancelled.to_string(),
        TransferError::Deadline { .. } => Failure::Deadline.to_string(),
        TransferError::PeerLost { .. } => Failure::PeerLost.to_string(),
        TransferError::RegionDropped => Failure::RegionDropped.to_string(),
        TransferError::Refused { code, .. } => code.reason().to_owned(),
        TransferError::TooLong { .. } if matches!(kind, Kind::Receive { .. }) => {
            "its send is too long".to_owned()
        }
        TransferError::TooLong { .. } => "longer than its receive".to_owned(),
        TransferError::SendFailed { .. } => "its send failed".to_owned(),
        other => other.to_string(),
    }
}
