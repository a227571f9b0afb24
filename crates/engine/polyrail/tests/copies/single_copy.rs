//! Transfers between host memories of one host that CPUs copy once: in one process, and between
//! processes, one of which is killed, stopped, or allowed nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{CALLER, ON, QUICK, by_rails, first_of};
use crate::common::puppet::{PUPPET_BYTES, PUPPET_SEED, Puppet, UNTRACEABLE, hex};
use crate::common::*;
use polyrail::{
    Access, Engine, LostReason, Memory, PathKind, Peer, PostError, Region, Registrable, Request,
    TransferError,
};
use rustix::process::Signal;

/// A puppet process, and this one's engine.
pub(super) struct Two {
    pub(super) engine: Engine,
    pub(super) puppet: Puppet,
    pub(super) peer: Peer,
}

impl Two {
    fn start(settings: &[(&str, &str)]) -> Self {
        let engine = engine(settings);
        let puppet = Puppet::start(&engine, settings);
        Self::with(engine, puppet)
    }

    /// Waits until the puppet has answered how its memory is reached: on a busy machine that takes longer than a
    /// request waits.
    pub(super) fn with(engine: Engine, puppet: Puppet) -> Self {
        let peer = engine.add_peer(&puppet.metadata).unwrap();
        let two = Self { engine, puppet, peer };
        wait_for("the answer", || !two.write().contains("answer"));
        let there = two.puppet.region.all();
        let source = filled(&two.engine, PUPPET_BYTES, PUPPET_SEED);
        finished(&two.engine.write(&two.peer, &source.all(), &there).unwrap());
        two
    }

    /// Writes to the puppet, and returns the path that was taken.
    fn write(&self) -> String {
        let source = zeroed(&self.engine, PUPPET_BYTES);
        let request = Request::write(&self.peer).segment(source.all(), self.puppet.region.all());
        let prepared = self.engine.prepare(request).unwrap();
        finished(&prepared.post().unwrap());
        prepared.path().to_string()
    }

    /// Reads the whole of the puppet's memory, and asserts the path.
    fn read(&self, into: &Region) -> Result<(), TransferError> {
        let request = Request::read(&self.peer).segment(into.all(), self.puppet.region.all());
        let prepared = self.engine.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
        prepared.post().unwrap().ended().map(drop)
    }
}

/// Checks that an event took effect within a piece, which takes much less than the transfer.
fn soon(began: Instant) {
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// Waits until a peer writes into the region without using a rail.
fn until_copied(engine: &Engine, room: &Region) {
    wait_for("its writes", || {
        let before = by_rails(engine);
        room.write_at(0, &[0]).unwrap();
        wait_for("a write", || first_of(room) != 0);
        by_rails(engine) == before
    });
}

#[test]
fn bytes_of_any_size_and_alignment_arrive_in_one_process_and_no_rail_carries_them() {
    let p = pair(ON);
    let mut sum = 0;
    for len in [4096, 4097, 65_536, 65_537, 1_000_003, (1 << 20) + 1, 17 << 20] {
        for shift in [0, 1, 7] {
            let want = pattern(len, 5);
            let (source, target) = (filled(&p.a, len, 5), zeroed(&p.b, len + shift));
            let there = remote(&p.a, &target).slice(shift as u64, len as u64).unwrap();
            let request = Request::write(&p.to_b).segment(source.all(), there);
            let prepared = p.a.prepare(request).unwrap();
            assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
            assert_eq!(prepared.post().unwrap().ended().unwrap().bytes, len as u64);
            assert!(bytes(&target)[shift..] == want, "{len} {shift}");
            let back = zeroed(&p.a, len);
            finished(&p.a.read(&p.to_b, &back.all(), &there).unwrap());
            assert!(bytes(&back) == want, "{len} {shift}");
            sum += 2 * len as u64;
        }
    }
    assert_eq!((by_rails(&p.a), p.a.stats().totals.peer_copy_bytes), (0, sum));
    // Short transfers take the rails.
    let (source, target) = (filled(&p.a, 8, 5), zeroed(&p.b, 8));
    finished(&p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap());
    assert_eq!((by_rails(&p.a), bytes(&target)), (8, pattern(8, 5)));
}

#[test]
fn bytes_of_any_size_arrive_in_another_process_and_no_rail_carries_them() {
    let mut two = Two::start(ON);
    let (engine, peer) = (&two.engine, &two.peer);
    let before = by_rails(engine);
    let back = zeroed(engine, PUPPET_BYTES);
    two.read(&back).unwrap();
    assert!(bytes(&back) == pattern(PUPPET_BYTES, PUPPET_SEED));
    for (round, len) in [4096, 4097, 65_537, 1_000_003, PUPPET_BYTES - 1].into_iter().enumerate() {
        let (want, at) = (pattern(len, round as u64), u64::from(round % 2 == 1));
        let source = engine.register(Memory::from(want.clone())).unwrap();
        let there = two.puppet.region.slice(at, len as u64).unwrap();
        finished(&engine.write(peer, &source.all(), &there).unwrap());
        let here = zeroed(engine, len);
        finished(&engine.read(peer, &here.all(), &there).unwrap());
        assert!(bytes(&here) == want, "{len}");
    }
    assert_eq!(by_rails(engine), before);
    // In the other direction, which the puppet finds by itself.
    let room = zeroed(engine, PUPPET_BYTES);
    two.puppet.flood(&two.engine, &room);
    until_copied(&two.engine, &room);
    wait_for("all of it", || bytes(&room)[PUPPET_BYTES - 9..].iter().any(|byte| *byte != 0));
}

#[test]
fn lists_of_segments_are_copied_to_their_places() {
    let two = Two::start(ON);
    // Pieces of odd size and place, backwards, from two regions alternately.
    let (count, len) = (1500_u64, 1021_u64);
    let patterns = [1, 2].map(|seed| pattern((count * len) as usize, seed));
    let sources =
        patterns.each_ref().map(|it| two.engine.register(Memory::from(it.clone())).unwrap());
    let place = |i: u64| (count - 1 - i) * 2048 + i % 7;
    let segments = (0..count).map(|i| {
        let from = sources[(i % 2) as usize].slice(i * len, len).unwrap();
        (from, two.puppet.region.slice(place(i), len).unwrap())
    });
    let write = two.engine.prepare(Request::write(&two.peer).segments(segments)).unwrap();
    assert_eq!(write.path().kind, PathKind::SingleCopy, "{}", write.path());
    finished(&write.post().unwrap());
    let all = zeroed(&two.engine, PUPPET_BYTES);
    two.read(&all).unwrap();
    let mut want = pattern(PUPPET_BYTES, PUPPET_SEED);
    for i in 0..count {
        let (from, to) = ((i * len) as usize, place(i) as usize);
        let piece = &patterns[(i % 2) as usize][from..from + len as usize];
        want[to..to + len as usize].copy_from_slice(piece);
    }
    assert!(bytes(&all) == want);
}

#[test]
fn a_notification_comes_when_the_bytes_are_in_place_and_says_that_the_transfer_is_done() {
    let mut two = Two::start(ON);
    for round in 0..20 {
        let source = filled(&two.engine, PUPPET_BYTES, round);
        let request = Request::write(&two.peer).segment(source.all(), two.puppet.region.all());
        let request = request.notification(round.to_string().into_bytes());
        let prepared = two.engine.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
        let write = prepared.post().unwrap();
        assert_eq!(two.puppet.ask(&format!("check {round}")), format!("{round} true"));
        finished(&write);
    }
}

/// The closed engine's memory lives on, and its goodbye may not be read yet.
#[test]
fn nothing_is_copied_to_or_from_an_engine_of_this_process_that_has_closed() {
    for progress in ["proxy", "caller"] {
        let settings = [ON, &[("progress", progress)]].concat();
        let (a, b, late) = (engine(&settings), engine(&settings), engine(&settings));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let (near, far) = (filled(&a, PUPPET_BYTES, 1), zeroed(&b, PUPPET_BYTES));
        let there = remote(&a, &far);
        let prepared = [
            a.prepare(Request::write(&to_b).segment(near.all(), there.all())).unwrap(),
            a.prepare(Request::read(&to_b).segment(near.all(), there.all())).unwrap(),
        ];
        for one in &prepared {
            assert_eq!(one.path().kind, PathKind::SingleCopy, "{}", one.path());
        }
        let metadata = b.metadata();
        b.close();
        for one in &prepared {
            let refused = one.post().map(drop).unwrap_err();
            let is_told = matches!(&refused, PostError::PeerGone { why: LostReason::Closed, .. });
            assert!(is_told, "progress={progress}: {refused}");
        }
        // An engine that adds it only now gets the same error.
        let to_b = late.add_peer(&metadata).unwrap();
        let refused = late.write(&to_b, &filled(&late, 8, 1).all(), &there.slice(0, 8).unwrap());
        let refused = refused.map(drop).unwrap_err();
        assert!(refused.to_string().ends_with("it closed"), "progress={progress}: {refused}");
        assert!(bytes(&far) == vec![0; PUPPET_BYTES] && bytes(&near) == pattern(PUPPET_BYTES, 1));
    }
}

#[test]
fn callers_that_make_the_progress_copy_and_are_heard() {
    let engine = engine(CALLER);
    let puppet = Puppet::start(&engine, ON);
    let mut two = Two::with(engine, puppet);
    let source = filled(&two.engine, PUPPET_BYTES, 8);
    let request = Request::write(&two.peer).segment(source.all(), two.puppet.region.all());
    let prepared = two.engine.prepare(request.notification(b"8".to_vec())).unwrap();
    assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
    finished(&prepared.post().unwrap());
    assert_eq!(two.puppet.ask("check 8"), "8 true");
}

#[test]
fn a_peer_that_is_stopped_in_mid_copy_is_lost_to_a_transfer_with_a_notification() {
    let two = Two::start(QUICK);
    let source = filled(&two.engine, PUPPET_BYTES, 3);
    let pair = || (source.all(), two.puppet.region.all());
    let request = Request::write(&two.peer).segments((0..500).map(|_| pair()));
    let request = request.notification(b"never".to_vec());
    let prepared = two.engine.prepare(request).unwrap();
    assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
    let transfer = prepared.post().unwrap();
    two.puppet.signal(Signal::STOP);
    let began = Instant::now();
    // A stopped process's memory can be copied to, but the process notices nothing.
    let ended = transfer.ended();
    assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}");
    soon(began);
    source.end();
    soon(began);
}

#[test]
fn a_writer_that_is_killed_or_stopped_in_mid_copy_keeps_no_region_from_ending() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut two = Two::start(QUICK);
        let memory = Memory::from(vec![0; PUPPET_BYTES]);
        let room = two.engine.register(memory.clone()).unwrap();
        two.puppet.flood(&two.engine, &room);
        until_copied(&two.engine, &room);
        match signal {
            Signal::KILL => two.puppet.kill(),
            other => two.puppet.signal(other),
        }
        let began = Instant::now();
        room.end();
        soon(began);
        // From now on the memory is used for something else.
        let mine = vec![0xee; PUPPET_BYTES];
        memory.write_at(0, &mine).unwrap();
        if signal == Signal::STOP {
            two.puppet.signal(Signal::CONT);
            let ended = two.puppet.hear();
            assert!(ended.starts_with("flood ended: "), "{ended}");
        }
        let mut found = vec![0; PUPPET_BYTES];
        memory.read_at(0, &mut found).unwrap();
        let is_late = |byte: &u8| *byte != 0xee;
        let late = [found.iter().position(is_late), found.iter().rposition(is_late)];
        assert_eq!(late, [None; 2], "{signal:?}: a late copy landed");
    }
}

#[test]
fn settings_and_rights_of_either_end_keep_bytes_on_the_rails_and_say_so() {
    let off: &[(&str, &str)] = &[("path", "device")];
    let cases = [
        (off, ON, "tcp: the setting path says device"),
        (ON, off, "tcp: the peer's settings forbid it"),
        (&[("path", "tcp")], ON, "tcp: the setting path says tcp"),
    ];
    for (here, there, expected) in cases {
        let p = acquainted(engine(here), engine(there));
        let (source, targets) = (filled(&p.a, 1 << 20, 1), [(); 2].map(|()| zeroed(&p.b, 1 << 20)));
        let receive = p.b.receive(&p.to_a, 1, &targets[1].all()).unwrap();
        let there = remote(&p.a, &targets[0]);
        let write = Request::write(&p.to_b).segment(source.all(), there.all());
        let send = Request::send(&p.to_b, 1).local(source.all());
        for prepared in [p.a.prepare(write).unwrap(), p.a.prepare(send).unwrap()] {
            assert_eq!(prepared.path().to_string(), expected);
            finished(&prepared.post().unwrap());
        }
        finished(&receive);
        assert!(targets.iter().all(|target| bytes(target) == pattern(1 << 20, 1)));
        assert_eq!(by_rails(&p.a), 2 << 20);
    }
    // A peer must not open memory that it may only write.
    let p = apart(ON, ON);
    let source = filled(&p.a, 1 << 20, 1);
    let target = p.b.register(Memory::from(vec![0; 1 << 20]).with_access(Access::WRITE)).unwrap();
    let there = remote(&p.a, &target);
    let prepare =
        || p.a.prepare(Request::write(&p.to_b).segment(source.all(), there.all())).unwrap();
    wait_until_shared(|| prepare().path().to_string());
    let prepared = prepare();
    assert_eq!(prepared.path().to_string(), format!("{SHARED}{RIGHTS}"));
    finished(&prepared.post().unwrap());
    assert!(bytes(&target) == pattern(1 << 20, 1));
}

/// The first requests do not wait for the peer's answer whether it opens memory: the rails carry them.
fn wait_until_shared(path: impl Fn() -> String) {
    wait_for("the answer whether it opens memory", || {
        let path = path();
        assert!(path.starts_with(SHARED) || path.contains("has not answered yet"), "{path}");
        path.starts_with(SHARED)
    });
}

/// Path text of a request that goes through memory that both processes have open, before the reason.
const SHARED: &str = "shared memory: both ends are on this host; no single copy: ";
const RIGHTS: &str = "the peer may not both read and write it";

/// Returns the payload so far that was left in memory that the peer has open.
fn shared_bytes(engine: &Engine) -> u64 {
    engine.stats().peers.iter().map(|peer| peer.shared_bytes).sum()
}

#[test]
fn what_can_not_be_copied_once_goes_through_memory_that_both_processes_have_open() {
    let engine = engine(ON);
    let mut puppet = Puppet::start(&engine, ON);
    // A write of the other process into memory that it may only write.
    let target = Memory::from(vec![0; PUPPET_BYTES]).with_access(Access::WRITE);
    let target = engine.register(target).unwrap();
    assert_eq!(puppet.ask("fill 9"), "filled");
    let order = format!("write {} {}", hex(&engine.metadata()), hex(&target.describe()));
    wait_for("the answer whether it opens memory", || !puppet.ask(&order).contains("answer"));
    let path = puppet.ask(&order);
    assert!(path.starts_with(SHARED) && path.ends_with(RIGHTS), "{path}");
    assert!(bytes(&target) == pattern(PUPPET_BYTES, 9));
}

#[test]
fn a_peer_that_answers_nothing_keeps_no_request_waiting_for_long() {
    let engine = engine(&[("path", "auto"), ("connect_timeout_ms", "20000")]);
    let puppet = Puppet::start(&engine, ON);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let source = filled(&engine, PUPPET_BYTES, 1);
    engine.notify(&peer, b"it is connected").unwrap().join().unwrap();
    puppet.signal(Signal::STOP);
    let began = Instant::now();
    let request = Request::write(&peer).segment(source.all(), puppet.region.all());
    let path = engine.prepare(request).unwrap().path().to_string();
    assert!(path.starts_with("tcp: the peer did not answer in time"), "{path}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn what_is_short_and_can_not_be_copied_once_takes_the_rails() {
    let p = apart(ON, ON);
    let target = Memory::from(vec![0; 1 << 20]).with_access(Access::WRITE);
    let target = p.b.register(target).unwrap();
    let (source, there) = (filled(&p.a, 1 << 20, 3), remote(&p.a, &target));
    let path = |len| {
        let (from, to) = (source.slice(0, len).unwrap(), there.slice(0, len).unwrap());
        p.a.prepare(Request::write(&p.to_b).segment(from, to)).unwrap().path().to_string()
    };
    wait_until_shared(|| path(1 << 20));
    let (short, long) = (path(32 << 10), path(1 << 20));
    assert!(
        short.starts_with(&format!("tcp: {RIGHTS}; not through shared memory: it is sh")),
        "{short}"
    );
    assert_eq!(long, format!("{SHARED}{RIGHTS}"));
    finished(&p.a.write(&p.to_b, &source.all(), &there.all()).unwrap());
    assert!(bytes(&target) == pattern(1 << 20, 3));
    assert_eq!(shared_bytes(&p.a), 1 << 20, "no rail has carried a byte of it");
}

fn own_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// A user that has no rights.
const NOBODY: u32 = 65_534;
/// Command for tests that need another user, or namespaces.
const AS_ROOT: &str = "sudo -E cargo test -p polyrail --test copies single_copy";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether another user may run this program, which its folder may forbid.
fn may_be_run_by_nobody() -> bool {
    use std::os::unix::process::CommandExt;
    own_program().uid(NOBODY).arg("--list").output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_peer_of_another_user_is_reached_over_the_rails() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return polyrail_skip::skip("only root can start another user's process", AS_ROOT);
    }
    if !may_be_run_by_nobody() {
        return polyrail_skip::skip("another user can't run this program", AS_ROOT);
    }
    let engine = engine(ON);
    let mut command = own_program();
    command.uid(NOBODY);
    let puppet = Puppet::start_by(command, &engine, ON);
    let path = Two::with(engine, puppet).write();
    assert!(
        path.starts_with("tcp: ") && path.contains("of different users (0 and 65534)")
            || path.contains("of different users (65534 and 0)"),
        "{path}"
    );
}

#[test]
fn a_peer_in_another_pid_namespace_is_reached_over_the_rails() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let can = command.arg("true").output().is_ok_and(|output| output.status.success());
    if !can {
        return polyrail_skip::skip("`unshare --pid` is not possible here", AS_ROOT);
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(std::env::current_exe().unwrap());
    let engine = engine(ON);
    let puppet = Puppet::start_by(command, &engine, ON);
    let path = Two::with(engine, puppet).write();
    assert!(path.starts_with("tcp: ") && path.contains("PID namespaces"), "{path}");
}

#[test]
fn a_peer_that_nobody_may_trace_is_reached_over_the_rails() {
    use std::os::unix::process::CommandExt;
    // Root may trace any process.
    if is_root() && !may_be_run_by_nobody() {
        return polyrail_skip::skip("another user can't run this program", AS_ROOT);
    }
    let engine = engine(&[]);
    let start = |is_untraceable: bool| {
        let mut command = own_program();
        if is_root() {
            command.uid(NOBODY);
        }
        if is_untraceable {
            command.env(UNTRACEABLE, "1");
        }
        Puppet::start_by(command, &engine, ON)
    };
    let (mut writer, mut target) = (start(false), start(true));
    assert_eq!(writer.ask("fill 9"), "filled");
    let there = hex(&target.description);
    // On a busy machine the answer may take longer than a request waits.
    let order = format!("write {} {there}", hex(&target.metadata));
    let path = (0..100).map(|_| writer.ask(&order)).find(|path| !path.contains("answer")).unwrap();
    assert!(path.starts_with("tcp: ") && path.contains("PR_SET_DUMPABLE"), "{path}");
    // The bytes are still there.
    assert_eq!(target.ask("holds 9"), "true");
}
