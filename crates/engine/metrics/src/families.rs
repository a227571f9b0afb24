//! All metrics. The page `docs/metrics.md` has this table, too.

use std::fmt::Write;

/// Prefix of all names.
pub const PREFIX: &str = "polyrail";

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Number that only grows.
    Counter,
    /// Number that goes up and down.
    Gauge,
    /// Counts of values by their size.
    Histogram,
    /// Always 1, with the information in its labels.
    Info,
}

/// Metrics that share a name and differ in labels.
#[derive(Debug)]
pub struct Family {
    /// Name without prefix, unit and suffix.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Option<&'static str>,
    /// Labels other than those that tell engines and processes apart.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
    pub(crate) scope: Scope,
}

/// Owner of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Each engine: labels `engine`, and `rank` if it is known.
    Engine,
    /// The exporter itself.
    Exporter,
}

impl Family {
    /// The unit, `bytes` or `seconds`, if it has one.
    pub fn unit(&self) -> Option<&'static str> {
        self.unit
    }

    /// Full name, as Prometheus stores it.
    pub fn full_name(&self) -> String {
        let mut name = format!("{PREFIX}_{}", self.name);
        if let Some(unit) = self.unit {
            let _ = write!(name, "_{unit}");
        }
        match self.kind {
            Kind::Counter => name.push_str("_total"),
            Kind::Info => name.push_str("_info"),
            Kind::Gauge | Kind::Histogram => {}
        }
        name
    }
}

macro_rules! families {
    ($scope:ident $($(#[doc = $help:literal])+ $constant:ident: $kind:ident $name:literal $(in $unit:literal)? [$($label:literal),*];)+) => {
        $(
            $(#[doc = $help])+
            pub static $constant: Family = Family {
                name: $name,
                kind: Kind::$kind,
                unit: families!(@unit $($unit)?),
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
                scope: Scope::$scope,
            };
        )+
        /// All of these metrics.
        pub static ALL: &[&Family] = &[$(&$constant),+];
    };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
}

/// Metrics of an engine.
pub mod engine {
    use super::{Family, Kind, Scope};

    families! { Engine
        /// The engine: its version, and settings that explain other figures. `run` is the number of this run.
        INFO: Info "engine" ["run", "version", "auth", "payload", "congestion", "progress"];
        /// When the engine started, in seconds since 1970.
        START_TIME: Gauge "start_time" in "seconds" [];
        /// Operations that are posted and not over.
        OPERATIONS: Gauge "operations" [];
        /// Operations that may be outstanding: the setting ops_pool.
        OPERATIONS_LIMIT: Gauge "operations_limit" [];
        /// Notifications that nobody has taken yet.
        NOTIFICATIONS_WAITING: Gauge "notifications_waiting" [];
        /// Regions that are registered.
        REGIONS: Gauge "regions" [];
        /// Peers that are known.
        PEERS: Gauge "peers" [];
        /// Peers without a label of their own, whose figures are summed up under the peer `other`.
        PEERS_UNLISTED: Gauge "peers_unlisted" [];
        /// Connections that were turned away: strangers, other versions, limits.
        CONNECTIONS_REFUSED: Counter "connections_refused" [];
        /// Work that only a periodic check found. Each is a fault of the engine.
        RESCUES: Counter "rescues" [];
        /// Panics of observers, mailboxes and listeners.
        CALLBACK_PANICS: Counter "callback_panics" [];
        /// Transfers that are complete, by the operation posted here and by the way of their payload.
        TRANSFERS: Counter "transfers" ["peer", "kind", "path"];
        /// Payload of complete transfers, by the same labels.
        TRANSFER_BYTES: Counter "transfer" in "bytes" ["peer", "kind", "path"];
        /// Transfers that failed, by reason.
        TRANSFER_FAILURES: Counter "transfer_failures" ["peer", "reason"];
        /// Time of complete writes, reads and sends from post to completion, by the way of their payload and by size. Receives wait for whoever sends, and are not in it.
        TRANSFER_DURATION: Histogram "transfer_duration" in "seconds" ["path", "size"];
        /// Payload that devices or CPUs here were given to copy from end to end, without a rail.
        PEER_COPY_BYTES: Counter "peer_copy" in "bytes" ["peer"];
        /// Payload that was left in memory that both processes have open.
        PEER_SHARED_BYTES: Counter "peer_shared" in "bytes" ["peer"];
        /// How often a peer was refused because one of its quotas was used up here.
        QUOTA_REFUSALS: Counter "quota_refusals" ["peer"];
        /// Payload sent over a rail.
        RAIL_SENT_BYTES: Counter "rail_sent" in "bytes" ["peer", "rail"];
        /// Payload that landed from flows that arrive at a rail.
        RAIL_RECEIVED_BYTES: Counter "rail_received" in "bytes" ["peer", "rail"];
        /// Chunks sent over a rail.
        RAIL_SENT_CHUNKS: Counter "rail_sent_chunks" ["peer", "rail"];
        /// Chunks that landed from flows that arrive at a rail.
        RAIL_RECEIVED_CHUNKS: Counter "rail_received_chunks" ["peer", "rail"];
        /// Payload that was read and thrown away: late copies, and what was refused.
        RAIL_DISCARDED_BYTES: Counter "rail_discarded" in "bytes" ["peer", "rail"];
        /// TCP segments that the kernel sent again.
        RAIL_RETRANSMITS: Counter "rail_retransmits" ["peer", "rail"];
        /// Chunks that a flow gave back when it died, for others to send again.
        RAIL_RESENT_CHUNKS: Counter "rail_resent_chunks" ["peer", "rail"];
        /// How often a flow was lost.
        RAIL_FLOW_LOSSES: Counter "rail_flow_losses" ["peer", "rail"];
        /// Time that flows had something to send and no room in the window.
        RAIL_WINDOW_FULL: Counter "rail_window_full" in "seconds" ["peer", "rail"];
        /// Time that flows had something to send and no room in the socket.
        RAIL_SOCKET_FULL: Counter "rail_socket_full" in "seconds" ["peer", "rail"];
        /// Flows towards a peer, by state: up or down.
        RAIL_FLOWS: Gauge "rail_flows" ["peer", "rail", "state"];
        /// Chunks that are sent and not acknowledged.
        RAIL_CHUNKS_IN_FLIGHT: Gauge "rail_chunks_in_flight" ["peer", "rail"];
        /// Smoothed round-trip time of the slowest flow that is up.
        RAIL_ROUND_TRIP: Gauge "rail_round_trip" in "seconds" ["peer", "rail"];
        /// Speed of the link of a rail, if the driver tells.
        RAIL_SPEED: Gauge "rail_speed_bytes_per_second" ["rail"];
        /// CPU time of a proxy's thread.
        PROXY_CPU: Counter "proxy_cpu" in "seconds" ["proxy"];
        /// Passes of a proxy over its flows, by whether they moved something.
        PROXY_PASSES: Counter "proxy_passes" ["proxy", "moved"];
        /// How often a proxy went to sleep.
        PROXY_SLEEPS: Counter "proxy_sleeps" ["proxy"];
    }
}

/// Metrics of the exporter.
pub mod exporter {
    use super::{Family, Kind, Scope};

    families! { Exporter
        /// Whether the process behind a socket answered in time with metrics that can be read.
        UP: Gauge "up" ["pid", "socket"];
        /// The exporter's version.
        INFO: Info "exporter" ["version"];
        /// Sockets that were asked in the last round.
        PROCESSES: Gauge "exporter_processes" [];
        /// Sockets that were not asked: beyond the limit, or with a name that looks like another's.
        SOCKETS_IGNORED: Gauge "exporter_sockets_ignored" [];
        /// Whether the folder, or without one the kernel's list of sockets, could be read.
        FOLDER_READABLE: Gauge "exporter_folder_readable" [];
        /// How long the last round took.
        GATHER_TIME: Gauge "exporter_gather" in "seconds" [];
        /// Processes that gave no metrics, by reason.
        FAILURES: Counter "exporter_failures" ["reason"];
        /// Sockets of dead processes that were removed.
        SOCKETS_REMOVED: Counter "exporter_sockets_removed" [];
    }
}

/// All metrics, in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static Family> {
    engine::ALL.iter().chain(exporter::ALL).copied()
}

/// The tables of the page `docs/metrics.md`.
pub fn markdown() -> String {
    let mut page = String::new();
    for (scope, heading) in [(Scope::Engine, "Engines"), (Scope::Exporter, "The exporter itself")] {
        let _ = write!(page, "\n### {heading}\n\n| Metric | Type | Unit | Labels | Meaning |\n");
        page.push_str("|---|---|---|---|---|\n");
        for family in all().filter(|family| family.scope == scope) {
            let kind = format!("{:?}", family.kind).to_lowercase();
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, unit) = (family.full_name(), family.unit.unwrap_or_default());
            let (labels, help) = (labels.join(", "), family.help);
            let _ = writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {help} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::env;
    use std::fs;
    use std::path::Path;

    use super::*;

    const BEGIN: &str = "<!-- Written by a test from the table in crates/engine/metrics. -->\n";
    const END: &str = "<!-- End of the table. -->\n";

    #[test]
    fn names_are_valid_and_given_once() {
        let mut seen = HashSet::new();
        for family in all() {
            let name = family.full_name();
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(seen.insert(name.clone()), "{name} is given twice");
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
            // The encoder adds these suffixes to counters, and a unit has a separate field.
            for suffix in ["_total", "_bytes", "_seconds", "_info", "_count", "_sum", "_bucket"] {
                assert!(!family.name.ends_with(suffix), "{name}");
            }
            assert!(family.unit.is_none_or(|unit| ["bytes", "seconds"].contains(&unit)), "{name}");
            let given = ["engine", "rank", "instance", "job", "le"];
            assert!(!family.labels.iter().any(|label| given.contains(label)), "{name}");
        }
    }

    #[test]
    fn the_committed_page_has_the_written_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/metrics.md");
        let page = fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the page has the mark");
        let (table, after) = rest.split_once(END).expect("the page has the other mark");
        let written = format!("{}\n", markdown());
        let is_to_write = env::var_os("WRITE_METRICS").is_some();
        if is_to_write {
            fs::write(&path, format!("{before}{BEGIN}{written}{END}{after}")).unwrap();
        }
        let run = "run: WRITE_METRICS=1 cargo test -p polyrail-metrics --lib";
        let is_current = is_to_write || table == written;
        assert!(is_current, "docs/metrics.md is not what the table says; {run}");
    }
}
