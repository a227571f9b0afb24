//! Counters of the engine, the process and the machine for an interval.

use std::time::{Duration, Instant};

use polyrail::{Engine, ProxyStats, Stats};
use polyrail_config::Progress;
use polyrail_profiler::drive::Ran;
use polyrail_sys::threads::{allowed_cpus, process_cpu_seconds};

use super::arrivals::Arrivals;
use super::away::Attendance;
use super::down::{down_meanwhile, rails_down, unsent};
use super::machine::Machine;
use super::programs::Programs;
use super::queued::Queued;
use super::queues::Queues;
use super::quotas::Quotas;
use super::watch::{Watch, Watched};
use crate::cmd::bench::talk::{DownRail, Load, RailDelta};

/// Counters at one moment.
pub(crate) struct Snapshot {
    at: Instant,
    cpu_seconds: f64,
    machine: Option<Machine>,
    queued: Queued,
    queues: Queues,
    quotas: Quotas,
    watched: Option<Watched>,
    stats: Stats,
    /// Observer of the process, in a snapshot that begins an interval.
    attendance: Option<Attendance>,
    programs: Programs,
    down: Vec<DownRail>,
    arrivals: Arrivals,
}

/// Difference of two snapshots.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) load: Load,
    pub(crate) rails: Vec<RailDelta>,
    /// See [`Stats::rescues`].
    pub(crate) rescues: Option<u64>,
}

impl Snapshot {
    /// Takes the first snapshot of an interval, and starts to observe whether this process runs.
    pub(crate) fn begin(engine: &Engine, watch: Option<&Watch>) -> Self {
        // Before the interval: reading the counters of each process takes a while.
        let programs = Programs::look();
        let attendance = Some(Attendance::begin());
        Self { attendance, programs, ..Self::take(engine, watch) }
    }

    /// Takes a snapshot. With `watch`, it includes single CPUs and threads.
    pub(crate) fn take(engine: &Engine, watch: Option<&Watch>) -> Self {
        let stats = engine.stats();
        Self {
            watched: watch.map(Watch::look),
            down: rails_down(engine, &stats),
            arrivals: Arrivals::look(engine),
            stats,
            machine: Machine::look(),
            queued: Queued::look(),
            queues: Queues::look(engine),
            quotas: Quotas::look(),
            cpu_seconds: process_cpu_seconds(),
            attendance: None,
            programs: Programs::default(),
            at: Instant::now(),
        }
    }

    /// Returns the interval from this snapshot to `later`. `poster` is the posting thread, which is not a progress
    /// thread and therefore not in the engine's counters.
    pub(crate) fn until(&self, later: &Self, poster: Option<Poster>) -> Interval {
        let seconds = (later.at - self.at).as_secs_f64();
        let cpu_seconds = later.cpu_seconds - self.cpu_seconds;
        let machine = self.machine.zip(later.machine);
        let [window_full_share, socket_full_share, no_room_share] =
            self.full_shares(later, seconds);
        // After the interval. The times of programs cover a moment more.
        let since = self.at.elapsed().as_secs_f64();
        let allowed = allowed_cpus().unwrap_or_default();
        let programs_later = Programs::look();
        let programs = self.programs.busiest(&programs_later, since, &allowed);
        let programs_kernel_cpus = self.programs.kernel_cpus(&programs_later, since);
        let rails = self.rails(later);
        let away = self.attendance.as_ref().map_or(0.0, |it| it.away().as_secs_f64());
        Interval {
            seconds,
            cpu_seconds,
            load: Load {
                pid: std::process::id(),
                nice: nice(),
                programs,
                process_cpus: cpu_seconds / seconds,
                cpus_allowed: std::thread::available_parallelism().map_or(1, usize::from),
                machine_busy: machine.and_then(|(from, to)| from.busy(to)),
                machine_cpus: later.machine.map_or(0, Machine::cpus),
                softirq_alone_cpus: machine
                    .map_or(0.0, |(from, to)| from.softirq_alone_cpus(to, programs_kernel_cpus)),
                own_cpus: machine.and_then(|(from, to)| from.own_cpus(to)),
                queued_thread: self.queued.longest(&later.queued, seconds),
                dropped: self.queues.worst(&later.queues),
                one_nic: self.arrivals.by_one_nic(&later.arrivals, &rails),
                unsent: unsent(&later.stats, &rails),
                down: down_meanwhile(&self.down, &later.down, &rails, &later.stats),
                throttled: self.quotas.worst(&later.quotas),
                busiest_thread: self.busiest_thread(later, seconds, poster),
                posting_share: poster.and_then(|poster| posting_share(poster, seconds)),
                movers: self.movers(later, seconds, poster),
                window_full_share,
                socket_full_share,
                no_room_share,
                away_share: (away / seconds).min(1.0),
                hot: self.watched.as_ref().zip(later.watched.as_ref()).and_then(Watched::hot),
            },
            rails,
            rescues: Some(later.stats.rescues.saturating_sub(self.stats.rescues)),
        }
    }

    fn rails(&self, later: &Self) -> Vec<RailDelta> {
        let earlier = by_rail(&self.stats);
        let mut rails = by_rail(&later.stats);
        for rail in &mut rails {
            let Some(before) = earlier.iter().find(|before| before.name == rail.name) else {
                continue;
            };
            rail.tx_bytes = rail.tx_bytes.saturating_sub(before.tx_bytes);
            rail.rx_bytes = rail.rx_bytes.saturating_sub(before.rx_bytes);
            rail.retransmits = rail.retransmits.saturating_sub(before.retransmits);
            rail.resent_chunks = rail.resent_chunks.saturating_sub(before.resent_chunks);
            rail.carried_bytes = rail.carried_bytes.saturating_sub(before.carried_bytes);
        }
        rails
    }

    fn busiest_thread(
        &self,
        later: &Self,
        seconds: f64,
        poster: Option<Poster>,
    ) -> Option<(String, f64)> {
        // A thread that looks for work and finds none counts as idle, although its CPU is busy.
        let works = |(proxy, share): (&ProxyStats, f64)| {
            let before = self.stats.proxies.iter().find(|before| before.name == proxy.name);
            let polled = proxy.polled_seconds - before.map_or(0.0, |before| before.polled_seconds);
            (proxy.name.clone(), (share - polled / seconds).max(0.0))
        };
        let proxies = self.proxies(later, seconds).map(works);
        // A poster that waits for others may poll all the time, and is not a limit.
        let mover = poster.filter(|poster| poster.waited.is_none());
        let name = "that posts and moves the data";
        let mover = mover.map(|poster| (name.to_owned(), poster.cpu.as_secs_f64() / seconds));
        proxies.chain(mover).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns each progress thread with the share of one CPU that it used.
    fn proxies<'s>(
        &self,
        later: &'s Self,
        seconds: f64,
    ) -> impl Iterator<Item = (&'s ProxyStats, f64)> {
        later.stats.proxies.iter().map(move |proxy| {
            let before = self.stats.proxies.iter().find(|before| before.name == proxy.name);
            let before = before.map_or(0.0, |before| before.cpu_seconds);
            (proxy, (proxy.cpu_seconds - before) / seconds)
        })
    }

    /// Returns the CPUs of the threads that did more than look for work.
    fn movers(&self, later: &Self, seconds: f64, poster: Option<Poster>) -> Vec<Vec<u32>> {
        let moves = |share: f64| share >= MOVER_SHARE;
        let proxies = self.proxies(later, seconds).filter(|(_, share)| moves(*share));
        let proxies = proxies.map(|(proxy, _)| proxy.actual_cpus.clone());
        // Small writes leave with the thread that posts them.
        let posts = poster.is_some_and(|poster| {
            let share = poster.cpu.as_secs_f64() / seconds;
            moves(posting_share(poster, seconds).unwrap_or(share))
        });
        let copiers = self.queued.ran(&later.queued, seconds, COPIERS);
        let copiers = copiers.into_iter().filter(|share| moves(*share)).map(|_| Vec::new());
        proxies.chain(posts.then(Vec::new)).chain(copiers).collect()
    }

    /// Returns the shares of the time in which sending flows had a full window, a full socket, and no room at the
    /// receiver.
    fn full_shares(&self, later: &Self, seconds: f64) -> [f64; 3] {
        let (mut flows, mut full_ns) = (0u64, [0u64; 3]);
        for peer in &later.stats.peers {
            let old_peer = self.stats.peers.iter().find(|old| old.instance == peer.instance);
            for rail in &peer.rails {
                let old_rail =
                    old_peer.and_then(|old| old.rails.iter().find(|old| old.name == rail.name));
                for flow in &rail.flows {
                    let old =
                        old_rail.and_then(|old| old.flows.iter().find(|old| old.flow == flow.flow));
                    let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0));
                    if since(flow.tx_bytes, old.map(|old| old.tx_bytes)) == 0 {
                        continue;
                    }
                    flows += 1;
                    let window = since(flow.window_full_ns, old.map(|old| old.window_full_ns));
                    let socket = since(flow.socket_full_ns, old.map(|old| old.socket_full_ns));
                    let before = old.map(|old| old.receive_window_limited_us);
                    let no_room = since(flow.receive_window_limited_us, before) * 1000;
                    for (sum, more) in full_ns.iter_mut().zip([window, socket, no_room]) {
                        *sum += more;
                    }
                }
            }
        }
        full_ns.map(|ns| (ns as f64 / 1e9 / seconds / flows.max(1) as f64).min(1.0))
    }
}

/// Times of the posting thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Poster {
    pub(crate) cpu: Duration,
    /// Time that the thread waited for transfers to end. It may poll meanwhile, which is CPU time but no work; `None`
    /// if its waiting moves the data.
    pub(crate) waited: Option<Duration>,
}

impl Poster {
    pub(crate) fn of(engine: &Engine, ran: &Ran) -> Self {
        let is_mover = engine.config().progress == Progress::Caller;
        Self { cpu: ran.cpu, waited: (!is_mover).then_some(ran.waited) }
    }
}

/// Minimum CPU share of a thread that moves bytes. A thread with less hardly moved any.
const MOVER_SHARE: f64 = 0.05;
/// Prefix of the names of an engine's threads that copy from memory to memory.
const COPIERS: &str = "pr-copy";

/// Returns the nice value of this process, from -20 to 19: how far it yields to others.
fn nice() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Returns the share of the time that was posting: CPU time outside of waits for something to end.
fn posting_share(poster: Poster, seconds: f64) -> Option<f64> {
    let posting = seconds - poster.waited?.as_secs_f64();
    Some((poster.cpu.as_secs_f64().min(posting) / seconds).max(0.0))
}

/// Sums up the counters over the peers. A peer that is not measured moves nothing.
fn by_rail(stats: &Stats) -> Vec<RailDelta> {
    let mut rails: Vec<RailDelta> = Vec::new();
    for rail in stats.peers.iter().flat_map(|peer| &peer.rails) {
        let at = rails.iter().position(|known| known.name == rail.name).unwrap_or_else(|| {
            let (name, hosted) = (rail.name.clone(), rail.hosted);
            rails.push(RailDelta { name, hosted, ..RailDelta::default() });
            rails.len() - 1
        });
        rails[at].tx_bytes += rail.tx_bytes;
        rails[at].rx_bytes += rail.rx_bytes;
        rails[at].retransmits += rail.retransmits;
        rails[at].resent_chunks += rail.resent_chunks;
        rails[at].carried_bytes += rail.flows.iter().map(|flow| flow.carried_bytes).sum::<u64>();
    }
    rails
}

#[cfg(test)]
mod tests {
    use polyrail::{FlowSnapshot, PeerStats, RailStats};

    use super::*;

    fn snapshot(at: Instant, tx_bytes: u64, window_full_ns: u64, proxy_cpu: [f64; 2]) -> Snapshot {
        let sending = FlowSnapshot { flow: 0, tx_bytes, window_full_ns, ..FlowSnapshot::default() };
        let silent = FlowSnapshot { flow: 1, ..FlowSnapshot::default() };
        let rail = RailStats {
            name: "eth1".into(),
            tx_bytes,
            retransmits: tx_bytes / 100,
            flows: vec![sending, silent],
            ..RailStats::default()
        };
        let proxies = ["tx-0", "rx-0"].into_iter().zip(proxy_cpu).map(|(name, cpu_seconds)| {
            ProxyStats { name: name.into(), cpu_seconds, ..ProxyStats::default() }
        });
        let peer = PeerStats { instance: "x".into(), rails: vec![rail], ..PeerStats::default() };
        let stats = Stats { peers: vec![peer], proxies: proxies.collect(), ..Stats::default() };
        let (cpu_seconds, attendance) = (proxy_cpu.iter().sum(), None);
        let (queued, queues, quotas) = (Queued::default(), Queues::default(), Quotas::default());
        Snapshot {
            at,
            cpu_seconds,
            machine: None,
            queued,
            queues,
            quotas,
            watched: None,
            stats,
            attendance,
            programs: Programs::default(),
            down: Vec::new(),
            arrivals: Arrivals::default(),
        }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_snapshots() {
        let start = Instant::now();
        let before = snapshot(start, 1_000, 500_000_000, [1.0, 0.0]);
        let after = snapshot(start + Duration::from_secs(2), 5_000, 1_500_000_000, [1.5, 1.8]);
        let millis = Duration::from_millis;
        let poster = Poster { cpu: millis(400), waited: Some(millis(1700)) };
        let interval = before.until(&after, Some(poster));
        assert_eq!(interval.seconds, 2.0);
        let rail = &interval.rails[0];
        assert_eq!((rail.tx_bytes, rail.retransmits), (4_000, 40));
        let (name, share) = interval.load.busiest_thread.unwrap();
        assert_eq!(name, "rx-0");
        assert!((share - 0.9).abs() < 1e-9);
        // During 100 ms of its waiting the poster polled, which does not count as posting.
        assert!((interval.load.posting_share.unwrap() - 0.15).abs() < 1e-9);
        assert_eq!(interval.load.movers.len(), 3, "both proxies, and who posts");
        let shares = (interval.load.window_full_share, interval.load.socket_full_share);
        assert_eq!(shares, (0.5, 0.0), "a flow that sent nothing does not count");
        assert!((interval.load.process_cpus - 1.15).abs() < 1e-9);
    }

    #[test]
    fn a_poster_that_moves_the_data_is_a_busy_thread_and_one_that_only_looks_is_none() {
        let start = Instant::now();
        let before = snapshot(start, 1_000, 0, [1.0, 1.0]);
        let after = snapshot(start + Duration::from_secs(1), 5_000, 0, [1.01, 1.02]);
        let cpu = Duration::from_secs(1);
        let load = before.until(&after, Some(Poster { cpu, waited: None })).load;
        let (name, share) = load.busiest_thread.unwrap();
        assert!(name.contains("moves the data") && (share - 1.0).abs() < 1e-9);
        assert_eq!((load.posting_share, load.movers.len()), (None, 1));
        let load = before.until(&after, Some(Poster { cpu, waited: Some(cpu) })).load;
        assert_eq!(load.busiest_thread.unwrap().0, "rx-0");
        assert_eq!((load.posting_share, load.movers.len()), (Some(0.0), 0));
    }
}
