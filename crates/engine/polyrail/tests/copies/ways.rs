//! Failures in the middle of a copy by CPUs: one table for all paths between two ends of one host.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::single_copy::Two;
use super::{CALLER, ON, QUICK, Settings, by_rails, first_of};
use crate::common::puppet::{Messages, PUPPET_BYTES, PUPPET_SEED, Puppet, hex};
use crate::common::*;
use polyrail::{Engine, Memory, PathKind, Peer, Region, RemoteRegion, Request, Transfer};
use polyrail_proto::error::FAILURES as KINDS;
use rustix::process::Signal;

/// Bytes of the region that long messages consist of, repeated as often as a receive may have parts.
const ROOM: usize = 32 << 20;
const TIMES: u64 = 1024;
/// A byte that neither end sends.
const MINE: u8 = 0xee;
/// Places of a region at which late copies are looked for.
const MARKS: u64 = 16 << 10;
/// The shortest message that is copied.
pub(super) const SHORTEST: u64 = 128 << 10;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// The end here copies.
    Read,
    /// The sender copies, which is the other end.
    Receive,
    /// The end here copies.
    Send,
}

/// An event that ends a copy.
struct Failure {
    name: &'static str,
    happen: fn(&mut Ends),
    /// The kinds of error with which a read, a receive and a send may end, or after `no: ` why there is no case.
    ends: [&'static str; 3],
    /// Words in the error at the other end of a receive and of a send.
    far_ends: [&'static str; 2],
    settings: Settings,
    /// Milliseconds after which the end here and the other one give up; 0: never.
    timeouts_ms: [u64; 2],
    /// Whether the next transfer between the two ends is copied, too.
    goes_on: bool,
    needs_process: bool,
}

/// A failure at the end here, after which everything else works.
const fn here(name: &'static str, happen: fn(&mut Ends), end: &'static str) -> Failure {
    Failure {
        name,
        happen,
        ends: [end; 3],
        far_ends: ["refused", "gave up the matching send"],
        settings: ON,
        timeouts_ms: [0; 2],
        goes_on: true,
        needs_process: false,
    }
}

/// A failure at the other end of a message.
const fn there(name: &'static str, happen: fn(&mut Ends), far_end: &'static str) -> Failure {
    let ends = [READER_ALONE, "send_failed", "refused_not_expected refused_region_dropped"];
    Failure { ends, far_ends: [far_end; 2], ..here(name, happen, "") }
}

/// A failure of the whole process there.
const fn process(name: &'static str, happen: fn(&mut Ends), ends: [&'static str; 3]) -> Failure {
    Failure {
        ends,
        settings: QUICK,
        goes_on: false,
        needs_process: true,
        ..there(name, happen, "")
    }
}

const READER_ALONE: &str = "no: the other end of a read has no transfer";
const COPIES_ITSELF: &str = "no: the end here copies, and waits for itself only";
const STILL_READ: &str = "no: the memory of a stopped process can be read";

const FAILURES: &[Failure] = &[
    here("cancelled here", |it| it.transfer().cancel(), "cancelled"),
    here("dropped here", |it| it.transfer = None, "dropped"),
    Failure { timeouts_ms: [400, 0], ..here("late here", |_| {}, "deadline") },
    here("region ends here", |it| it.room.end(), "region_dropped"),
    Failure {
        // In one process the receiver may learn of it first, and then refuses the rest of the copy.
        ends: ["peer_lost", "peer_lost", "peer_lost refused_not_expected"],
        far_ends: [""; 2],
        goes_on: false,
        ..here("engine closes here", |it| it.engine.close(), "peer_lost")
    },
    there("cancelled there", |it| it.said = Some(it.there.ask("cancel 1")), "cancelled"),
    Failure { timeouts_ms: [0, 400], ..there("late there", |_| {}, "deadline") },
    Failure {
        ends: [
            "refused_region_dropped",
            "send_failed",
            "refused_not_expected refused_region_dropped",
        ],
        goes_on: false,
        ..there(
            "region ends there",
            |it| it.said = Some(it.there.ask("end_room")),
            "a local region",
        )
    },
    process("process killed", |it| it.there.process().kill(), ["peer_lost"; 3]),
    process(
        "process stopped",
        |it| it.there.process().signal(Signal::STOP),
        [STILL_READ, "peer_lost", "peer_lost"],
    ),
    Failure {
        // The cancel must come before the process is given up, also where CPUs are short.
        settings: &[("path", "auto"), ("peer_timeout_ms", "4000")],
        ..process(
            "cancelled while the process is stopped",
            |it| {
                it.there.process().signal(Signal::STOP);
                it.transfer().cancel();
                it.transfer().ended().unwrap_err();
                assert!(it.peer.lost().is_some(), "until then it may have landed bytes");
            },
            [COPIES_ITSELF, "cancelled", COPIES_ITSELF],
        )
    },
    Failure {
        settings: CALLER,
        needs_process: true,
        ..here(
            "cancelled by a caller that makes the progress and waits",
            |it| it.transfer().cancel(),
            "cancelled",
        )
    },
    Failure {
        settings: CALLER,
        needs_process: true,
        ..here(
            "cancelled by a caller that makes the progress and asks",
            |it| {
                it.transfer().cancel();
                wait_for("the end", || it.transfer().is_over());
            },
            "cancelled",
        )
    },
];

/// Two ends of one host, and a transfer between them.
pub(super) struct Ends {
    kind: Kind,
    pub(super) engine: Engine,
    pub(super) peer: Peer,
    /// Memory of the room.
    memory: Memory,
    pub(super) room: Region,
    pub(super) there: There,
    region_there: RemoteRegion,
    transfer: Option<Transfer>,
    /// Answer of the other end at the time of the failure.
    said: Option<String>,
}

/// The other end. Both take the same orders.
pub(super) enum There {
    Process(Puppet),
    Engine(Messages, Peer, mpsc::Receiver<String>),
}

impl There {
    pub(super) fn ask(&mut self, order: &str) -> String {
        match self {
            Self::Process(puppet) => return puppet.ask(order),
            Self::Engine(messages, peer, _) => {
                let (order, argument) = order.split_once(' ').unwrap_or((order, ""));
                messages.obey(Some(peer), order, argument);
            }
        }
        self.hear()
    }

    pub(super) fn hear(&self) -> String {
        match self {
            Self::Process(puppet) => puppet.hear(),
            Self::Engine(_, _, said) => said.recv_timeout(LONG).expect("the other end answers"),
        }
    }

    fn process(&mut self) -> &mut Puppet {
        match self {
            Self::Process(puppet) => puppet,
            Self::Engine(..) => panic!("it is in this process"),
        }
    }
}

impl Kind {
    /// Returns the order to the other end.
    fn order(self) -> &'static str {
        if self == Self::Receive { "send" } else { "receive" }
    }
}

impl Ends {
    /// Starts both ends. Returns once each knows where the other's memory is: before that, rails carry transfers.
    pub(super) fn start(kind: Kind, is_one_process: bool, settings: Settings) -> Self {
        let len = if kind == Kind::Read { PUPPET_BYTES } else { ROOM };
        let (engine, peer, region_there, there) = if is_one_process {
            let Pair { a, b, to_b, to_a } = pair(settings);
            let seed = PUPPET_SEED;
            let room = if kind == Kind::Read { filled(&b, len, seed) } else { zeroed(&b, len) };
            let region = remote(&a, &room);
            let (sender, said) = mpsc::channel();
            let say = move |words: &str| drop(sender.send(words.to_owned()));
            (a, to_b, region, There::Engine(Messages::new(b, room, say), to_a, said))
        } else if kind == Kind::Read {
            let engine = engine(settings);
            let puppet = Puppet::start(&engine, ON);
            let Two { engine, puppet, peer } = Two::with(engine, puppet);
            (engine, peer, puppet.region, There::Process(puppet))
        } else {
            let engine = engine(settings);
            let mut puppet = Puppet::start(&engine, settings);
            let peer = engine.add_peer(&puppet.metadata).unwrap();
            assert_eq!(puppet.ask(&format!("add {}", hex(&engine.metadata()))), "added");
            assert_eq!(puppet.ask(&format!("room {ROOM}")), "has room");
            (engine, peer, puppet.region, There::Process(puppet))
        };
        let memory = Memory::from(vec![0; len]);
        let room = engine.register(memory.clone()).unwrap();
        let (transfer, said) = (None, None);
        let mut it = Self { kind, engine, peer, memory, room, there, region_there, transfer, said };
        if kind != Kind::Read {
            for order in ["send", "receive"] {
                it.until_copied(&it.room.clone(), order);
            }
        }
        it
    }

    /// Has the other end send, or receive, until no rail carries the messages.
    fn until_copied(&mut self, room: &Region, order: &str) {
        let Self { engine, peer, there, .. } = self;
        wait_for("a message to be copied", || {
            let before = by_rails(engine);
            assert_eq!(there.ask(&format!("{order} 1 {SHORTEST} 1 0")), "posted");
            let part = room.slice(0, SHORTEST).unwrap();
            let here = match order {
                "send" => engine.receive(peer, 1, &part).unwrap(),
                _ => engine.send(peer, 1, &part).unwrap(),
            };
            assert_eq!(here.ended().unwrap().bytes, SHORTEST);
            assert_eq!(there.hear(), format!("{order} 1: {SHORTEST} bytes"));
            by_rails(engine) == before
        });
    }

    /// Begins a transfer of many seconds. Some of its bytes have been copied when this returns.
    fn begin(&mut self, failure: &Failure) {
        let [here_ms, there_ms] = failure.timeouts_ms;
        let (kind, before) = (self.kind, by_rails(&self.engine));
        let order = format!("{} 1 {ROOM} {TIMES} {there_ms}", kind.order());
        assert!(kind == Kind::Read || self.there.ask("peek") == "0", "what comes must be seen");
        self.room.write_at(0, &[MINE]).unwrap();
        if kind == Kind::Send {
            assert_eq!(self.there.ask(&order), "posted");
        }
        let (all, far) = (self.room.all(), self.region_there.all());
        let parts = (0..TIMES).map(|_| all.clone());
        let timeout = Duration::from_millis(if here_ms == 0 { 3_600_000 } else { here_ms });
        let prepared = match kind {
            Kind::Read => {
                let pairs = (0..100_000).map(|_| (all.clone(), far));
                self.engine.prepare(Request::read(&self.peer).segments(pairs).timeout(timeout))
            }
            Kind::Receive => {
                self.engine.prepare(Request::receive(&self.peer, 1).locals(parts).timeout(timeout))
            }
            Kind::Send => {
                self.engine.prepare(Request::send(&self.peer, 1).locals(parts).timeout(timeout))
            }
        };
        let prepared = prepared.unwrap();
        let path = prepared.path();
        assert!(kind != Kind::Read || path.kind == PathKind::SingleCopy, "{path}");
        self.transfer = Some(prepared.post().unwrap());
        if kind == Kind::Receive {
            assert_eq!(self.there.ask(&order), "posted");
        }
        wait_for("bytes to land", || match kind {
            Kind::Send => self.there.ask("peek") == MINE.to_string(),
            _ => first_of(&self.room) != MINE,
        });
        assert_eq!(by_rails(&self.engine), before, "{}: a rail carries it", failure.name);
        assert!(!self.transfer().is_over());
    }

    fn transfer(&self) -> &Transfer {
        self.transfer.as_ref().unwrap()
    }

    /// Returns the kind of error, when nothing of the transfer is under way any more.
    fn ended(&self) -> &'static str {
        let Some(transfer) = &self.transfer else {
            wait_for("its end", || self.engine.stats().ops_outstanding == 0);
            return "dropped";
        };
        KINDS[transfer.ended().expect_err("most of it was not copied").kind().unwrap()]
    }

    /// Returns the outcome of a message at its other end, which may have reported it when the failure happened.
    fn ended_there(&mut self) -> String {
        if let There::Process(puppet) = &self.there {
            puppet.signal(Signal::CONT);
        }
        let said = self.said.take().filter(|said| said != "ended");
        said.unwrap_or_else(|| self.there.hear())
    }

    fn next_is_copied(&mut self) {
        let (other, before) = (zeroed(&self.engine, PUPPET_BYTES), by_rails(&self.engine));
        if self.kind != Kind::Read {
            return self.until_copied(&other, self.kind.order());
        }
        let there = self.region_there.all();
        finished(&self.engine.read(&self.peer, &other.all(), &there).unwrap());
        assert!(bytes(&other) == pattern(PUPPET_BYTES, PUPPET_SEED));
        assert_eq!(by_rails(&self.engine), before);
    }

    /// Reuses the memory of a transfer that is over.
    fn reuse(&self) {
        // Leaves most bytes alone, so that those that land meanwhile are detected.
        let step = self.memory.len() / MARKS;
        (0..MARKS).for_each(|mark| self.memory.write_at(mark * step, &[MINE]).unwrap());
    }

    fn assert_mine(&self, when: &str) {
        let mut found = vec![0; self.memory.len() as usize];
        self.memory.read_at(0, &mut found).unwrap();
        let is_mine = found.iter().step_by(found.len() / MARKS as usize).all(|byte| *byte == MINE);
        assert!(is_mine, "{when}: a late copy landed");
    }
}

fn try_each(kind: Kind, is_one_process: bool) {
    for failure in FAILURES {
        let ends = failure.ends[kind as usize];
        if ends.starts_with("no: ") || is_one_process && failure.needs_process {
            continue;
        }
        try_one(Ends::start(kind, is_one_process, failure.settings), failure, ends);
    }
}

fn try_one(mut it: Ends, failure: &Failure, ends: &str) {
    let (kind, name) = (it.kind, failure.name);
    it.begin(failure);
    let before = by_rails(&it.engine);
    let began = Instant::now();
    // A failure takes effect within a piece, which takes much less than the transfer.
    let limit = match kind {
        Kind::Read => Duration::from_secs(20),
        // A stopped process's memory can be copied to, but the process notices nothing.
        Kind::Send if failure.needs_process => LONG,
        _ => Duration::from_secs(10),
    };
    let soon = || assert!(began.elapsed() < limit, "{name}: {:?}", began.elapsed());
    (failure.happen)(&mut it);
    soon();
    // Memory that has ended is no longer read, even by a reader that does not know yet.
    let is_read_no_more = ends == "refused_region_dropped";
    if is_read_no_more {
        it.reuse();
    }
    let ended = it.ended();
    if !is_read_no_more {
        it.reuse();
    }
    soon();
    assert!(ends.split(' ').any(|end| end == ended), "{name}: {ended}");
    assert_eq!(it.engine.stats().ops_outstanding, 0, "{name}");
    if kind == Kind::Send {
        // Also where the other process is stopped.
        it.room.end();
    }
    if kind != Kind::Read && name != "process killed" {
        let (far, words) = (it.ended_there(), failure.far_ends[kind as usize - 1]);
        assert!(far.contains(words) && !far.ends_with("bytes"), "{name}: {far}");
        soon();
    }
    if failure.goes_on {
        // When a region ends, rails report the reason.
        let by_rails = by_rails(&it.engine) - before;
        assert!(by_rails == 0 || name.starts_with("region"), "{name}: {by_rails} bytes by rails");
        it.next_is_copied();
    }
    it.assert_mine(name);
    drop(it);
    // The engine's threads have ended, too.
    assert!(failure.goes_on || began.elapsed() < limit, "{name}: {:?}", began.elapsed());
}

#[test]
fn reads_of_another_process_end_as_the_table_says() {
    try_each(Kind::Read, false);
}

#[test]
fn receives_from_another_process_end_as_the_table_says() {
    try_each(Kind::Receive, false);
}

#[test]
fn sends_to_another_process_end_as_the_table_says() {
    try_each(Kind::Send, false);
}

#[test]
fn reads_in_one_process_end_as_the_table_says() {
    try_each(Kind::Read, true);
}

#[test]
fn receives_in_one_process_end_as_the_table_says() {
    try_each(Kind::Receive, true);
}

#[test]
fn sends_in_one_process_end_as_the_table_says() {
    try_each(Kind::Send, true);
}
