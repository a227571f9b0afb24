//! Environment variables of GPUDirect-TCPX, set from the engine's settings. Variables that the user has set stay
//! unchanged.

use std::path::Path;
use std::time::Duration;

/// Part of the name of its tables.
const NAME: &str = "GPUDirectTCPX";
/// Folder of the daemon's sockets in images for A3 High, and the plugin's default.
const DAEMON: &str = "/run/tcpx";
const DAEMON_BY_DEFAULT: &str = "/tmp";
/// Bytes of a message per socket and turn: Google's value. Without the variable the plugin uses 0 and sends nothing.
const CHUNK_BYTES: &str = "524288";
/// Microseconds that the plugin waits after each `accept` until flow steering rules apply: Google's value. By default
/// it waits 5 s (`connect.cc`), longer than an engine waits for a connection.
const STEERING_MICROS: &str = "500000";

/// CPUs for the threads that serve an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpusOf {
    /// The interface.
    pub interface: String,
    /// CPU numbers in ascending order.
    pub cpus: Vec<u32>,
}

/// Requests to a plugin.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Devices by name or number. Empty for all.
    pub devices: Vec<String>,
    /// CPUs for its sending threads.
    pub tx: Vec<CpusOf>,
    /// CPUs for its receiving threads.
    pub rx: Vec<CpusOf>,
    /// Interface for connections without payload.
    pub control: Option<String>,
    /// Maximum time of a call before it is [given up](crate::stuck). Zero for no limit. With several hosts in a process
    /// the longest counts.
    pub call_limit: Duration,
    /// Maximum time to load and initialize the plugin. Starting drivers takes seconds.
    pub load_limit: Duration,
}

impl Default for Wishes {
    /// No requests, and a minute to load.
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            tx: Vec::new(),
            rx: Vec::new(),
            control: None,
            call_limit: Duration::ZERO,
            load_limit: Duration::from_secs(60),
        }
    }
}

impl Wishes {
    /// True if plugin threads are bound to certain CPUs.
    pub(crate) fn bind(&self) -> bool {
        !(self.tx.is_empty() && self.rx.is_empty())
    }

    /// True if plugin threads may run on all of these CPUs.
    pub(crate) fn allow(&self, cpus: &[u32]) -> bool {
        let covers = |bound: &CpusOf| cpus.iter().all(|cpu| bound.cpus.binary_search(cpu).is_ok());
        !self.bind() || self.tx.iter().chain(&self.rx).any(covers)
    }
}

/// Sets the variables for the plugin of the table with this name, if it is GPUDirect-TCPX. Must run before it is
/// initialized.
pub(crate) fn tell(table: &str, wishes: &Wishes) {
    if !table.contains(NAME) {
        return;
    }
    let is_interface = |name: &str| Path::new("/sys/class/net").join(name).exists();
    let has_daemon = |folder: &str| Path::new(folder).join("rx_rule_manager").exists();
    for (name, value) in variables(wishes, is_interface, has_daemon) {
        if std::env::var_os(name).is_some() {
            continue;
        }
        tracing::info!(target: "polyrail::carrier", name, value, "set for the plugin");
        // SAFETY: Rust's own readers of the environment are locked out. C functions that read it at the same moment are
        // not, as when NCCL sets variables from its configuration file, so the docs say to build the engine before
        // other threads run.
        unsafe { std::env::set_var(name, value) };
    }
}

fn variables(
    wishes: &Wishes,
    is_interface: impl Fn(&str) -> bool,
    has_daemon: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("NCCL_DYNAMIC_CHUNK_SIZE", CHUNK_BYTES.to_owned()),
        ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", STEERING_MICROS.to_owned()),
    ];
    for (name, bindings) in [
        ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", &wishes.tx),
        ("NCCL_GPUDIRECTTCPX_RX_BINDINGS", &wishes.rx),
    ] {
        if !bindings.is_empty() {
            all.push((name, in_ranges(bindings)));
        }
    }
    let devices = &wishes.devices;
    if !devices.is_empty() && devices.iter().all(|name| is_interface(name)) {
        all.push(("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", format!("={}", devices.join(","))));
    }
    all.extend(wishes.control.clone().map(|name| ("NCCL_GPUDIRECTTCPX_CTRL_DEV", name)));
    if has_daemon(DAEMON) && !has_daemon(DAEMON_BY_DEFAULT) {
        all.push(("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", DAEMON.to_owned()));
    }
    all
}

/// Formats bindings as ranges, even for a single CPU, because the plugin reads ranges only.
fn in_ranges(bindings: &[CpusOf]) -> String {
    let ranges = |CpusOf { interface, cpus }: &CpusOf| {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in cpus {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => ranges.push((*cpu, *cpu)),
            }
        }
        let texts: Vec<String> =
            ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        format!("{interface}:{}", texts.join(","))
    };
    bindings.iter().map(ranges).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(interface: &str, cpus: &[u32]) -> CpusOf {
        CpusOf { interface: interface.to_owned(), cpus: cpus.to_vec() }
    }

    #[test]
    fn settings_of_the_engine_are_said_in_the_words_of_the_plugin() {
        let wishes = Wishes {
            devices: vec!["eth1".to_owned(), "eth2".to_owned()],
            tx: vec![bound("eth1", &[8, 9, 10, 112, 114, 115]), bound("eth2", &[60])],
            rx: Vec::new(),
            control: Some("eth0".to_owned()),
            ..Wishes::default()
        };
        let said = variables(&wishes, |name| name.starts_with("eth"), |folder| folder == DAEMON);
        let expected = [
            ("NCCL_DYNAMIC_CHUNK_SIZE", "524288"),
            ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "500000"),
            ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "eth1:8-10,112-112,114-115;eth2:60-60"),
            ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "=eth1,eth2"),
            ("NCCL_GPUDIRECTTCPX_CTRL_DEV", "eth0"),
            ("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "/run/tcpx"),
        ];
        assert_eq!(said, expected.map(|(name, value)| (name, value.to_owned())));
        let by_number = Wishes { devices: vec!["1".to_owned()], ..Wishes::default() };
        let said = variables(&by_number, |name| name.starts_with("eth"), |_| true);
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn threads_may_run_where_one_binding_lets_them() {
        let wishes = Wishes {
            tx: vec![bound("eth1", &[1, 2])],
            rx: vec![bound("eth1", &[3])],
            ..Wishes::default()
        };
        assert!(wishes.allow(&[1, 2]) && wishes.allow(&[2]) && wishes.allow(&[3]));
        assert!(!wishes.allow(&[2, 3]) && !wishes.allow(&[0, 1]));
        assert!(Wishes::default().allow(&[0, 1]), "nothing was asked for");
    }
}
