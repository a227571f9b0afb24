//! What keeps a size from being faster, decided from numbers of the same run.
//!
//! The rules, in the order in which they are asked; the first that holds is the verdict:
//!
//! 1. `depth`: four times the depth was tried, and made it faster by a fifth at least each time. Not asked
//!    where a process did not run for a tenth of the time, or its quota had run out: then the trial shows when
//!    that was.
//! 2. `network`: the rate is at least 85 % of the rails' line rate (the lab's, or what token buckets and drivers
//!    report), of the end whose rails carry less.
//!    Headers take 4 to 6 % of it, so that 95 % are the most there is.
//! 3. `memory`: the rate is at least 80 % of what copying reaches that uses memory as the transfer does: the
//!    same pieces, as large a footprint, as many threads on the same CPUs ([`super::machine`]).
//! 4. `posting`: the thread that posts did so for at least 95 % of the time, and did not wait.
//! 5. `peer`: the process at the other side did not run at all for a tenth of the time more than this one: it was stopped.
//! 6. `cpu`: the CPU quota of a control group of this process had run out in a quarter of its periods. Or this
//!    process did not run at all for a tenth of the time: it was stopped. Or the processes used at least 90 %
//!    of the CPUs they may use, or the machine was at least 90 % busy (softirqs included) and a third of that
//!    were the processes, or one thread used at least 95 % of its CPU; looking for work and finding none does
//!    not count. With `--sample` also: one CPU that works for us, be it on a thread or on softirqs, was at
//!    least 95 % busy; then the text says which CPU, and with what. Or other programs used more of the
//!    machine's CPUs than the transfer did, and a thread of ours was ready to run and had no CPU for a quarter
//!    of the time.
//! 7. `peer`: the same at the other side, where that is another machine; on the same one, a process that did
//!    not run, or a thread that used at least 95 % of its CPU. Or the receiver's kernel had no room for a
//!    third of the time, though nothing there was busy: who should read does not.
//! 8. `network` again: nearly all bytes of rails in one subnet arrive by one rail's NIC ([`super::one_nic`]), which
//!    may lose packets for that. Or a rail sent at least 1 % of its bytes twice, as packets are lost on the way, or the
//!    queue of its own interface dropped 1 % of its packets.
//! 9. `message_rate`: transfers per second are at least 85 % of those of 8 bytes at the same depth; or they
//!    are of 8 bytes at most, and four times the depth gained less than a fifth.
//! 10. `depth`: fewer bytes were outstanding than the window has room for, and nobody tried whether more of
//!     them help, or they did a little. One transfer at a time is bound by its latency; several may leave rails
//!     without work, and the text says how many.
//! 11. `network` once more: a rail is down while others carry the bytes, and nothing above is the limit. A rail that
//!     went down in the middle of the sample makes this come before 8, and instead of 2. A rail whose chunks were sent
//!     again, or that was down in a sample of which the rate is a mean, makes it come before 8. A rail is
//!     down if none of its flows is connected, or if its interface was down from the start. Rule 2 holds the rate
//!     against the rails that are up. Behind every verdict stands which rails are down, why, and what to look at, and
//!     which are not used, as no rail of the end opposite is in their network or this end has no channel for them: a line
//!     for each.
//!     The same holds of rails in one subnet some of whose bytes arrive by another rail's NIC.
//! 12. `window`: the sending flows stood with a full window at least half of the time.
//!
//! Of one message at a time (`--latency`) the depth is the verdict. Bytes that devices copied themselves
//! touch neither CPU nor memory of the host: there the verdict is `device`, unless the posting thread
//! holds it up. Bytes that CPUs of the host copied beside the rails are judged without the rules of rails and windows,
//! 2, 8, 10, 11 and 12.
//!
//! A transfer that exceeds a limit by more than 5 % is not limited by it, whatever the measurement said.
//! The text then says so, and the verdict is another limit. If no limit holds, the text names the nearest
//! one, and says that the transfer does not reach it.

use polyrail_report::{Limit, LimitKind};

use super::causes::Cause;
use super::down;
use super::evidence::Evidence;
use super::one_nic;
use super::rules::{self, Candidate};

/// A verdict, and every cause that its text names.
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
        // Without the rails that were down for a part of the time the line says too little, with them too much.
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

/// A limit that the transfer exceeds by more than this did not limit it.
const PASSED_SHARE: f64 = 1.05;

/// `excluded`: what was tried and is no limit.
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
        // A window or a device is always among them.
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
