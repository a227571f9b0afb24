//! What keeps a size from being faster, decided from numbers of the same run.
//!
//! The rules, in the order in which they are asked; the first that holds is the verdict:
//!
//! 1. `network`: the rate is at least 85 % of the rails' line rate (the lab's, or what the drivers
//!    report). Headers take 4 to 6 % of it, so that 95 % are the most there is.
//! 2. `memory`: the rate is at least 80 % of what copying reaches that uses memory as the transfer does:
//!    the same pieces, as large a footprint, as many threads on the same CPUs ([`super::machine`]).
//! 3. `posting`: the thread that posts did so for at least 95 % of the time, and did not wait.
//! 4. `cpu`: this process did not run at all for a tenth of the time: it was stopped, or its cgroup's CPU
//!    time was used up. Or the processes used at least 90 % of the CPUs they may use, or the machine was at least
//!    90 % busy (softirqs included) and a third of that were the processes, or one thread used at
//!    least 95 % of its CPU. With `--sample` also: one CPU that works for us, be it on a thread or
//!    on softirqs, was at least 95 % busy; then the text says which CPU, and with what. Or other programs
//!    used more of the machine's CPUs than the transfer did, and a thread of ours was ready to run and had no CPU
//!    for a quarter of the time.
//! 5. `peer`: the same at the other side, where that is another machine; on the same one, a process that
//!    did not run, or a thread that used at least 95 % of its CPU. Or the receiver's kernel had no room for
//!    a third of the time, though nothing there was busy: who should read does not.
//! 6. `network` again: a rail sent at least 1 % of its bytes twice, as packets are lost on the way, or the queue
//!    of its own interface dropped 1 % of its packets.
//! 7. `message_rate`: transfers per second are at least 85 % of those of 8 bytes at the same depth.
//! 8. `depth`: fewer bytes were outstanding than the window has room for. One transfer at a time is
//!    bound by its latency; several may leave rails without work, and the text says how many.
//! 9. `window`: the sending flows stood with a full window at least half of the time.
//!
//! Of one message at a time (`--latency`) the depth is the verdict. Bytes that devices copied themselves
//! touch neither CPU nor memory of the host: there the verdict is `device`, unless the posting thread
//! holds it up.
//!
//! A transfer that exceeds a limit by more than 5 % is not limited by it, whatever the measurement said.
//! The text then says so, and the verdict is another limit. If no limit holds, the text names the nearest
//! one, and says that the transfer does not reach it.

use polyrail_report::{Limit, LimitKind, show_gb_per_s, show_rate, show_ratio, show_size};

use super::machine::CopyRate;
use crate::cmd::bench::talk::Load;

/// The numbers of one size.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Of both directions together.
    pub(crate) gb_per_s: f64,
    /// Directions in use: 1 or 2.
    pub(crate) ways: u64,
    pub(crate) local: Load,
    pub(crate) peer: Load,
    pub(crate) same_host: bool,
    /// What copying reaches that uses memory in this way, where that was measured.
    pub(crate) copy: Option<CopyRate>,
    /// Transfers of 8 bytes per second at the same depth, where these were measured.
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) line: Option<Line>,
    /// What each rail carried, as a part of all, with its name.
    pub(crate) rails: Vec<(String, f64)>,
    /// The part of its bytes that a rail sent again, at least, with its name: the worst one.
    pub(crate) lost: Option<(String, f64)>,
    /// The way of the bytes, if it was not the rails.
    pub(crate) beside_rails: Option<String>,
    /// Of the sending side.
    pub(crate) window_full_share: f64,
    pub(crate) ping_pong: bool,
    pub(crate) depth: u64,
    pub(crate) size: u64,
    /// What all channels together may have outstanding, in bytes.
    pub(crate) window_bytes: u64,
    /// The median of a transfer, in microseconds.
    pub(crate) p50_us: Option<f64>,
}

/// What the rails carry at most, one way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Each rail's name and rate, in GB/s.
    pub(crate) rails: Vec<(String, f64)>,
    /// Where these numbers come from, for people.
    pub(crate) source: String,
}

impl Line {
    fn gb_per_s(&self) -> f64 {
        self.rails.iter().map(|(_, rate)| rate).sum()
    }
}

/// A limit that may or may not be reached.
struct Candidate {
    kind: LimitKind,
    /// The part of the limit that was used: 1 is all of it.
    share: f64,
    /// The part from which on it is the verdict.
    from: f64,
    because: String,
}

/// Applies the rules.
pub(crate) fn judge(evidence: &Evidence) -> Limit {
    let mut candidates = vec![];
    if evidence.ping_pong {
        candidates.push(depth(evidence));
    } else if let Some(path) = &evidence.beside_rails {
        candidates.extend(posting(evidence));
        candidates.extend(thread(&evidence.local, LimitKind::Cpu, "here"));
        candidates.push(device(evidence, path));
    } else {
        candidates.extend(network(evidence));
        candidates.extend(memory(evidence));
        candidates.extend(posting(evidence));
        candidates.extend(cpu(evidence));
        candidates.extend(peer(evidence));
        candidates.extend(no_room(evidence));
        candidates.extend(lost(evidence));
        candidates.extend(dropped(&evidence.local, "here"));
        candidates.extend(dropped(&evidence.peer, "at the other side"));
        candidates.extend(message_rate(evidence));
        if evidence.depth.saturating_mul(evidence.size) < evidence.window_bytes {
            candidates.push(depth(evidence));
        }
        candidates.push(window(evidence));
    }
    decide(candidates)
}

/// A limit that the transfer exceeds by more than this did not limit it.
const PASSED_SHARE: f64 = 1.05;

fn decide(candidates: Vec<Candidate>) -> Limit {
    let (passed, candidates): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.share > PASSED_SHARE);
    let nearness = |candidate: &Candidate| candidate.share / candidate.from;
    let reached = candidates.iter().find(|candidate| nearness(candidate) >= 1.0);
    let nearest = candidates.iter().max_by(|a, b| nearness(a).total_cmp(&nearness(b)));
    let (verdict, mut because) = match (reached, nearest, passed.first()) {
        (Some(Candidate { kind, because, .. }), ..) => (*kind, because.clone()),
        (None, Some(Candidate { kind, because, .. }), _) => {
            (*kind, format!("no limit is reached; the nearest: {because}"))
        }
        (None, None, Some(Candidate { kind, .. })) => (*kind, "no limit is known".to_owned()),
        // A window or a device is always among them.
        (None, None, None) => (LimitKind::Window, "nothing was measured".to_owned()),
    };
    for Candidate { kind, because: what, .. } in &passed {
        because += &format!(
            "; {kind} is not the limit: {what}, so that more is possible than was measured"
        );
    }
    Limit { verdict, because }
}

const NETWORK_SHARE: f64 = 0.85;
const MEMORY_SHARE: f64 = 0.80;
const CPUS_SHARE: f64 = 0.90;
const THREAD_SHARE: f64 = 0.95;
const MESSAGES_SHARE: f64 = 0.85;
const WINDOW_SHARE: f64 = 0.50;
const AWAY_SHARE: f64 = 0.10;
const QUEUED_SHARE: f64 = 0.25;
const NO_ROOM_SHARE: f64 = 0.33;
/// A thread that reads as fast as it can uses more of a CPU.
const IDLE_THREAD_SHARE: f64 = 0.60;
const LOST_SHARE: f64 = 0.01;
/// A rail that carries less than this part of its share has no work.
const IDLE_RAIL_SHARE: f64 = 0.25;

fn network(evidence: &Evidence) -> Option<Candidate> {
    let line = evidence.line.as_ref()?;
    let one_way = evidence.gb_per_s / evidence.ways as f64;
    let share = one_way / line.gb_per_s();
    let because = format!(
        "{} GB/s one way are {} of the {} GB/s of {}",
        show_gb_per_s(one_way),
        percent(share),
        show_gb_per_s(line.gb_per_s()),
        line.source
    );
    Some(Candidate { kind: LimitKind::Network, share, from: NETWORK_SHARE, because })
}

fn memory(evidence: &Evidence) -> Option<Candidate> {
    let CopyRate { gb_per_s, copies, threads, cpus, footprint_bytes } = evidence.copy.as_ref()?;
    let share = evidence.gb_per_s / gb_per_s;
    let on = if cpus.is_empty() { String::new() } else { format!(" on CPUs {cpus}") };
    let because = format!(
        "{} GB/s are {} of the {} GB/s that {} by {threads} {}{on} over {} of memory",
        show_gb_per_s(evidence.gb_per_s),
        percent(share),
        show_gb_per_s(*gb_per_s),
        copies.words(),
        if *threads == 1 { "thread" } else { "threads" },
        show_size(*footprint_bytes),
    );
    Some(Candidate { kind: LimitKind::Memory, share, from: MEMORY_SHARE, because })
}

fn posting(evidence: &Evidence) -> Option<Candidate> {
    let share = evidence.local.posting_share?;
    let because = format!(
        "the thread that posts did so for {} of the time, {} transfers/s",
        percent(share),
        show_rate(transfers_per_s(evidence))
    );
    Some(Candidate { kind: LimitKind::Posting, share, from: THREAD_SHARE, because })
}

fn transfers_per_s(evidence: &Evidence) -> f64 {
    evidence.gb_per_s / evidence.ways as f64 * 1e9 / evidence.size.max(1) as f64
}

fn message_rate(evidence: &Evidence) -> Option<Candidate> {
    let most = evidence.messages_per_s?;
    let reached = transfers_per_s(evidence);
    let because = format!(
        "{} transfers/s are {} of the {}/s that 8B reach at depth {}, so that the size costs next to \
         nothing",
        show_rate(reached),
        percent(reached / most),
        show_rate(most),
        evidence.depth
    );
    let (share, from) = (reached / most, MESSAGES_SHARE);
    Some(Candidate { kind: LimitKind::MessageRate, share, from, because })
}

fn device(evidence: &Evidence, path: &str) -> Candidate {
    let each = evidence.p50_us.map_or(String::new(), |each| {
        format!(", {} each taking {}", show_size(evidence.size), polyrail_report::show_micros(each))
    });
    let because = format!(
        "{} GB/s by {path}, {} outstanding{each}",
        show_gb_per_s(evidence.gb_per_s),
        evidence.depth
    );
    Candidate { kind: LimitKind::Device, share: 1.0, from: 1.0, because }
}

fn cpu(evidence: &Evidence) -> Vec<Candidate> {
    let mut load = evidence.local.clone();
    let mut who = "this process";
    if evidence.same_host {
        load.process_cpus += evidence.peer.process_cpus;
        who = "both processes";
    }
    let mut candidates = cpus(&load, LimitKind::Cpu, who, "this machine");
    // The other end waits for the one that is away more.
    if evidence.local.away_share >= evidence.peer.away_share {
        candidates.insert(0, away(&evidence.local, LimitKind::Cpu, "this process"));
    }
    let queued = |load: &Load| load.queued_thread.as_ref().map_or(0.0, |(_, share)| *share);
    if evidence.same_host && queued(&evidence.peer) > queued(&load) {
        load.queued_thread.clone_from(&evidence.peer.queued_thread);
    }
    candidates.extend(crowded_out(&load, LimitKind::Cpu, "of this machine"));
    candidates.extend(hot(&load, LimitKind::Cpu, "here"));
    candidates.extend(thread(&load, LimitKind::Cpu, "here"));
    candidates
}

fn peer(evidence: &Evidence) -> Vec<Candidate> {
    // Both ends on one machine have the same CPUs, which were examined above.
    let mut candidates = if evidence.same_host {
        Vec::new()
    } else {
        let there = LimitKind::Peer;
        let mut candidates = cpus(&evidence.peer, there, "the process there", "the machine there");
        candidates.extend(crowded_out(&evidence.peer, there, "of the machine there"));
        candidates
    };
    if evidence.peer.away_share > evidence.local.away_share {
        candidates
            .insert(0, away(&evidence.peer, LimitKind::Peer, "the process at the other side"));
    }
    candidates.extend(hot(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates.extend(thread(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates
}

/// A process that others keep from running.
fn away(load: &Load, kind: LimitKind, who: &str) -> Candidate {
    let share = load.away_share;
    let because = format!(
        "{who} did not run for {} of the time: it was stopped, or had used up the CPU time of its cgroup",
        percent(share)
    );
    Candidate { kind, share, from: AWAY_SHARE, because }
}

/// Bytes that nobody reads, though who should is not busy.
fn no_room(evidence: &Evidence) -> Option<Candidate> {
    let busiest = evidence.peer.busiest_thread.as_ref().map_or(0.0, |(_, share)| *share);
    let share = evidence.local.no_room_share;
    let because = format!(
        "the other side had no room for {} of the time, and its busiest thread used {} of a CPU: it reads \
         too seldom",
        percent(share),
        percent(busiest)
    );
    let candidate = Candidate { kind: LimitKind::Peer, share, from: NO_ROOM_SHARE, because };
    (busiest < IDLE_THREAD_SHARE).then_some(candidate)
}

/// Packets that did not arrive.
fn lost(evidence: &Evidence) -> Option<Candidate> {
    let (rail, share) = evidence.lost.clone()?;
    let because =
        format!("{rail} sent at least {:.1} % again: packets are lost on the way", share * 100.0);
    Some(Candidate { kind: LimitKind::Network, share, from: LOST_SHARE, because })
}

/// Packets that did not leave. TCP notices at once, sends less for a while, and counts nothing as sent again.
fn dropped(load: &Load, place: &str) -> Option<Candidate> {
    let (rail, share) = load.dropped.clone()?;
    let because = format!(
        "the queue of {rail} {place} dropped {:.1} % of its packets: it is too short for its rate",
        share * 100.0
    );
    Some(Candidate { kind: LimitKind::Network, share, from: LOST_SHARE, because })
}

fn cpus(load: &Load, kind: LimitKind, who: &str, machine: &str) -> Vec<Candidate> {
    let share = load.process_cpus / load.cpus_allowed.max(1) as f64;
    let because = format!(
        "{who} used {:.2} of {} CPUs ({})",
        load.process_cpus,
        load.cpus_allowed,
        percent(share)
    );
    // If all CPUs are busy, it still tells with which work.
    let hottest = load.hot.as_ref().map_or(String::new(), |hot| format!("; the busiest: {hot}"));
    let process = Candidate { kind, share, from: CPUS_SHARE, because: because + &hottest };
    // Where others keep the machine busy, that is a disturbance to be remarked, and no limit.
    let busy = load.machine_busy.filter(|busy| share >= busy / 3.0);
    let machine = busy.map(|busy| Candidate {
        kind,
        share: busy,
        from: CPUS_SHARE,
        because: format!(
            "the CPUs of {machine} were {} busy, softirqs included; {who} used {:.2} of {}{hottest}",
            percent(busy),
            load.process_cpus,
            load.cpus_allowed
        ),
    });
    [process].into_iter().chain(machine).collect()
}

/// Other programs have the CPUs that a thread of ours is ready to use.
fn crowded_out(load: &Load, kind: LimitKind, whose: &str) -> Option<Candidate> {
    let (name, share) = load.queued_thread.as_ref()?;
    let others = load.machine_busy? * load.machine_cpus as f64 - load.process_cpus;
    let because = format!(
        "other programs used {others:.2} of the {} CPUs {whose}, and thread {name} waited for one {} of the time",
        load.machine_cpus,
        percent(*share)
    );
    let candidate = Candidate { kind, share: *share, from: QUEUED_SHARE, because };
    (others > load.process_cpus).then_some(candidate)
}

/// The busiest CPU of ours, with `--sample`.
fn hot(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let hot = load.hot.as_ref()?;
    let share = hot.busy_percent / 100.0;
    Some(Candidate { kind, share, from: THREAD_SHARE, because: format!("{place}, {hot}") })
}

fn thread(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let (name, share) = load.busiest_thread.as_ref()?;
    let because = format!("thread {name} {place} used {} of its CPU", percent(*share));
    Some(Candidate { kind, share: *share, from: THREAD_SHARE, because })
}

/// Too few transfers at once; what more of them would bring.
fn depth(evidence: &Evidence) -> Candidate {
    let Evidence { depth, size, window_bytes, .. } = *evidence;
    let each = evidence.p50_us.map(polyrail_report::show_micros);
    let each = each.map_or(String::new(), |each| format!(", each taking {each}"));
    let size = show_size(size);
    let because = if evidence.ping_pong {
        format!("one message of {size} at a time is bound by its latency{each} one way")
    } else if depth == 1 {
        format!("depth 1 is bound by the latency of a transfer of {size}{each}; more would overlap")
    } else if let Some(busy) = busy_rails(evidence) {
        format!("depth {depth} keeps {busy}: more transfers of {size} would reach the others{each}")
    } else {
        format!(
            "depth {depth} has {} outstanding{each}; the window has room for {}",
            show_size(depth * evidence.size),
            show_size(window_bytes)
        )
    };
    Candidate { kind: LimitKind::Depth, share: 1.0, from: 1.0, because }
}

/// How many rails have work, if not all do.
fn busy_rails(evidence: &Evidence) -> Option<String> {
    let Evidence { rails, line, .. } = evidence;
    let whole = line.as_ref().map_or(0.0, Line::gb_per_s);
    let due = |name: &str| {
        let rates = line.iter().flat_map(|line| &line.rails);
        let rate = rates.filter(|(rail, _)| rail == name).map(|(_, rate)| rate / whole).next();
        rate.unwrap_or(1.0 / rails.len() as f64)
    };
    let has_work = |(name, share): &&(String, f64)| *share >= IDLE_RAIL_SHARE * due(name);
    let busy = rails.iter().filter(has_work).count();
    let of_line = line.as_ref().map_or(String::new(), |line| {
        let one_way = evidence.gb_per_s / evidence.ways as f64;
        format!(", {} of the sum of {}", show_ratio(one_way / whole), line.source)
    });
    (busy < rails.len()).then(|| format!("{busy} of {} rails busy{of_line}", rails.len()))
}

fn window(evidence: &Evidence) -> Candidate {
    let share = evidence.window_full_share;
    let because = format!("the flows stood with a full window {} of the time", percent(share));
    Candidate { kind: LimitKind::Window, share, from: WINDOW_SHARE, because }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
