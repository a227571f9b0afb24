//! Reads all counters, and keeps the files open between samples.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polyrail_host::{NetDev, ReadError, Softirqs, Softnet, Stat, Sysroot};
use rustix::time::{ClockId, clock_gettime};

use crate::counters::protocols;
use crate::error::SampleError;
use crate::flows::Flows;
use crate::record::{SCHEMA_VERSION, Sample, Start};
use crate::reread::Reread;
use crate::snapshot::{Queues, Snapshot};
use crate::threads::Threads;
use crate::vectors::{Vectors, nics};

#[derive(Clone, Debug)]
pub struct Options {
    /// The time between two samples, 100 ms to 1 h.
    pub interval: Duration,
    /// Processes whose threads and flows are followed.
    pub pids: Vec<u32>,
    /// Also follow processes of this name, as in `/proc/PID/comm`; the search for them is repeated
    /// every 30 samples.
    pub process_name: Option<String>,
    /// The sampled interfaces; all if empty.
    pub interfaces: Vec<String>,
}

/// Reads the driver's counters of the queues of these interfaces.
pub type ReadQueues = Box<dyn FnMut(&[String]) -> BTreeMap<String, QueueCounts> + Send>;

/// Counters by queue (`rx-3`) and name.
pub type QueueCounts = BTreeMap<String, BTreeMap<String, u64>>;

/// Takes snapshots. A sampler may be moved to another thread; each snapshot has the CPU time of the
/// thread that took it.
pub struct Sampler {
    root: Sysroot,
    options: Options,
    start: Start,
    stat: Option<Reread>,
    softirqs: Option<Reread>,
    softnet: Option<Reread>,
    net_dev: Option<Reread>,
    protocols: Vec<(Reread, &'static [&'static str])>,
    vectors: Vectors,
    flows: Option<Flows>,
    threads: Threads,
    queues: Option<ReadQueues>,
    named_pids: Vec<u32>,
    taken: u64,
    buffer: Vec<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            pids: Vec::new(),
            process_name: None,
            interfaces: Vec::new(),
        }
    }
}

impl Sampler {
    /// Opens every source that exists; [`Self::start`] lists the missing ones.
    ///
    /// # Errors
    /// [`SampleError`]: unreadable CPU times, an interval out of range, an interface or process
    /// that does not exist.
    pub fn open(root: &Sysroot, options: Options) -> Result<Self, SampleError> {
        if !(SHORTEST_INTERVAL..=Duration::from_secs(3600)).contains(&options.interval) {
            return Err(SampleError::Interval { given_ms: options.interval.as_millis() });
        }
        if let Some(&pid) = options.pids.iter().find(|pid| !root.exists(format!("/proc/{pid}"))) {
            return Err(SampleError::NoProcess { pid });
        }
        let stat = Reread::open(root, STAT)
            .map_err(|source| ReadError::Io { path: root.path(STAT), source })?;
        let mut missing = Vec::new();
        let mut open = |path: &str| {
            let file = Reread::open(root, path);
            file.map_err(|error| missing.push(format!("{path}: {error}"))).ok()
        };
        let (softirqs, softnet) = (open("/proc/softirqs"), open("/proc/net/softnet_stat"));
        let net_dev = open("/proc/net/dev");
        let protocols = PROTOCOLS.iter().filter_map(|(path, wanted)| Some((open(path)?, *wanted)));
        let protocols = protocols.collect();
        // Only the running kernel answers requests about sockets.
        let flows = if root.is_live() {
            Flows::open().map_err(|error| missing.push(format!("flows: {error}"))).ok()
        } else {
            missing.push("flows: a copy of /proc does not have them".into());
            None
        };
        let mut nics = nics(root, &mut missing);
        if !options.interfaces.is_empty() {
            let known = root.list("/sys/class/net").unwrap_or_default();
            if let Some(name) = options.interfaces.iter().find(|name| !known.contains(name)) {
                return Err(SampleError::NoInterface {
                    name: name.clone(),
                    known: known.join(", "),
                });
            }
            nics.retain(|nic| options.interfaces.contains(&nic.name));
        }
        let vectors = Vectors::open(root, &nics);
        let start = Start {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            started_unix_ms: unix_ms(),
            hostname: root.hostname().ok(),
            boot_id: root.boot_id().ok(),
            kernel: root.kernel().ok(),
            interval_ms: options.interval.as_millis() as u64,
            tick_ms: 1e3 / ticks_per_second(),
            irq_time_is_measured: irq_time_is_measured(root),
            cpus: root.read("/sys/devices/system/cpu/online").unwrap_or_default(),
            nics,
            pids: options.pids.clone(),
            missing,
        };
        let mut sampler = Self {
            root: root.clone(),
            options,
            start,
            stat: Some(stat),
            softirqs,
            softnet,
            net_dev,
            protocols,
            vectors,
            flows,
            threads: Threads::default(),
            queues: None,
            named_pids: Vec::new(),
            taken: 0,
            buffer: Vec::with_capacity(64 << 10),
        };
        sampler.find_named();
        sampler.start.pids = sampler.pids();
        // Fail at once if the CPU times are unreadable.
        Stat::read(root)?;
        Ok(sampler)
    }

    /// Reads the counters of queues with `read`, which gets the interfaces.
    #[must_use]
    pub fn with_queues(mut self, read: ReadQueues) -> Self {
        self.queues = Some(read);
        self
    }

    pub fn start(&self) -> &Start {
        &self.start
    }

    /// The requested time between two samples.
    pub fn interval(&self) -> Duration {
        self.options.interval
    }

    pub fn snapshot(&mut self) -> Snapshot {
        if self.taken.is_multiple_of(LOOK_EVERY) && self.taken > 0 {
            self.find_named();
        }
        self.taken += 1;
        let started = Instant::now();
        let pids = self.pids();
        let mut missing = Vec::new();
        let buffer = &mut self.buffer;
        // Read the counters that reading itself changes most first.
        let softirqs = table(&self.softirqs, buffer, &mut missing, Softirqs::parse);
        let softnet = table(&self.softnet, buffer, &mut missing, Softnet::parse);
        let interfaces = table(&self.net_dev, buffer, &mut missing, NetDev::parse).interfaces;
        let wanted = &self.options.interfaces;
        let is_wanted = |name: &String| wanted.is_empty() || wanted.contains(name);
        let interfaces = interfaces.into_iter().filter(|(name, _)| is_wanted(name)).collect();
        let mut sums = BTreeMap::new();
        for (file, wanted) in &self.protocols {
            match file.read(buffer) {
                Ok(()) => protocols(buffer, wanted, &mut sums),
                Err(error) => missing.push(format!("{}: {error}", file.path().display())),
            }
        }
        let vectors = self.vectors.read(&self.root, buffer).unwrap_or_else(|error| {
            missing.push(error);
            BTreeMap::new()
        });
        let flows =
            self.flows.as_mut().map_or(Ok(Vec::new()), |flows| flows.read(&self.root, &pids));
        let flows = flows.unwrap_or_else(|error| {
            missing.push(format!("flows: {error}"));
            Vec::new()
        });
        let threads = self.threads.read(&self.root, &pids);
        let queues = self.queues.as_mut().map_or_else(Queues::new, |read| {
            let names: Vec<String> = self.start.nics.iter().map(|nic| nic.name.clone()).collect();
            read(&names)
        });
        let cpus = table(&self.stat, buffer, &mut missing, Stat::parse).cpus;
        Snapshot {
            at: Instant::now(),
            unix_ms: unix_ms(),
            read_time: started.elapsed(),
            thread_cpu: thread_cpu(),
            ticks_per_second: ticks_per_second(),
            cpus,
            softirqs,
            softnet,
            interfaces,
            queues,
            protocols: sums,
            vectors,
            flows,
            threads,
            missing,
        }
    }

    /// Computes the activity between two snapshots of this sampler.
    pub fn between(&self, from: &Snapshot, to: &Snapshot) -> Sample {
        from.until(to, &self.start.nics)
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids = [self.options.pids.as_slice(), &self.named_pids].concat();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Finds the processes that the options name, except this process.
    fn find_named(&mut self) {
        let Some(wanted) = &self.options.process_name else { return };
        let names = self.root.list("/proc").unwrap_or_default();
        let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
        let is_wanted = |pid: &u32| {
            let name = self.root.read(format!("/proc/{pid}/comm"));
            *pid != std::process::id() && name.is_ok_and(|name| name == *wanted)
        };
        self.named_pids = pids.filter(is_wanted).collect();
    }
}

/// The kernel counts CPU time in ticks of up to 10 ms: shorter intervals would be inaccurate.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const STAT: &str = "/proc/stat";
/// Number of samples between two searches for processes by name; each search reads a file per process.
const LOOK_EVERY: u64 = 30;
const PROTOCOLS: [(&str, &[&str]); 2] = [
    ("/proc/net/snmp", &["Tcp"]),
    // Counts of events in the TCP code: retransmits, drops, full queues.
    ("/proc/net/netstat", &["TcpExt"]),
];

/// Parses a file's current contents. A file that was never there gives the default; a file that
/// can't be read any more also adds a line to `missing`.
fn table<T: Default, E: Display>(
    file: &Option<Reread>,
    buffer: &mut Vec<u8>,
    missing: &mut Vec<String>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> T {
    let Some(file) = file else { return T::default() };
    let text = file.read(buffer).map_err(|error| error.to_string());
    let text = text.and_then(|()| str::from_utf8(buffer).map_err(|error| error.to_string()));
    text.and_then(|text| parse(text).map_err(|error| error.to_string())).unwrap_or_else(|fault| {
        missing.push(format!("{}: {fault}", file.path().display()));
        T::default()
    })
}

/// Milliseconds since 1970 UTC.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Whether the kernel measures interrupt time. With `CONFIG_IRQ_TIME_ACCOUNTING` the kernel also
/// reports pressure by interrupts, and a read succeeds if that is switched on.
fn irq_time_is_measured(root: &Sysroot) -> Option<bool> {
    if !root.exists("/proc/pressure/cpu") {
        return None;
    }
    Some(root.read("/proc/pressure/irq").is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ThreadSample;

    fn refused(options: Options) -> String {
        Sampler::open(&Sysroot::live(), options).err().unwrap().to_string()
    }

    #[test]
    fn wrong_options_name_the_value_and_what_is_allowed() {
        let interval = Duration::from_millis(5);
        let message = refused(Options { interval, ..Options::default() });
        assert_eq!(message, "interval of 5 ms is out of range; allowed: 100ms to 1h");
        let message = refused(Options { pids: vec![u32::MAX], ..Options::default() });
        assert!(message.starts_with("process `4294967295`: does not exist; "), "{message}");
        let interfaces = vec!["eth99".into()];
        let message = refused(Options { interfaces, ..Options::default() });
        assert!(message.starts_with("interface `eth99`: does not exist; allowed: "), "{message}");
    }

    #[test]
    fn a_copy_without_an_account_of_cpus_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        let refused = |root| Sampler::open(root, Options::default()).err().unwrap().to_string();
        assert!(refused(&root).contains("proc/stat can't be read"), "{}", refused(&root));
        std::fs::create_dir(root.path("/proc")).unwrap();
        std::fs::write(root.path(STAT), "intr 5\n").unwrap();
        assert!(refused(&root).contains("no line begins with `cpu`"), "{}", refused(&root));
    }

    #[test]
    fn this_machine_and_this_process_are_sampled() {
        let options = Options { pids: vec![std::process::id()], ..Options::default() };
        let mut sampler = Sampler::open(&Sysroot::live(), options).unwrap();
        assert_eq!(sampler.start().missing, Vec::<String>::new());
        let before = sampler.snapshot();
        let started = thread_cpu();
        while thread_cpu() - started < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let after = sampler.snapshot();
        let sample = sampler.between(&before, &after);
        assert!(sample.seconds >= 0.3 && sample.missing.is_empty(), "{sample:?}");
        let seconds = |percent: f64| percent / 100.0 * sample.seconds;
        let cpus = sample.cpus.iter().map(|cpu| seconds(cpu.busy_percent())).sum::<f64>();
        assert!(cpus >= 0.2, "{sample:?}");
        // Each read of the thread's time is a system call, so both user and system time count.
        let time = |thread: &ThreadSample| seconds(thread.user_percent + thread.system_percent);
        let ours = sample.threads.iter().map(time).sum::<f64>();
        assert!(ours >= 0.2, "{sample:?}");
        for cpu in &sample.cpus {
            let parts =
                [cpu.user_percent, cpu.system_percent, cpu.irq_percent, cpu.softirq_percent];
            let sum: f64 = parts.iter().sum::<f64>() + cpu.steal_percent + cpu.idle_percent;
            assert!((sum - 100.0).abs() < 0.5, "{cpu:?}");
        }
    }
}
