//! Ends of operations, and whether they are allowed.

use std::time::Duration;

use polyrail::{LostReason, Outcome, PostError, RefusalCode, Transfer, TransferError};
use polyrail_testkit::Rng;

use super::inbound::WATCH_TIME;
use super::operations::{Kind, Owner, Running};
use super::{PEER_TIMEOUT_MS, Worker};
use crate::bytes::{Layout, Shape, Slot};
use crate::talk::{Letter, Oracle};

/// Time after its deadline within which an operation must end: until the peer is given up, plus some time for a busy
/// machine.
const GRACE: Duration = Duration::from_millis(PEER_TIMEOUT_MS + 3000);

/// A slot whose operation has failed: no bytes may land there any more.
pub(super) struct Resting {
    memory: Slot,
    layout: Layout,
    checksum: u32,
    since: Duration,
    what: String,
}

impl Worker {
    pub(super) fn ended(&mut self, id: u64, result: Result<Outcome, TransferError>) {
        let Some(running) = self.running.remove(&id) else {
            return self.violation(Oracle::Unexplained, &format!("operation {id} ended twice"));
        };
        let what = running.describe();
        let now = self.clock.now();
        let lasted = now.saturating_sub(running.posted.0);
        if now > self.end_of_patience(&running) && !running.is_reported {
            let late = format!("{what} ended after {lasted:?}: {result:?}");
            self.violation(Oracle::Hung, &late);
        }
        if lasted.as_millis() as u64 > self.tally.longest_ms {
            self.tally.longest_ms = lasted.as_millis() as u64;
            self.tally.longest = format!("{what}: {}", ending(&result));
        }
        if running.transfer.as_ref().is_some_and(|transfer| transfer.try_wait().is_none()) {
            self.violation(Oracle::Hung, &format!("{what} is told to be over and is not"));
        }
        let count =
            self.tally.kinds.entry(running.kind.name(&running.mark).to_owned()).or_default();
        match &result {
            Ok(outcome) => {
                count.done += 1;
                count.bytes += outcome.bytes;
                self.verify_end(&running, outcome.bytes);
            }
            Err(error) => {
                *count.failed.entry(transfer_error(error)).or_default() += 1;
                if let Some(why) = unexplained(&running, error) {
                    self.violation(Oracle::Unexplained, &format!("{what}: {error}; {why}"));
                }
            }
        }
        // The peer confirms every end except its own loss.
        let is_confirmed =
            running.peer.lost().is_none() && !matches!(result, Err(TransferError::PeerLost { .. }));
        self.settle(running, result.is_ok(), is_confirmed);
    }

    /// Time at which an operation must be over. Each sign of life of a peer restarts its timeout, so the time counts
    /// from the last moment at which the peer was stopped, or continued, or all rails failed.
    fn end_of_patience(&self, running: &Running) -> Duration {
        let outage = self.outages[running.with.0];
        (running.posted.0 + running.deadline).max(outage) + GRACE
    }

    /// Checks the bytes of an operation that is reported done.
    fn verify_end(&mut self, running: &Running, bytes: u64) {
        let expected_bytes = if running.mark.is_empty { 0 } else { running.bytes };
        if bytes != expected_bytes {
            let what = format!("{}: {bytes} bytes are reported", running.describe());
            self.violation(Oracle::Wrong, &what);
        }
        let expected = match running.kind {
            Kind::Write | Kind::Send => return,
            Kind::Receive => self.text.expected(running.mark.seed, &running.layout, bytes),
            Kind::Read => {
                let there = Shape::of(&running.mark).there;
                self.text.read(running.mark.epoch, &running.layout, &there)
            }
        };
        match running.memory.compare(&expected) {
            Ok(None) => self.tally.verified += 1,
            Ok(Some(wrong)) => {
                self.violation(Oracle::Wrong, &format!("{}: {wrong}", running.describe()));
            }
            // The memory's registration was ended, after the operation.
            Err(_) => {}
        }
    }

    /// Informs the other end, and returns the memory.
    pub(super) fn settle(&mut self, running: Running, well: bool, is_confirmed: bool) {
        let (index, generation) = running.with;
        let is_current = self.links.get(&index).is_some_and(|link| link.generation == generation);
        if is_current {
            let mark = running.mark;
            match running.kind {
                Kind::Write if well => self.send(index, Letter::Written(mark)),
                Kind::Write if is_confirmed => self.send(index, Letter::GivenUp(mark)),
                // Bytes of it may still land.
                Kind::Write => {
                    let link = self.links.get_mut(&index);
                    if link.is_some_and(|link| link.target_of(mark.epoch).is_some()) {
                        self.renew(index);
                    }
                }
                Kind::Send => self.send(index, Letter::Sent { mark, well }),
                Kind::Receive => self.received(index, mark.id, well),
                Kind::Read => {}
            }
        }
        let since = self.clock.now();
        let takes_bytes = matches!(running.kind, Kind::Read | Kind::Receive);
        if well || !takes_bytes || running.owner == Owner::Itself {
            return self.give_back(running.memory, &running.layout, running.owner);
        }
        let what = running.describe();
        let Running { memory, layout, .. } = running;
        if let Ok(checksum) = memory.checksum(&layout) {
            self.resting.push(Resting { memory, layout, checksum, since, what });
        }
    }

    /// Cancels operations that are due for it, and reports those that take too long.
    pub(super) fn look_at_running(&mut self, now: Duration) {
        let mut hung = Vec::new();
        let late: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, running)| now > self.end_of_patience(running))
            .map(|(id, _)| *id)
            .collect();
        let mut never_posted = Vec::new();
        let mut chosen = Rng::new(now.as_nanos() as u64);
        for (id, running) in &mut self.running {
            if !running.is_posted {
                // The other end has never requested this message.
                if now > running.posted.0 + running.deadline {
                    never_posted.push(*id);
                }
                continue;
            }
            if running.cancel.is_some_and(|at| now >= at) {
                (running.cancel, running.is_cancelled) = (None, true);
                match chosen.per_mille(300) {
                    // Dropping cancels.
                    true => running.transfer = None,
                    false => running.transfer.iter().for_each(Transfer::cancel),
                }
            }
            if running.end_region.is_some_and(|at| now >= at) {
                (running.end_region, running.has_no_region) = (None, true);
                running.memory.region.end();
            }
            if late.contains(id) && !running.is_reported {
                running.is_reported = true;
                hung.push(running.describe());
            }
        }
        for what in hung {
            self.violation(Oracle::Hung, &format!("{what} does not end"));
        }
        for id in never_posted {
            if let Some(running) = self.running.remove(&id) {
                self.settle(running, false, false);
            }
        }
    }

    pub(super) fn look_at_resting(&mut self, now: Duration) {
        let over = |resting: &mut Resting| now >= resting.since + WATCH_TIME;
        let over: Vec<Resting> = self.resting.extract_if(.., over).collect();
        for Resting { memory, layout, checksum, what, .. } in over {
            self.tally.watched += 1;
            if memory.checksum(&layout) != Ok(checksum) {
                self.violation(Oracle::Wrong, &format!("bytes of {what} landed after its end"));
            }
            self.give_back(memory, &layout, Owner::Arena);
        }
    }
}

/// Reason why this error is unexpected, if it is.
fn unexplained(running: &Running, error: &TransferError) -> Option<&'static str> {
    use RefusalCode::{NotExpected, RegionDropped, StaleKey, UnknownRegion};
    match error {
        TransferError::Cancelled if !running.is_cancelled => Some("nobody has cancelled it"),
        TransferError::Deadline { .. } if running.posted.1.elapsed() < running.deadline => {
            Some("its deadline has not come yet")
        }
        TransferError::RegionDropped if !running.has_no_region => Some("nobody has ended it"),
        TransferError::Refused { code, .. }
            if !matches!(code, NotExpected | RegionDropped | StaleKey | UnknownRegion) =>
        {
            Some("nothing was wrong with it")
        }
        TransferError::TooLong { len, capacity } if len <= capacity => Some("it fits"),
        TransferError::Device { .. } | TransferError::Forked => Some("it can't happen here"),
        _ => None,
    }
}

fn ending(result: &Result<Outcome, TransferError>) -> String {
    result.as_ref().map_or_else(transfer_error, |_| "done".to_owned())
}

/// Name of an error, for counting.
fn transfer_error(error: &TransferError) -> String {
    match error {
        TransferError::Deadline { .. } => "deadline".to_owned(),
        TransferError::Cancelled => "cancelled".to_owned(),
        TransferError::Refused { code, .. } => format!("refused: {code:?}"),
        TransferError::PeerLost { why, .. } => format!("peer lost: {}", lost(why)),
        TransferError::RegionDropped => "region dropped".to_owned(),
        TransferError::TooLong { .. } => "too long".to_owned(),
        TransferError::SendFailed { .. } => "send failed".to_owned(),
        other => other.to_string(),
    }
}

pub(super) fn post_error(error: &PostError) -> String {
    match error {
        PostError::Busy { .. } => "busy".to_owned(),
        PostError::PeerGone { why, .. } => format!("peer gone: {}", lost(why)),
        other => other.to_string(),
    }
}

fn lost(why: &LostReason) -> &'static str {
    match why {
        LostReason::Removed => "removed",
        LostReason::Closed => "closed",
        LostReason::GivenUp { .. } => "given up",
        LostReason::Unreachable { .. } => "unreachable",
        LostReason::NoProgress { .. } => "no progress",
        LostReason::Refused(_) => "refused",
        LostReason::Anew => "began anew",
        LostReason::OtherMetadata => "other metadata",
        _ => "other",
    }
}
