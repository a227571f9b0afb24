//! Load of an end, and the counters of its rails.

use polyrail_sample::Hot;
use serde::{Deserialize, Serialize};

/// Load of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Process id.
    #[serde(default)]
    pub(crate) pid: u32,
    /// Nice value of the process, from -20 to 19: how far it yields to others.
    #[serde(default)]
    pub(crate) nice: i32,
    /// Programs that used most of the CPUs that the process may run on, including this process, the busiest first.
    #[serde(default)]
    pub(crate) programs: Vec<Program>,
    /// CPU time that the process used, as a number of CPUs.
    pub(crate) process_cpus: f64,
    /// Number of CPUs that the process may use.
    pub(crate) cpus_allowed: usize,
    /// Share of all CPU time of the machine that was not idle, 0 to 1, including softirqs and other programs.
    pub(crate) machine_busy: Option<f64>,
    /// Number of CPUs that the machine has online.
    #[serde(default)]
    pub(crate) machine_cpus: usize,
    /// CPU time of the machine in interrupts and softirqs that no process has in its time, as a number of CPUs.
    #[serde(default)]
    pub(crate) softirq_alone_cpus: f64,
    /// CPUs that the process may run on, if these are not all of the machine's.
    #[serde(default)]
    pub(crate) own_cpus: Option<OwnCpus>,
    /// Thread that was ready to run and had no CPU for the longest time, and the share of the time that it waited.
    #[serde(default)]
    pub(crate) queued_thread: Option<(String, f64)>,
    /// Rail whose interface's queue dropped the greatest share of its packets, and that share.
    #[serde(default)]
    pub(crate) dropped: Option<(String, f64)>,
    /// Rails that carry nothing while others do.
    #[serde(default)]
    pub(crate) down: Vec<DownRail>,
    /// Rails of the other end to which this end, the sender, sends nothing.
    #[serde(default)]
    pub(crate) unsent: Vec<DownRail>,
    /// Rails in one subnet whose bytes arrive through one NIC.
    #[serde(default)]
    pub(crate) one_nic: Option<OneNic>,
    /// Thread that used most of one CPU, and the share that it used, 0 to 1.
    pub(crate) busiest_thread: Option<(String, f64)>,
    /// Share of the time that the window was full, 0 to 1, as the mean over the sending flows.
    pub(crate) window_full_share: f64,
    /// Share of the time that the socket was full, 0 to 1, as the mean over the sending flows.
    pub(crate) socket_full_share: f64,
    /// Share of the time that the receiver's kernel had no room, 0 to 1, as the mean over the sending flows.
    pub(crate) no_room_share: f64,
    /// Quota of CPU time that was used up most often, among those of the process's control groups.
    #[serde(default)]
    pub(crate) throttled: Option<Throttled>,
    /// Share of the time in which the process did not run at all, 0 to 1.
    pub(crate) away_share: f64,
    /// Share of the time that the posting thread posted and did not wait, 0 to 1; `None` if its waiting moves the data.
    pub(crate) posting_share: Option<f64>,
    /// CPUs on which each thread that moved bytes may run; empty for any.
    pub(crate) movers: Vec<Vec<u32>>,
    /// Busiest CPU that works for this process, with `--sample`.
    #[serde(default)]
    pub(crate) hot: Option<Hot>,
}

/// Some CPUs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnCpus {
    pub(crate) count: usize,
    /// Share of their time that was not idle, 0 to 1.
    pub(crate) busy: f64,
}

/// Rail that carries nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DownRail {
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) why: WhyDown,
    /// The engine's own reason, if any.
    #[serde(default)]
    pub(crate) because: Option<String>,
    /// Whether payload still arrived on the rail: the opposite end connects, and this one can't.
    #[serde(default)]
    pub(crate) receives: bool,
    /// Whether the rail carried payload first and went down during the sample.
    #[serde(default)]
    pub(crate) went: bool,
}

/// Rails in one subnet, and the NIC through which their bytes arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OneNic {
    pub(crate) rails: Vec<String>,
    pub(crate) interface: String,
    /// Share of the bytes that all NICs of the subnet received, 0 to 1.
    pub(crate) share: f64,
}

/// Reason why a rail carries nothing. Each is a fact that the rail's end has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhyDown {
    /// The kernel reports the rail's interface as down.
    Interface,
    /// The rail's interface is gone, or no longer has the rail's address.
    Gone,
    /// An interface is down that is not a rail, but has a name like the rails' interfaces.
    NoRail,
    /// The rail has flows, and none of them is connected.
    Disconnected,
    /// Flows of the rail died with chunks under way, and came up again.
    Lost,
    /// The rail leads to a rail of the other end, but there are fewer channels than such rails, and none for this one.
    NoChannel { channels: u32, rails: u32 },
    /// The rail is paired with no rail of the other end.
    NoPartner,
}

impl WhyDown {
    /// Whether something is broken. Otherwise the settings leave the rail out.
    pub(crate) fn is_fault(self) -> bool {
        !matches!(self, Self::NoChannel { .. } | Self::NoPartner)
    }
}

/// Process of an end's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// CPU time that the process used, as a number of CPUs.
    pub(crate) cpus: f64,
}

/// Quota of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Throttled {
    /// CPU time that the quota grants, as a number of CPUs.
    pub(crate) cpus: f64,
    /// Share of the quota's periods in which it was used up, 0 to 1.
    pub(crate) periods_share: f64,
}

/// Counters of one rail, from its own end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailDelta {
    pub(crate) name: String,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) retransmits: u64,
    pub(crate) resent_chunks: u64,
    /// Number of sent bytes that a hosted plugin carried.
    #[serde(default)]
    pub(crate) carried_bytes: u64,
    /// Whether a plugin hosts the rail.
    #[serde(default)]
    pub(crate) hosted: bool,
}

impl RailDelta {
    /// Adds the counters of the same rail at another time, or those of its other end.
    pub(crate) fn add(&mut self, more: &Self) {
        self.tx_bytes += more.tx_bytes;
        self.rx_bytes += more.rx_bytes;
        self.retransmits += more.retransmits;
        self.resent_chunks += more.resent_chunks;
        self.carried_bytes += more.carried_bytes;
        self.hosted |= more.hosted;
    }
}
