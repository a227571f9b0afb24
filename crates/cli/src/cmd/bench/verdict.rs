//! What keeps a size from being faster, decided from numbers of the same run.
//!
//! The rules, in the order in which they are asked; the first that holds is the verdict:
//!
//! 1. `network`: the rate is at least 85 % of the rails' line rate (the lab's, or what the drivers
//!    report). Headers take 4 to 6 % of it, so that 95 % are the most there is.
//! 2. `memory`: copying takes at least 80 % of what copying was measured to reach on all CPUs at
//!    the start of the run. The kernel copies each byte once at either end, so between two
//!    processes of one machine it is two copies per byte.
//! 3. `cpu`: the processes used at least 90 % of the CPUs they may use, or the machine was at least
//!    90 % busy (softirqs included) and a third of that were the processes, or one thread used at
//!    least 95 % of its CPU. With `--sample` also: one CPU that works for us, be it on a thread or
//!    on softirqs, was at least 95 % busy; then the text says which CPU, and with what.
//! 4. `peer`: the same at the other side, where that is another machine; on the same one, a thread
//!    there that used at least 95 % of its CPU.
//! 5. `window`: the sending flows stood with a full window at least half of the time, or fewer
//!    transfers were outstanding than the window has room for.
//!
//! Bytes that devices copied themselves touch none of these: there the verdict is `device`, unless
//! too few transfers or a busy CPU hold it up.
//!
//! Where none holds, the nearest is named, and the text says that it is not reached.

use polyrail_report::{Limit, LimitKind, show_gb_per_s, show_size};

use super::machine::CopyRate;
use super::observe::Load;

/// The numbers of one size.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// Of both directions together.
    pub(super) gb_per_s: f64,
    /// Directions in use: 1 or 2.
    pub(super) ways: u64,
    pub(super) local: Load,
    pub(super) peer: Load,
    pub(super) same_host: bool,
    pub(super) copy: CopyRate,
    pub(super) line: Option<Line>,
    /// The way of the bytes, if it was not the rails.
    pub(super) beside_rails: Option<String>,
    /// Of the sending side.
    pub(super) window_full_share: f64,
    pub(super) depth: u64,
    pub(super) size: u64,
    /// What all channels together may have outstanding, in bytes.
    pub(super) window_bytes: u64,
    /// The median of a transfer, in microseconds.
    pub(super) p50_us: Option<f64>,
}

/// What the rails carry at most, one way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) gb_per_s: f64,
    /// Where that number comes from, for people.
    pub(super) source: String,
}

/// A limit that may or may not be reached.
struct Candidate {
    kind: LimitKind,
    /// How near it is: 1 is where the rule holds.
    nearness: f64,
    because: String,
}

/// Applies the rules.
pub(super) fn judge(evidence: &Evidence) -> Limit {
    let mut candidates = vec![];
    if let Some(path) = &evidence.beside_rails {
        candidates.extend(thread(&evidence.local, LimitKind::Cpu, "here"));
        candidates.push(device(evidence, path));
        return decide(candidates);
    }
    candidates.extend(network(evidence));
    candidates.push(memory(evidence));
    candidates.extend(cpu(evidence));
    candidates.extend(peer(evidence));
    candidates.extend(window(evidence));
    decide(candidates)
}

fn decide(candidates: Vec<Candidate>) -> Limit {
    if let Some(reached) = candidates.iter().find(|candidate| candidate.nearness >= 1.0) {
        return Limit { verdict: reached.kind, because: reached.because.clone() };
    }
    let nearest = candidates.into_iter().max_by(|a, b| a.nearness.total_cmp(&b.nearness));
    match nearest {
        Some(Candidate { kind, because, .. }) => {
            Limit { verdict: kind, because: format!("no limit is reached; the nearest: {because}") }
        }
        // The list is never empty: memory is always in it.
        None => Limit { verdict: LimitKind::Memory, because: "nothing was measured".into() },
    }
}

const NETWORK_SHARE: f64 = 0.85;
const MEMORY_SHARE: f64 = 0.80;
const CPUS_SHARE: f64 = 0.90;
const THREAD_SHARE: f64 = 0.95;
const WINDOW_SHARE: f64 = 0.50;

fn network(evidence: &Evidence) -> Option<Candidate> {
    let line = evidence.line.as_ref()?;
    let one_way = evidence.gb_per_s / evidence.ways as f64;
    let share = one_way / line.gb_per_s;
    let because = format!(
        "{} GB/s one way are {} of the {} GB/s of {}",
        show_gb_per_s(one_way),
        percent(share),
        show_gb_per_s(line.gb_per_s),
        line.source
    );
    Some(Candidate { kind: LimitKind::Network, nearness: share / NETWORK_SHARE, because })
}

fn memory(evidence: &Evidence) -> Candidate {
    // Of two machines each copies each byte once, whichever way it goes.
    let (copies, words) = if evidence.same_host {
        (2.0, "2 copies per byte make")
    } else {
        (1.0, "one copy per byte makes")
    };
    let copied = evidence.gb_per_s * copies;
    let reach = evidence.copy.all_threads_gb_per_s;
    let because = format!(
        "{words} {} GB/s, {} of the {} GB/s that copying reaches on {} CPUs",
        show_gb_per_s(copied),
        percent(copied / reach),
        show_gb_per_s(reach),
        evidence.copy.threads
    );
    Candidate { kind: LimitKind::Memory, nearness: copied / reach / MEMORY_SHARE, because }
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
    Candidate { kind: LimitKind::Device, nearness: 1.0, because }
}

fn cpu(evidence: &Evidence) -> Vec<Candidate> {
    let mut load = evidence.local.clone();
    let mut who = "this process";
    if evidence.same_host {
        load.process_cpus += evidence.peer.process_cpus;
        who = "both processes";
    }
    let mut candidates = cpus(&load, LimitKind::Cpu, who, "this machine");
    candidates.extend(hot(&load, LimitKind::Cpu, "here"));
    candidates.extend(thread(&load, LimitKind::Cpu, "here"));
    candidates
}

fn peer(evidence: &Evidence) -> Vec<Candidate> {
    // On one machine the CPUs are those that have been looked at already.
    let mut candidates = if evidence.same_host {
        Vec::new()
    } else {
        cpus(&evidence.peer, LimitKind::Peer, "the process there", "the machine there")
    };
    candidates.extend(hot(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates.extend(thread(&evidence.peer, LimitKind::Peer, "at the other side"));
    candidates
}

fn cpus(load: &Load, kind: LimitKind, who: &str, machine: &str) -> Vec<Candidate> {
    let share = load.process_cpus / load.cpus_allowed.max(1) as f64;
    let because = format!(
        "{who} used {:.2} of {} CPUs ({})",
        load.process_cpus,
        load.cpus_allowed,
        percent(share)
    );
    // Where all are busy it still tells what with.
    let hottest = load.hot.as_ref().map_or(String::new(), |hot| format!("; the busiest: {hot}"));
    let process = Candidate { kind, nearness: share / CPUS_SHARE, because: because + &hottest };
    // Where others keep the machine busy, that is a disturbance to be remarked, and no limit.
    let busy = load.machine_busy.filter(|busy| share >= busy / 3.0);
    let machine = busy.map(|busy| Candidate {
        kind,
        nearness: busy / CPUS_SHARE,
        because: format!(
            "the CPUs of {machine} were {} busy, softirqs included; {who} used {:.2} of {}{hottest}",
            percent(busy),
            load.process_cpus,
            load.cpus_allowed
        ),
    });
    [process].into_iter().chain(machine).collect()
}

/// The busiest CPU of ours, with `--sample`.
fn hot(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let hot = load.hot.as_ref()?;
    let nearness = hot.busy_percent / 100.0 / THREAD_SHARE;
    Some(Candidate { kind, nearness, because: format!("{place}, {hot}") })
}

fn thread(load: &Load, kind: LimitKind, place: &str) -> Option<Candidate> {
    let (name, share) = load.busiest_thread.as_ref()?;
    let because = format!("thread {name} {place} used {} of its CPU", percent(*share));
    Some(Candidate { kind, nearness: share / THREAD_SHARE, because })
}

fn window(evidence: &Evidence) -> Vec<Candidate> {
    let share = evidence.window_full_share;
    let mut candidates = vec![Candidate {
        kind: LimitKind::Window,
        nearness: share / WINDOW_SHARE,
        because: format!("the flows stood with a full window {} of the time", percent(share)),
    }];
    let outstanding = evidence.depth.saturating_mul(evidence.size);
    if outstanding < evidence.window_bytes {
        let each = evidence.p50_us.map(polyrail_report::show_micros);
        let each = each.map_or(String::new(), |each| format!(", each taking {each}"));
        let transfers = if evidence.depth == 1 { "transfer" } else { "transfers" };
        let because = format!(
            "{} {transfers} of {} outstanding{each}; the window has room for {}",
            evidence.depth,
            show_size(evidence.size),
            show_size(evidence.window_bytes)
        );
        candidates.push(Candidate { kind: LimitKind::Window, nearness: 1.0, because });
    }
    candidates
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use polyrail_sample::{Hot, Work};

    use super::*;

    /// Two machines with nothing to do.
    fn idle() -> Evidence {
        let load = Load { process_cpus: 0.1, cpus_allowed: 8, ..Load::default() };
        Evidence {
            gb_per_s: 1.0,
            ways: 1,
            local: load.clone(),
            peer: load,
            same_host: false,
            copy: CopyRate { one_thread_gb_per_s: 12.0, all_threads_gb_per_s: 20.0, threads: 8 },
            beside_rails: None,
            line: Some(Line { gb_per_s: 10.0, source: "4 rails by their drivers".into() }),
            window_full_share: 0.0,
            depth: 64,
            size: 1 << 20,
            window_bytes: 32 << 20,
            p50_us: Some(900.0),
        }
    }

    fn verdict(change: impl FnOnce(&mut Evidence)) -> (LimitKind, String) {
        let mut evidence = idle();
        change(&mut evidence);
        let Limit { verdict, because } = judge(&evidence);
        (verdict, because)
    }

    #[test]
    fn an_idle_run_names_the_nearest_limit_and_says_that_it_is_not_reached() {
        let (_, because) = verdict(|_| ());
        assert!(because.starts_with("no limit is reached; the nearest: "), "{because}");
    }

    #[test]
    fn rails_near_their_line_rate_are_the_limit() {
        let (kind, because) = verdict(|e| e.gb_per_s = 9.4);
        assert_eq!(kind, LimitKind::Network);
        assert_eq!(
            because,
            "9.40 GB/s one way are 94 % of the 10.0 GB/s of 4 rails by their drivers"
        );
        let (kind, _) = verdict(|e| (e.gb_per_s, e.ways) = (9.4, 2));
        assert_ne!(kind, LimitKind::Network, "two directions have a line each");
    }

    #[test]
    fn two_copies_per_byte_on_one_machine_are_held_against_what_copying_reaches() {
        let (kind, because) = verdict(|e| {
            (e.gb_per_s, e.same_host, e.line) = (9.0, true, None);
            e.local.process_cpus = 8.0;
        });
        assert_eq!(kind, LimitKind::Memory);
        assert!(
            because.contains("2 copies per byte make 18.0 GB/s, 90 % of the 20.0"),
            "{because}"
        );
        let (_, because) = verdict(|e| (e.gb_per_s, e.line) = (9.0, None));
        assert!(
            because.contains("no limit is reached; the nearest: one copy per byte"),
            "{because}"
        );
    }

    #[test]
    fn busy_cpus_or_one_busy_thread_are_the_limit() {
        let (kind, because) = verdict(|e| e.local.process_cpus = 7.5);
        assert_eq!(
            (kind, because.as_str()),
            (LimitKind::Cpu, "this process used 7.50 of 8 CPUs (94 %)")
        );
        let (kind, because) = verdict(|e| {
            e.same_host = true;
            (e.local.process_cpus, e.peer.process_cpus) = (4.0, 3.5);
        });
        assert_eq!((kind, because.starts_with("both processes")), (LimitKind::Cpu, true));
        let (kind, because) =
            verdict(|e| (e.local.machine_busy, e.local.process_cpus) = (Some(0.97), 4.0));
        assert_eq!((kind, because.contains("97 % busy")), (LimitKind::Cpu, true));
        let (_, because) = verdict(|e| e.local.machine_busy = Some(0.97));
        assert!(because.starts_with("no limit is reached"), "others are busy: {because}");
        let (kind, because) = verdict(|e| e.local.busiest_thread = Some(("tx-0".into(), 0.99)));
        assert_eq!((kind, because.contains("tx-0 here used 99 %")), (LimitKind::Cpu, true));
    }

    #[test]
    fn with_samples_the_busiest_cpu_is_named_with_its_work() {
        let hot = Hot {
            cpu: 22,
            work: Work::ReceiveCopy { thread: "pr-rx0".into() },
            busy_percent: 98.0,
            user_percent: 0.0,
            system_percent: 37.0,
            softirq_percent: 61.0,
            steal_percent: 0.0,
            rwnd_limited_percent: None,
        };
        let text = "receive copy on CPU 22: softirq 61 %, system 37 %";
        let (kind, because) = verdict(|e| e.peer.hot = Some(hot.clone()));
        assert_eq!((kind, because), (LimitKind::Peer, format!("at the other side, {text}")));
        let (kind, because) = verdict(|e| e.local.hot = Some(hot.clone()));
        assert_eq!((kind, because), (LimitKind::Cpu, format!("here, {text}")));
        let (_, because) = verdict(|e| {
            (e.local.process_cpus, e.local.hot) = (7.9, Some(hot.clone()));
        });
        assert!(because.ends_with(&format!("; the busiest: {text}")), "{because}");
        let (_, because) =
            verdict(|e| e.peer.hot = Some(Hot { busy_percent: 60.0, ..hot.clone() }));
        assert!(because.starts_with("no limit is reached"), "{because}");
    }

    #[test]
    fn a_busy_other_side_is_the_limit() {
        let (kind, _) = verdict(|e| e.peer.process_cpus = 7.9);
        assert_eq!(kind, LimitKind::Peer);
        let (kind, _) = verdict(|e| {
            e.same_host = true;
            e.peer.busiest_thread = Some(("rx-0".into(), 0.98));
        });
        assert_eq!(kind, LimitKind::Peer);
    }

    #[test]
    fn bytes_that_devices_copied_are_limited_by_the_devices_or_the_thread_that_posts() {
        let copied = |e: &mut Evidence| {
            (e.gb_per_s, e.beside_rails) = (390.0, Some("peer copy".into()));
            (e.depth, e.size, e.p50_us) = (1, 1 << 30, Some(2_750.0));
        };
        let (kind, because) = verdict(copied);
        assert_eq!(kind, LimitKind::Device);
        assert!(because.starts_with("390 GB/s by peer copy, 1 outstanding, 1GiB"), "{because}");
        let (kind, _) = verdict(|e| {
            copied(e);
            e.local.busiest_thread = Some(("the posting thread".into(), 0.99));
        });
        assert_eq!(kind, LimitKind::Cpu);
    }

    #[test]
    fn a_full_window_and_too_few_outstanding_transfers_are_the_limit() {
        let (kind, because) = verdict(|e| e.window_full_share = 0.7);
        assert_eq!((kind, because.contains("70 % of the time")), (LimitKind::Window, true));
        let (kind, because) = verdict(|e| (e.depth, e.size, e.p50_us) = (1, 8, Some(9.5)));
        assert_eq!(kind, LimitKind::Window);
        let text =
            "1 transfer of 8B outstanding, each taking 9.50us; the window has room for 32MiB";
        assert_eq!(because, text);
    }
}
