//! How busy an end was, and what its rails did.

use polyrail_sample::Hot;
use serde::{Deserialize, Serialize};

/// How busy one side was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// The number of the process.
    #[serde(default)]
    pub(crate) pid: u32,
    /// How far the process steps back behind others, from -20 to 19.
    #[serde(default)]
    pub(crate) nice: i32,
    /// The programs that used most of the CPUs that the process may run on, this one included, the busiest first.
    #[serde(default)]
    pub(crate) programs: Vec<Program>,
    /// CPUs' worth of time that the process used.
    pub(crate) process_cpus: f64,
    /// CPUs' worth of time that it may use.
    pub(crate) cpus_allowed: usize,
    /// The part of all CPU time of the machine that was not idle, 0 to 1: softirqs and other
    /// programs included.
    pub(crate) machine_busy: Option<f64>,
    /// CPUs that the machine has online.
    #[serde(default)]
    pub(crate) machine_cpus: usize,
    /// The CPUs that the process may run on, where these are not all of the machine's.
    #[serde(default)]
    pub(crate) own_cpus: Option<OwnCpus>,
    /// The thread that was ready to run and had no CPU for the longest time, and the part of the time
    /// that it was.
    #[serde(default)]
    pub(crate) queued_thread: Option<(String, f64)>,
    /// The rail whose interface's queue dropped the greatest part of its packets, and that part.
    #[serde(default)]
    pub(crate) dropped: Option<(String, f64)>,
    /// Rails that carry nothing while others do.
    #[serde(default)]
    pub(crate) down: Vec<DownRail>,
    /// Rails of the other end to which this one, which sends, sends nothing.
    #[serde(default)]
    pub(crate) unsent: Vec<DownRail>,
    /// Rails in one subnet whose bytes arrive by one NIC.
    #[serde(default)]
    pub(crate) one_nic: Option<OneNic>,
    /// The thread that used most of one CPU, and how much of it, 0 to 1.
    pub(crate) busiest_thread: Option<(String, f64)>,
    /// Mean over the sending flows of the time that the window was full, 0 to 1.
    pub(crate) window_full_share: f64,
    /// Mean over the sending flows of the time that the socket was full, 0 to 1.
    pub(crate) socket_full_share: f64,
    /// Mean over the sending flows of the time that the receiver's kernel had no room, 0 to 1.
    pub(crate) no_room_share: f64,
    /// The quota of CPU time that had run out most often, of those of the process's control groups.
    #[serde(default)]
    pub(crate) throttled: Option<Throttled>,
    /// The part of the time in which the process did not run at all, 0 to 1.
    pub(crate) away_share: f64,
    /// The part of the time that the posting thread posted and did not wait, 0 to 1; `None` where its
    /// waiting moves the data.
    pub(crate) posting_share: Option<f64>,
    /// For each thread that moved bytes, the CPUs that it may run on; empty for any.
    pub(crate) movers: Vec<Vec<u32>>,
    /// The busiest CPU of ours, with `--sample`.
    #[serde(default)]
    pub(crate) hot: Option<Hot>,
}

/// Some CPUs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnCpus {
    pub(crate) count: usize,
    /// The part of their time that was not idle, 0 to 1.
    pub(crate) busy: f64,
}

/// A rail that carries nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DownRail {
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) why: WhyDown,
    /// The engine's own reason, if it has one.
    #[serde(default)]
    pub(crate) because: Option<String>,
    /// Whether payload still arrived on it: the end opposite connects, and this one can't.
    #[serde(default)]
    pub(crate) receives: bool,
    /// It carried payload first, and went down in the middle of the sample.
    #[serde(default)]
    pub(crate) went: bool,
}

/// Rails in one subnet, and the NIC by which their bytes arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OneNic {
    pub(crate) rails: Vec<String>,
    pub(crate) interface: String,
    /// Of what all NICs of the subnet received, 0 to 1.
    pub(crate) share: f64,
}

/// What was found of a rail that carries nothing. Each is a fact that its end has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhyDown {
    /// The kernel says that its interface is down.
    Interface,
    /// Its interface is gone, or no longer has its address.
    Gone,
    /// The same, of an interface that is called like those of the rails and is none.
    NoRail,
    /// It has flows, and none of them is connected.
    Disconnected,
    /// Flows of it died with chunks under way, and came up again.
    Lost,
    /// It leads to a rail of the other end, and there are fewer channels than such rails, so that none fell to this one.
    NoChannel { channels: u32, rails: u32 },
    /// It is paired with no rail of the other end.
    NoPartner,
}

impl WhyDown {
    /// Whether something is broken. Otherwise the settings have the rail left out.
    pub(crate) fn is_fault(self) -> bool {
        !matches!(self, Self::NoChannel { .. } | Self::NoPartner)
    }
}

/// A process of an end's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// CPUs' worth of time that it used.
    pub(crate) cpus: f64,
}

/// A quota of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Throttled {
    /// CPUs' worth of time that it grants.
    pub(crate) cpus: f64,
    /// The part of the quota's periods in which it had run out, 0 to 1.
    pub(crate) periods_share: f64,
}

/// What one rail did, as its own side counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailDelta {
    pub(crate) name: String,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) retransmits: u64,
    pub(crate) resent_chunks: u64,
    /// The bytes sent that a hosted plugin carried.
    #[serde(default)]
    pub(crate) carried_bytes: u64,
    /// Whether a plugin was to carry it.
    #[serde(default)]
    pub(crate) hosted: bool,
}

impl RailDelta {
    /// Adds what the same rail did at another time, or at its other end.
    pub(crate) fn add(&mut self, more: &Self) {
        self.tx_bytes += more.tx_bytes;
        self.rx_bytes += more.rx_bytes;
        self.retransmits += more.retransmits;
        self.resent_chunks += more.resent_chunks;
        self.carried_bytes += more.carried_bytes;
        self.hosted |= more.hosted;
    }
}
