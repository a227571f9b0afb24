//! Verdict on a size: the limit that keeps it from being faster, decided from numbers of the same run.
//!
//! The rules follow in the order in which they are checked. The first one that holds is the verdict.
//!
//! 1. `depth`: four times the depth was tried, and was at least 20 % faster each time. The trial is left out if one of
//!    2 to 7 holds. The rule is skipped if a process did not run for a tenth of the time, or its quota had run out: the
//!    trial then only shows when that happened.
//! 2. `network`: the rate is at least 85 % of the line rate of the rails (the lab's, or that of token buckets and
//!    drivers), of the end whose rails carry less. Headers take 4 to 6 % of the line rate, so at most 95 % are
//!    possible.
//! 3. `memory`: the rate is at least 80 % of the rate of copies that use memory like the transfer: the same pieces, the
//!    same footprint, and as many threads on the same CPUs ([`super::machine`]).
//! 4. `posting`: the posting thread was posting, and not waiting, for at least 95 % of the time.
//! 5. `peer`: the other process did not run for a tenth of the time more than this one: it was stopped.
//! 6. `cpu`: the CPU quota of this process's control group had run out in a quarter of its periods. Or this process did
//!    not run for a tenth of the time: it was stopped. Or the processes used at least 90 % of the CPUs that they may
//!    use. Or the machine was at least 90 % busy, softirqs included, and the processes account for a third of that. Or
//!    one thread used at least 95 % of its CPU; looking for work and finding none does not count. With `--sample` also:
//!    a CPU that works for the transfer, in a thread or in softirqs, was at least 95 % busy; the text then names the
//!    CPU and the work. Or other programs used more of the machine's CPUs than the transfer, and a thread of the
//!    transfer was ready to run but had no CPU for a quarter of the time.
//! 7. `peer`: the same at the other end, if that is another machine. On the same machine: a process that did not run,
//!    or a thread that used at least 95 % of its CPU. Or the receiver's kernel had no room for a third of the time
//!    although no thread there was busy: the reader does not read.
//! 8. `network`: nearly all bytes of rails in one subnet arrive through one rail's NIC ([`super::one_nic`]), which may
//!    lose packets because of that. Or a rail retransmitted at least 1 % of its bytes, because packets are lost in the
//!    network. Or the queue of its own interface dropped 1 % of its packets.
//! 9. `message_rate`: the transfers per second are at least 85 % of those of 8 bytes at the same depth. Or the
//!    transfers have at most 8 bytes, and four times the depth gained less than 20 %.
//! 10. `depth`: fewer bytes were outstanding than the window has room for, and more of them were not tried or helped a
//!     little. A single transfer is bound by its latency. Several may leave rails without work, and the text says how
//!     many.
//! 11. `network`: a rail is down while others carry the bytes, and nothing above is the limit. This rule comes before 8
//!     and replaces 2 if a rail went down during the sample, or was down in one of the samples behind the mean rate. It
//!     comes before 8 if a rail's chunks were resent. A rail is down if none of its flows is connected, or if its
//!     interface was down from the start. Rule 2 compares the rate with the rails that are up. After every verdict, a
//!     line for each rail that is down gives the reason and the place to look. More lines name the rails that are not
//!     used, because no rail of the opposite end is in their network or this end has no channel for them. The same
//!     applies to rails in one subnet some of whose bytes arrive through another rail's NIC.
//! 12. `window`: the sending flows had a full window for at least half of the time.
//!
//! For one message at a time (`--latency`) the verdict is the depth. Bytes that devices copy themselves touch neither
//! CPU nor memory of the host: the verdict is `device`, unless the posting thread delays them. Bytes that CPUs of the
//! host copy without rails are judged without the rules for rails and windows: 2, 8, 10, 11 and 12.
//!
//! A limit that the transfer exceeds by more than 5 % does not limit the transfer, whatever the measurement shows. The
//! text then says so, and the verdict is another limit. If no limit holds, the text names the nearest one, and says
//! that the transfer does not reach it.

use polyrail_report::{Limit, LimitKind};

use super::causes::Cause;
use super::down;
use super::evidence::Evidence;
use super::one_nic;
use super::rules::{self, Candidate};

/// Verdict, and every cause that its text names.
pub(crate) struct Judged {
    pub(crate) limit: Limit,
    pub(crate) causes: Vec<Cause>,
}

pub(crate) fn judge(evidence: &Evidence) -> Judged {
    let mut candidates = vec![];
    if evidence.ping_pong {
        candidates.push(rules::depth(evidence));
    } else if let Some(path) = evidence.beside_rails.as_ref().filter(|path| path.by_devices) {
        candidates.extend(rules::posting(evidence));
        candidates.extend(rules::thread(&evidence.local, LimitKind::Cpu, "here"));
        candidates.push(rules::device(evidence, &path.name));
    } else if evidence.beside_rails.is_some() {
        candidates.extend(rules::deeper(evidence));
        candidates.extend(rules::memory(evidence));
        candidates.extend(rules::posting(evidence));
        candidates.extend(rules::peer_stands_still(evidence));
        candidates.extend(rules::cpu(evidence));
        candidates.extend(rules::peer(evidence));
        candidates.extend(rules::message_rate(evidence));
    } else {
        candidates.extend(rules::deeper(evidence));
        // The line rate is too low without the rails that were down for part of the time, and too high with them.
        candidates.extend(rules::network(evidence).filter(|_| !down::is_in_part(evidence)));
        candidates.extend(rules::memory(evidence));
        candidates.extend(rules::posting(evidence));
        candidates.extend(rules::peer_stands_still(evidence));
        candidates.extend(rules::cpu(evidence));
        candidates.extend(rules::peer(evidence));
        candidates.extend(rules::no_room(evidence));
        candidates.extend(down::rails_down(evidence).filter(|_| down::disturbs(evidence)));
        candidates.extend(one_nic::limit(evidence));
        candidates.extend(rules::lost(evidence));
        candidates.extend(rules::dropped(&evidence.local, "here"));
        candidates.extend(rules::dropped(&evidence.peer, "at the other side"));
        candidates.extend(rules::message_rate(evidence));
        candidates.extend(rules::room_for_depth(evidence));
        candidates.extend(down::rails_down(evidence));
        candidates.extend(one_nic::shared(evidence));
        candidates.push(rules::window(evidence));
    }
    let (mut limit, cause) = decide(candidates, rules::tried_in_vain(evidence));
    let mut causes = vec![cause];
    if let Some(text) = rules::protection(evidence, limit.verdict) {
        limit.because += &text;
        causes.push(Cause::Protection);
    }
    if evidence.beside_rails.is_none() {
        for line in down::names(evidence).into_iter().chain(one_nic::names(evidence)) {
            limit.because += &format!("\n{line}");
        }
        causes.extend(down::causes(evidence));
        causes.extend(one_nic::causes(evidence));
    }
    Judged { limit, causes }
}

/// Whether more outstanding transfers could still be the limit: no limit is reached that they would leave as it is.
pub(crate) fn is_open(evidence: &Evidence) -> bool {
    let mut candidates = vec![];
    if evidence.beside_rails.is_none() && !down::is_in_part(evidence) {
        candidates.extend(rules::network(evidence));
    }
    candidates.extend(rules::memory(evidence));
    candidates.extend(rules::posting(evidence));
    candidates.extend(rules::peer_stands_still(evidence));
    candidates.extend(rules::cpu(evidence));
    candidates.extend(rules::peer(evidence));
    let is_reached = |it: &Candidate| it.share <= PASSED_SHARE && it.share / it.from >= 1.0;
    !candidates.iter().any(is_reached)
}

/// Maximum share of a limit. A limit that the transfer exceeds by more did not limit it.
const PASSED_SHARE: f64 = 1.05;

/// Chooses the verdict. `excluded`: a change that was tried and is not the limit.
fn decide(candidates: Vec<Candidate>, excluded: Option<String>) -> (Limit, Cause) {
    let (passed, candidates): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.share > PASSED_SHARE);
    let nearness = |candidate: &Candidate| candidate.share / candidate.from;
    let reached = candidates.iter().find(|candidate| nearness(candidate) >= 1.0);
    let nearest = candidates.iter().max_by(|a, b| nearness(a).total_cmp(&nearness(b)));
    let (verdict, cause, mut because) = match (reached, nearest, passed.first()) {
        (Some(Candidate { kind, cause, because, .. }), ..) => (*kind, *cause, because.clone()),
        (None, Some(Candidate { kind, cause, because, .. }), _) => {
            let excluded = excluded.map_or(String::new(), |it| format!("{it}; "));
            (*kind, *cause, format!("no limit is reached; {excluded}the nearest: {because}"))
        }
        (None, None, Some(Candidate { kind, cause, .. })) => {
            (*kind, *cause, "no limit is known".to_owned())
        }
        // A window or a device is always a candidate.
        (None, None, None) => (LimitKind::Window, Cause::Window, "nothing was measured".to_owned()),
    };
    for Candidate { kind, because: what, .. } in &passed {
        because += &format!("; {kind} is not the limit: {what}, so that figure is too low here");
    }
    (Limit { verdict, because }, cause)
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
