//! Rules of the verdict, one function for each limit: how near the run came to the limit, and from what share the limit
//! is the verdict. Their order and their description for people are in [`super::verdict`].

use polyrail_report::{LimitKind, show_gb_per_s, show_rate, show_ratio, show_size};

use super::causes::Cause;
use super::down::{is_silent, line_of_others, narrower_line};
use super::evidence::{Deeper, Evidence, Line};
use super::known::ago;
use super::machine::CopyRate;
use super::others::{others, without_ends};
use crate::cmd::bench::talk::{Load, OwnCpus, Throttled};

/// Limit that may or may not be reached.
pub(super) struct Candidate {
    pub(super) kind: LimitKind,
    pub(super) cause: Cause,
    /// Share of the limit that was used: 1 is all of it.
    pub(super) share: f64,
    /// Minimum share that makes this limit the verdict.
    pub(super) from: f64,
    pub(super) because: String,
}

const NETWORK_SHARE: f64 = 0.85;
const MEMORY_SHARE: f64 = 0.80;
const CPUS_SHARE: f64 = 0.90;
const THREAD_SHARE: f64 = 0.95;
const THROTTLED_SHARE: f64 = 0.25;
/// Minimum gain of depth, in each pair, to be the limit. Gains below `LITTLE_GAIN` are too small to count at all.
const DEPTH_GAIN: f64 = 1.2;
const LITTLE_GAIN: f64 = 1.05;
const MESSAGES_SHARE: f64 = 0.85;
const WINDOW_SHARE: f64 = 0.50;
const AWAY_SHARE: f64 = 0.10;
const QUEUED_SHARE: f64 = 0.25;
const NO_ROOM_SHARE: f64 = 0.33;
/// Maximum CPU share of a thread that counts as idle. A thread that reads as fast as it can uses more.
const IDLE_THREAD_SHARE: f64 = 0.60;
const LOST_SHARE: f64 = 0.01;
/// Smallest transfer, whose cost is the work for one message.
pub(crate) const MESSAGE_BYTES: u64 = 8;
/// Share of its due bytes below which a rail counts as idle.
const IDLE_RAIL_SHARE: f64 = 0.25;
/// Share of the median rail's rate below which a rail is named as slow.
const SLOW_RAIL_SHARE: f64 = 0.5;

/// More outstanding transfers were tried, and were faster.
pub(super) fn deeper(evidence: &Evidence) -> Option<Candidate> {
    let Deeper { depth: more, ratio } = evidence.deeper?;
    let away = |load: &Load| {
        let throttled = load.throttled.map_or(0.0, |throttled| throttled.periods_share);
        load.away_share >= AWAY_SHARE || throttled >= THROTTLED_SHARE
    };
    let is_steady = !away(&evidence.local) && !away(&evidence.peer);
    let Candidate { because, .. } = depth(evidence);
    let because = format!("{because}; tried: depth {more} makes it {} x", show_ratio(ratio.median));
    let candidate = Candidate { because, ..depth(evidence) };
    (is_steady && ratio.min >= DEPTH_GAIN).then_some(candidate)
}

pub(super) fn tried_in_vain(evidence: &Evidence) -> Option<String> {
    let Deeper { depth, ratio } = evidence.deeper?;
    let text = format!("depth {depth} makes it {} x", show_ratio(ratio.median));
    (ratio.median < LITTLE_GAIN).then_some(text)
}

pub(super) fn network(evidence: &Evidence) -> Option<Candidate> {
    let line = narrower_line(evidence)?;
    let one_way = evidence.gb_per_s / evidence.ways as f64;
    let share = one_way / line.gb_per_s();
    let because = format!(
        "{} GB/s one way are {} of the {} GB/s of {}",
        show_gb_per_s(one_way),
        percent(share),
        show_gb_per_s(line.gb_per_s()),
        line.source
    );
    let slow = slow_rail(&line);
    let cause = if slow.is_some() { Cause::SlowRail } else { Cause::FullLinks };
    let because = because + &slow.map_or(String::new(), |slow| format!("; {slow}"));
    Some(Candidate { kind: LimitKind::Network, cause, share, from: NETWORK_SHARE, because })
}

/// Describes a rail that is much slower than the median rail.
fn slow_rail(line: &Line) -> Option<String> {
    let mut rails: Vec<_> = line.rails.iter().collect();
    rails.sort_by(|a, b| a.1.total_cmp(&b.1));
    let ((name, least), (_, middle)) = (rails.first()?, rails.get(rails.len() / 2)?);
    let [least, middle] = [*least, *middle];
    let text =
        || format!("{name} has {} GB/s, others {}", show_gb_per_s(least), show_gb_per_s(middle));
    (least < SLOW_RAIL_SHARE * middle).then(text)
}

pub(super) fn memory(evidence: &Evidence) -> Option<Candidate> {
    let CopyRate { gb_per_s, copies, threads, cpus, footprint_bytes, age } =
        evidence.copy.as_ref()?;
    let share = evidence.gb_per_s / gb_per_s;
    let on = if cpus.is_empty() { String::new() } else { format!(" on CPUs {cpus}") };
    let because = format!(
        "{} GB/s are {} of the {} GB/s that {} by {threads} {}{on} over {} of memory{}",
        show_gb_per_s(evidence.gb_per_s),
        percent(share),
        show_gb_per_s(*gb_per_s),
        copies.words(),
        if *threads == 1 { "thread" } else { "threads" },
        show_size(*footprint_bytes),
        age.map_or(String::new(), |age| format!(" (measured {})", ago(age))),
    );
    Some(Candidate {
        kind: LimitKind::Memory,
        cause: Cause::Memory,
        share,
        from: MEMORY_SHARE,
        because,
    })
}

pub(super) fn posting(evidence: &Evidence) -> Option<Candidate> {
    let share = evidence.local.posting_share?;
    let because = format!(
        "the thread that posts did so for {} of the time, {} transfers/s",
        percent(share),
        show_rate(transfers_per_s(evidence))
    );
    Some(Candidate {
        kind: LimitKind::Posting,
        cause: Cause::Posting,
        share,
        from: THREAD_SHARE,
        because,
    })
}

fn transfers_per_s(evidence: &Evidence) -> f64 {
    evidence.gb_per_s / evidence.ways as f64 * 1e9 / evidence.size.max(1) as f64
}

pub(super) fn message_rate(evidence: &Evidence) -> Option<Candidate> {
    let reached = transfers_per_s(evidence);
    if evidence.size <= MESSAGE_BYTES {
        let Deeper { depth, ratio } = evidence.deeper?;
        let because = format!(
            "{} transfers/s, of which the bytes cost nothing: depth {depth} makes it {} x",
            show_rate(reached),
            show_ratio(ratio.median)
        );
        let (kind, cause) = (LimitKind::MessageRate, Cause::MessageRate);
        let candidate = Candidate { kind, cause, share: 1.0, from: 1.0, because };
        return (ratio.median < DEPTH_GAIN).then_some(candidate);
    }
    let most = evidence.messages_per_s?;
    let because = format!(
        "{} transfers/s are {} of the {}/s that 8B reach at depth {}, so that the size costs next to \
         nothing",
        show_rate(reached),
        percent(reached / most),
        show_rate(most),
        evidence.depth
    );
    let (share, from) = (reached / most, MESSAGES_SHARE);
    let (kind, cause) = (LimitKind::MessageRate, Cause::MessageRate);
    Some(Candidate { kind, cause, share, from, because })
}

pub(super) fn device(evidence: &Evidence, path: &str) -> Candidate {
    let each = evidence.p50_us.map_or(String::new(), |each| {
        format!(", {} each taking {}", show_size(evidence.size), polyrail_report::show_micros(each))
    });
    let because = format!(
        "{} GB/s by {path}, {} outstanding{each}",
        show_gb_per_s(evidence.gb_per_s),
        evidence.depth
    );
    Candidate { kind: LimitKind::Device, cause: Cause::Device, share: 1.0, from: 1.0, because }
}

pub(super) fn cpu(evidence: &Evidence) -> Vec<Candidate> {
    let peers_here = evidence.same_host.then_some(evidence.peer.pid);
    let ends: Vec<u32> = [evidence.local.pid].into_iter().chain(peers_here).collect();
    let local = without_ends(&evidence.local, &ends);
    let mut load = local.clone();
    let mut who = "this process";
    if evidence.same_host {
        load.process_cpus += evidence.peer.process_cpus;
        who = "both processes";
    }
    let mut candidates = cpus(&load, LimitKind::Cpu, who, "this machine");
    // The end that is away less waits for the other.
    if evidence.local.away_share >= evidence.peer.away_share {
        candidates.insert(0, away(&local, LimitKind::Cpu, "this process"));
    }
    candidates.splice(0..0, throttled(&evidence.local, LimitKind::Cpu, "this process"));
    let queued = |load: &Load| load.queued_thread.as_ref().map_or(0.0, |(_, share)| *share);
    if evidence.same_host && queued(&evidence.peer) > queued(&load) {
        load.queued_thread.clone_from(&evidence.peer.queued_thread);
    }
    candidates.extend(crowded_out(&load, LimitKind::Cpu, "of this machine"));
    candidates.extend(hot(&load, LimitKind::Cpu, "here"));
    candidates.extend(thread(&load, LimitKind::Cpu, "here"));
    candidates
}

pub(super) fn peer(evidence: &Evidence) -> Vec<Candidate> {
    // Both ends on one machine have the same CPUs, which were examined above.
    let load = without_ends(&evidence.peer, &[evidence.peer.pid, evidence.local.pid]);
    let mut candidates = if evidence.same_host {
        Vec::new()
    } else {
        let there = LimitKind::Peer;
        let mut candidates = cpus(&load, there, "the process there", "the machine there");
        candidates.extend(crowded_out(&load, there, "of the machine there"));
        candidates
    };
    if evidence.peer.away_share > evidence.local.away_share {
        candidates.insert(0, peer_away(evidence));
    }
    let there = "the process at the other side";
    candidates.splice(0..0, throttled(&evidence.peer, LimitKind::Peer, there));
    candidates.extend(hot(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates.extend(thread(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates
}

/// The other process was stopped. Programs that crowd the CPUs of one machine keep both ends from running, and neither
/// end for much longer than the other.
pub(super) fn peer_stands_still(evidence: &Evidence) -> Vec<Candidate> {
    if evidence.peer.away_share - evidence.local.away_share < AWAY_SHARE {
        return Vec::new();
    }
    let quota = throttled(&evidence.peer, LimitKind::Peer, "the process at the other side");
    quota.into_iter().chain([peer_away(evidence)]).collect()
}

fn peer_away(evidence: &Evidence) -> Candidate {
    let load = without_ends(&evidence.peer, &[evidence.peer.pid, evidence.local.pid]);
    away(&load, LimitKind::Peer, "the process at the other side")
}

/// A process that did not run for a part of the time.
fn away(load: &Load, kind: LimitKind, who: &str) -> Candidate {
    let share = load.away_share;
    let because = format!(
        "{who} did not run for {} of the time: it was stopped, or had no CPU{}{}",
        percent(share),
        niceness(load),
        others(load)
    );
    Candidate { kind, cause: Cause::Away, share, from: AWAY_SHARE, because }
}

/// Mentions a positive nice value: such a process has asked to yield to others.
fn niceness(load: &Load) -> String {
    let nice = load.nice;
    if nice > 0 { format!("; its nice value is {nice}: others go first") } else { String::new() }
}

/// A process whose control group repeatedly used up its CPU quota.
fn throttled(load: &Load, kind: LimitKind, who: &str) -> Option<Candidate> {
    let Throttled { cpus, periods_share: share } = load.throttled?;
    let because = format!(
        "{who} did not run for a part of {} of its control group's periods: the CPU quota of {cpus:.2} CPUs had \
         run out",
        percent(share)
    );
    Some(Candidate { kind, cause: Cause::Quota, share, from: THROTTLED_SHARE, because })
}

/// Receive buffers that stay full although no thread of the receiver is busy.
pub(super) fn no_room(evidence: &Evidence) -> Option<Candidate> {
    let busiest = evidence.peer.busiest_thread.as_ref().map_or(0.0, |(_, share)| *share);
    let share = evidence.local.no_room_share;
    let because = format!(
        "the receive windows of the other side held the flows up for {} of the time, and its busiest thread used {} of \
         a CPU",
        percent(share),
        percent(busiest)
    );
    let (kind, cause) = (LimitKind::Peer, Cause::NoRoom);
    let candidate = Candidate { kind, cause, share, from: NO_ROOM_SHARE, because };
    (busiest < IDLE_THREAD_SHARE).then_some(candidate)
}

/// Bytes that TCP retransmitted.
pub(super) fn lost(evidence: &Evidence) -> Option<Candidate> {
    let (rail, share) = evidence.lost.clone()?;
    let because = format!("{rail} sent at least {:.1} % of its bytes again", share * 100.0);
    let (kind, cause) = (LimitKind::Network, Cause::Lost);
    Some(Candidate { kind, cause, share, from: LOST_SHARE, because })
}

/// Packets that the interface's own queue dropped. TCP notices at once, sends less for a while, and counts no
/// retransmissions.
pub(super) fn dropped(load: &Load, place: &str) -> Option<Candidate> {
    let (rail, share) = load.dropped.clone()?;
    let because =
        format!("the queue of {rail} {place} dropped {:.1} % of its packets", share * 100.0);
    let (kind, cause) = (LimitKind::Network, Cause::ShortQueue);
    Some(Candidate { kind, cause, share, from: LOST_SHARE, because })
}

fn cpus(load: &Load, kind: LimitKind, who: &str, machine: &str) -> Vec<Candidate> {
    let share = load.process_cpus / load.cpus_allowed.max(1) as f64;
    let fewer = load.cpus_allowed < load.machine_cpus;
    let whole =
        if fewer { format!(" that it may use, of {}", load.machine_cpus) } else { String::new() };
    let because = format!(
        "{who} used {:.2} of {} CPUs{whole} ({})",
        load.process_cpus,
        load.cpus_allowed,
        percent(share)
    );
    // The busiest CPU shows the kind of work even if all CPUs are busy.
    let hottest = load.hot.as_ref().map_or(String::new(), |hot| format!("; the busiest: {hot}"));
    let (cause, because) = (Cause::BusyCpus, because + &hottest);
    let process = Candidate { kind, cause, share, from: CPUS_SHARE, because };
    // If other programs keep the machine busy, that is a disturbance for a remark, not a limit.
    let cpus = reachable(load).filter(|cpus| share >= cpus.busy / 3.0);
    let machine = cpus.map(|OwnCpus { busy, .. }| Candidate {
        kind,
        cause,
        share: busy,
        from: CPUS_SHARE,
        because: format!(
            "the CPUs of {machine}{} were {} busy, softirqs included; {who} used {:.2} of {}{hottest}{}",
            if load.own_cpus.is_some() { " that it may use" } else { "" },
            percent(busy),
            load.process_cpus,
            load.cpus_allowed,
            others(load)
        ),
    });
    [process].into_iter().chain(machine).collect()
}

/// Returns the CPUs that the process may run on. Work on other CPUs takes nothing from it.
pub(super) fn reachable(load: &Load) -> Option<OwnCpus> {
    let all = || Some(OwnCpus { count: load.machine_cpus, busy: load.machine_busy? });
    load.own_cpus.or_else(all)
}

/// Other programs have the CPUs that one of this transfer's threads is ready to use.
fn crowded_out(load: &Load, kind: LimitKind, whose: &str) -> Option<Candidate> {
    let (name, share) = load.queued_thread.as_ref()?;
    let OwnCpus { count, busy } = reachable(load)?;
    let elsewhere = busy * count as f64 - load.process_cpus;
    let because = format!(
        "other programs and softirqs used {elsewhere:.2} of the {count} CPUs {whose}{}, and thread {name} waited for one \
         {} of the time{}{}",
        if load.own_cpus.is_some() { " that it may use" } else { "" },
        percent(*share),
        niceness(load),
        others(load)
    );
    let cause = Cause::OtherPrograms;
    let candidate = Candidate { kind, cause, share: *share, from: QUEUED_SHARE, because };
    (elsewhere > load.process_cpus).then_some(candidate)
}

/// The busiest CPU of this transfer's threads, with `--sample`.
fn hot(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let hot = load.hot.as_ref()?;
    let share = hot.busy_percent / 100.0;
    let (cause, because) = (Cause::HotCpu, format!("{place}, {hot}"));
    Some(Candidate { kind, cause, share, from: THREAD_SHARE, because })
}

pub(super) fn thread(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let (name, share) = load.busiest_thread.as_ref()?;
    let because = format!("thread {name} {place} used {} of its CPU", percent(*share));
    Some(Candidate { kind, cause: Cause::BusyThread, share: *share, from: THREAD_SHARE, because })
}

/// The window has room for more outstanding transfers, and no test has shown that they don't help.
pub(super) fn room_for_depth(evidence: &Evidence) -> Option<Candidate> {
    let is_in_vain = evidence.deeper.is_some_and(|it| it.ratio.median < LITTLE_GAIN);
    let has_room = evidence.depth.saturating_mul(evidence.size) < evidence.window_bytes;
    (has_room && !is_in_vain).then(|| depth(evidence))
}

/// Too few outstanding transfers, with the likely effect of more.
pub(super) fn depth(evidence: &Evidence) -> Candidate {
    let Evidence { depth, size, window_bytes, .. } = *evidence;
    let each = evidence.p50_us.map(polyrail_report::show_micros);
    let each = each.map_or(String::new(), |each| format!(", each taking {each}"));
    let size = show_size(size);
    let because = if evidence.ping_pong {
        format!("one message of {size} at a time is bound by its latency{each} one way")
    } else if depth == 1 {
        format!("depth 1 is bound by the latency of a transfer of {size}{each}")
    } else if let Some(busy) = busy_rails(evidence) {
        format!("depth {depth} of {size} keeps {busy}{each}")
    } else {
        format!(
            "depth {depth} has {} outstanding{each}; the window has room for {}",
            show_size(depth * evidence.size),
            show_size(window_bytes)
        )
    };
    // A transfer with a chunk on the slow rail takes as long as that chunk.
    let line = narrower_line(evidence).filter(|_| !evidence.ping_pong);
    let slow = line.and_then(|line| slow_rail(&line));
    let slow = slow.map(|slow| format!("; {slow}: `--rails` without it shows what it costs"));
    let because = because + &slow.unwrap_or_default();
    let cause = if evidence.ping_pong { Cause::OneMessage } else { Cause::Depth };
    Candidate { kind: LimitKind::Depth, cause, share: 1.0, from: 1.0, because }
}

/// Describes how many rails have work, if some of those that could have work have none. Rails that are down or without
/// a channel don't count: no transfer reaches them.
fn busy_rails(evidence: &Evidence) -> Option<String> {
    let line = line_of_others(evidence);
    let rails: Vec<&(String, f64)> =
        evidence.rails.iter().filter(|(name, _)| !is_silent(evidence, name)).collect();
    let whole = line.as_ref().map_or(0.0, Line::gb_per_s);
    let due = |name: &str| {
        let rate = line.as_ref().and_then(|line| line.of_rail(name));
        rate.map_or(1.0 / rails.len() as f64, |rate| rate / whole)
    };
    let has_work = |(name, share): &&&(String, f64)| *share >= IDLE_RAIL_SHARE * due(name);
    let busy = rails.iter().filter(has_work).count();
    let of_line = line.as_ref().map_or(String::new(), |line| {
        let one_way = evidence.gb_per_s / evidence.ways as f64;
        format!(", {} of the sum of {}", show_ratio(one_way / whole), line.source)
    });
    (busy < rails.len()).then(|| format!("{busy} of {} rails busy{of_line}", rails.len()))
}

pub(super) fn window(evidence: &Evidence) -> Candidate {
    let share = evidence.window_full_share;
    let because = format!("the flows stood with a full window {} of the time", percent(share));
    Candidate { kind: LimitKind::Window, cause: Cause::Window, share, from: WINDOW_SHARE, because }
}

/// Notes that protection takes CPU time. `--why` measures how much.
pub(super) fn protection(evidence: &Evidence, verdict: LimitKind) -> Option<String> {
    let is_work = matches!(verdict, LimitKind::Cpu | LimitKind::Peer | LimitKind::Memory);
    let payload = evidence.payload.as_ref().filter(|_| is_work)?;
    Some(format!("; payload={payload} takes CPU time for each byte, payload=none takes none"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
