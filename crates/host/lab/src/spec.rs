//! The specification of a lab: its name, sides, rails and their addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::LabError;
use crate::network::Network;
use crate::node::Node;
use crate::rate::Rate;

/// Everything that [`Lab::up`](crate::Lab::up) needs to know to build a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabSpec {
    /// 1 to 32 letters, digits, `-` or `_`, the first a letter or digit.
    pub name: String,
    /// The speed of each rail, in both directions; 1 to 16 rails.
    pub rails: Vec<Rate>,
    /// Number of nodes on the switch, 2 to 32; `None` joins sides a and b directly, without a switch.
    pub nodes: Option<usize>,
    /// The addresses and routes that the rails have. Some networks need a switch, to which 2 nodes are then connected
    /// by default.
    pub network: Network,
    /// Time that a full queue at the shaper holds a packet, in milliseconds; 1 to 1000.
    pub queue_ms: u32,
    /// The largest IP packet, in bytes; 1280 (IPv6 needs it) to 65535.
    pub mtu: u32,
    /// Whether the lab is tied to the calling process: once the process has ended without removing it, the lab is
    /// reported as [broken](crate::LabState::Broken). [`Lab::up`](crate::Lab::up) removes such labs of this user before
    /// it builds another one tied to a process.
    pub ends_with_process: bool,
}

/// One of the two nodes of a lab without a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side of the connecting program, by convention.
    A,
    /// The side of the listening program, by convention.
    B,
}

/// The kernel's view of one rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailInfo {
    /// 0 for the first rail.
    pub index: usize,
    /// The interface's name, the same on all nodes.
    pub name: String,
    /// The speed of the slowest end.
    pub rate: Rate,
    /// Whether all ends are up.
    pub up: bool,
    /// One end per node, in order.
    pub ends: Vec<RailEnd>,
}

/// One end of a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailEnd {
    pub ipv4: Ipv4Addr,
    /// The IPv6 address; `None` when the kernel runs without IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// The speed at which this end sends.
    pub rate: Rate,
    /// The speed at which the port of the switch sends to this end; `None` without a switch.
    pub port_rate: Option<Rate>,
    /// Whether the interface is switched on at this end, and its port at the switch.
    pub up: bool,
}

impl LabSpec {
    /// Maximum number of rails of one lab.
    pub const MAX_RAILS: usize = 16;
    /// Maximum number of nodes of one lab.
    pub const MAX_NODES: usize = 32;
    /// Maximum length of a name, in bytes.
    pub const MAX_NAME: usize = 32;
    /// Default queue: long enough for a flow to fill the rail, short enough that a resend does not
    /// get stuck behind it.
    pub const DEFAULT_QUEUE_MS: u32 = 10;
    pub const DEFAULT_MTU: u32 = 1500;

    /// Makes a spec with the default queue and MTU. [`Lab::up`](crate::Lab::up) checks the values.
    pub fn new(name: impl Into<String>, rails: Vec<Rate>) -> Self {
        let (queue_ms, mtu) = (Self::DEFAULT_QUEUE_MS, Self::DEFAULT_MTU);
        let ends_with_process = false;
        let (nodes, network) = (None, Network::default());
        Self { name: name.into(), rails, nodes, network, queue_ms, mtu, ends_with_process }
    }

    /// Reads rates separated by commas; `4x1gbit` stands for four rails of 1 Gbit/s.
    ///
    /// # Errors
    /// [`LabError::BadValue`] for a bad rate or count, or more than 16 rails.
    pub fn parse_rails(text: &str) -> Result<Vec<Rate>, LabError> {
        let allowed = format!("1 to {} rates", Self::MAX_RAILS);
        let mut rails = Vec::new();
        for item in text.split(',') {
            let (count, rate) = match item.trim().split_once(['x', 'X']) {
                Some((count, rate)) => {
                    let count = count.trim().parse::<usize>().ok();
                    let count = count.filter(|count| (1..=Self::MAX_RAILS).contains(count));
                    let bad = || LabError::bad("rails", item, allowed.clone());
                    (count.ok_or_else(bad)?, rate)
                }
                None => (1, item),
            };
            rails.extend(std::iter::repeat_n(rate.parse::<Rate>()?, count));
            if rails.len() > Self::MAX_RAILS {
                return Err(LabError::bad("rails", text, allowed));
            }
        }
        Ok(rails)
    }

    /// Checks that a text is a valid name of a lab, not that such a lab exists.
    ///
    /// # Errors
    /// [`LabError::BadValue`].
    pub fn check_name(name: &str) -> Result<(), LabError> {
        validate_name(name)
    }

    /// Number of nodes on a switch; `None` without a switch.
    pub(crate) fn switched_nodes(&self) -> Option<usize> {
        self.nodes.or_else(|| self.network.needs_switch().then_some(2))
    }

    /// Checks every value without touching the system.
    ///
    /// # Errors
    /// [`LabError::BadValue`] for the first value out of range.
    pub fn validate(&self) -> Result<(), LabError> {
        validate_name(&self.name)?;
        if self.rails.is_empty() || self.rails.len() > Self::MAX_RAILS {
            let allowed = format!("1 to {} rates", Self::MAX_RAILS);
            return Err(LabError::bad("rails", self.rails.len(), allowed));
        }
        let is_count_valid = match self.network {
            Network::Pod => self.rails.len() == 1,
            Network::Management => self.rails.len() >= 2,
            _ => true,
        };
        if !is_count_valid {
            let rails = listed(&self.rails);
            return Err(LabError::RailCount {
                rails,
                network: self.network.to_string(),
                allowed: self.network.rails_allowed(),
                help: self.network.rails_help(),
            });
        }
        if let Some(nodes) = self.nodes
            && !(2..=Self::MAX_NODES).contains(&nodes)
        {
            let allowed = format!("2 to {}", Self::MAX_NODES);
            return Err(LabError::bad("nodes", nodes, allowed));
        }
        if !(1280..=65535).contains(&self.mtu) {
            return Err(LabError::bad("mtu", self.mtu, "1280 to 65535 bytes"));
        }
        if !(1..=1000).contains(&self.queue_ms) {
            return Err(LabError::bad("queue-ms", self.queue_ms, "1 to 1000 ms"));
        }
        self.rails.iter().try_for_each(|rate| Shape::new(*rate, self.queue_ms).map(drop))
    }
}

/// Formats rates as [`LabSpec::parse_rails`] reads them: `3x100mbit`, or `1gbit,2x4gbit`.
fn listed(rails: &[Rate]) -> String {
    let runs = rails.chunk_by(|one, next| one == next).map(|same| match same {
        [rate] => rate.to_string(),
        _ => format!("{}x{}", same.len(), same[0]),
    });
    runs.collect::<Vec<_>>().join(",")
}

impl Side {
    /// Both sides, a first.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// `a` or `b`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl FromStr for Side {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        match text {
            "a" | "A" => Ok(Self::A),
            "b" | "B" => Ok(Self::B),
            _ => Err(LabError::bad("side", text, "a or b")),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl RailInfo {
    /// Returns the end on `node`.
    ///
    /// # Panics
    /// If the lab has no such node.
    pub fn end(&self, node: impl Into<Node>) -> &RailEnd {
        &self.ends[node.into().index()]
    }
}

/// A rate as the token bucket needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) bytes_per_second: u64,
    /// Bytes that may pass at once after a pause.
    pub(crate) burst: u32,
    /// Capacity of the queue, in bytes.
    pub(crate) limit: u32,
}

impl Shape {
    /// Converts a rate; `None` for an unlimited rail, which has no token bucket.
    pub(crate) fn new(rate: Rate, queue_ms: u32) -> Result<Option<Self>, LabError> {
        let Some(bytes_per_second) = rate.bytes_per_second() else { return Ok(None) };
        // With a bucket smaller than a 64 KiB super-packet, the kernel would cut each one up. A
        // bucket that fills in less than a scheduling delay would lose that time for good.
        let burst = (bytes_per_second / 1000 * BURST_MS).max(128 * 1024);
        let limit = burst + bytes_per_second * u64::from(queue_ms) / 1000;
        let (Ok(burst), Ok(limit)) = (u32::try_from(burst), u32::try_from(limit)) else {
            let most_ms = (u64::from(u32::MAX) - burst) * 1000 / bytes_per_second;
            let allowed = format!("1 to {most_ms} ms at {rate}, since the kernel counts to 4 GiB");
            return Err(LabError::bad("queue-ms", queue_ms, allowed));
        };
        Ok(Some(Self { bytes_per_second, burst, limit }))
    }
}

const BURST_MS: u64 = 2;

pub(crate) fn validate_name(name: &str) -> Result<(), LabError> {
    let letters =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if letters && first && name.len() <= LabSpec::MAX_NAME {
        return Ok(());
    }
    let allowed = format!(
        "1 to {} letters, digits, `-` and `_`, the first a letter or digit",
        LabSpec::MAX_NAME
    );
    Err(LabError::bad("name", name, allowed))
}

pub(crate) fn rail_name(index: usize) -> String {
    format!("rail{index}")
}

/// Reads `rail3` or `3`, without checking that the lab has this rail.
pub(crate) fn rail_index(text: &str) -> Option<usize> {
    let digits = text.strip_prefix("rail").unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let padded = digits.len() > 1 && digits.starts_with('0');
    let index = digits.parse().ok().filter(|_| plain && !padded)?;
    (index < LabSpec::MAX_RAILS).then_some(index)
}

/// Returns the IPv4 address of a node's end; `rail` is below [`LabSpec::MAX_RAILS`].
pub(crate) fn ipv4_of(rail: usize, node: Node) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rail as u8, node.host())
}

/// Returns the IPv6 address, which resembles the IPv4 address of the same rail; `rail` is below
/// [`LabSpec::MAX_RAILS`].
pub(crate) fn ipv6_of(rail: usize, node: Node) -> Ipv6Addr {
    Ipv6Addr::new(0xfd10, 0x77, 0, rail as u16, 0, 0, 0, node.host().into())
}

/// Returns a hardware address from the locally administered range, which no real hardware has.
pub(crate) fn hardware_of(rail: usize, node: Node) -> [u8; 6] {
    [0x02, b'p', b'r', 0, rail as u8, node.host()]
}

/// Returns the hardware address of the switch's port that leads to `node`.
pub(crate) fn port_hardware_of(rail: usize, node: Node) -> [u8; 6] {
    [0x02, b'p', b'r', 1, rail as u8, node.host()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(text: &str) -> String {
        let rails = LabSpec::parse_rails(text).unwrap();
        rails.iter().map(Rate::to_string).collect::<Vec<_>>().join(" ")
    }

    fn refused(change: impl FnOnce(&mut LabSpec)) -> String {
        let mut spec = LabSpec::new("demo", vec![Rate::UNLIMITED]);
        spec.validate().unwrap();
        change(&mut spec);
        spec.validate().unwrap_err().to_string()
    }

    #[test]
    fn rails_are_listed_counted_or_both() {
        assert_eq!(rails("1gbit"), "1gbit");
        assert_eq!(rails("4gbit,2gbit, 1gbit"), "4gbit 2gbit 1gbit");
        assert_eq!(rails("3x100mbit"), "100mbit 100mbit 100mbit");
        assert_eq!(rails("2x1gbit,unlimited"), "1gbit 1gbit unlimited");
        assert_eq!(LabSpec::parse_rails("16x1gbit").unwrap().len(), 16);
    }

    #[test]
    fn bad_rails_name_what_is_wrong_with_them() {
        for text in ["", ",", "1gbit,", "0x1gbit", "17x1gbit", "x1gbit", "4x", "9x1gbit,8x1gbit"] {
            let error = LabSpec::parse_rails(text).unwrap_err();
            assert!(matches!(error, LabError::BadValue { field: "rails" | "rate", .. }), "{text}");
        }
        let error = LabSpec::parse_rails("4x1000").unwrap_err().to_string();
        assert_eq!(
            error,
            "rate `1000` is not valid; allowed: 1mbit to 400gbit in whole kbit, or unlimited"
        );
    }

    #[test]
    fn a_huge_count_is_refused_before_memory_is_taken() {
        assert!(LabSpec::parse_rails("18446744073709551615x1gbit").is_err());
        assert!(LabSpec::parse_rails("99999999999999999999x1gbit").is_err());
    }

    #[test]
    fn names_that_could_leave_the_directory_or_confuse_a_shell_are_refused() {
        for name in ["", "-x", "_x", "a/b", "..", ".", "a b", "a;b", "ä", "a\n", &"x".repeat(33)] {
            assert!(validate_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "4x1", "bench-123", "My_Lab", &"x".repeat(32)] {
            assert!(validate_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn each_value_out_of_range_is_named_with_its_range() {
        assert!(refused(|spec| spec.mtu = 1279).contains("mtu `1279`"));
        assert!(refused(|spec| spec.mtu = 65536).contains("1280 to 65535"));
        for nodes in [0, 1, 33] {
            let error = refused(|spec| spec.nodes = Some(nodes));
            assert!(error.contains(&format!("nodes `{nodes}`")), "{error}");
            assert!(error.contains("2 to 32"), "{error}");
        }
        assert!(refused(|spec| spec.queue_ms = 0).contains("queue-ms `0`"));
        assert!(refused(|spec| spec.queue_ms = 1001).contains("1 to 1000 ms"));
        assert!(refused(|spec| spec.rails.clear()).contains("rails `0`"));
        let refused_with = |network, rails: &str| {
            refused(|spec| {
                (spec.network, spec.rails) = (network, LabSpec::parse_rails(rails).unwrap());
            })
        };
        assert_eq!(
            refused_with(Network::Pod, "3x100mbit"),
            "rails `3x100mbit` is not valid with the network `pod`; allowed: 1 rate, as each node has one interface"
        );
        let error = refused_with(Network::Management, "1gbit");
        assert!(error.contains("rails `1gbit`") && error.contains("2 rates or more"), "{error}");
        let error = refused_with(Network::Pod, "1gbit,2x4gbit");
        assert!(error.contains("rails `1gbit,2x4gbit`"), "{error}");
        assert!(refused(|spec| spec.rails = vec![Rate::UNLIMITED; 17]).contains("1 to 16"));
    }

    #[test]
    fn a_queue_beyond_what_the_kernel_counts_is_refused() {
        let error = refused(|spec| {
            spec.rails = vec!["400gbit".parse().unwrap()];
            spec.queue_ms = 100;
        });
        assert!(error.contains("queue-ms `100`") && error.contains("1 to 83 ms"), "{error}");
        let at_most = Shape::new("400gbit".parse().unwrap(), 83).unwrap().unwrap();
        assert!(at_most.limit > 4_000_000_000);
    }

    #[test]
    fn rails_are_found_by_name_or_number() {
        assert_eq!(rail_index("rail0"), Some(0));
        assert_eq!(rail_index("15"), Some(15));
        for text in ["", "rail", "16", "+1", "01", "rail01", "rail-1", "eth0", "railrail0"] {
            assert_eq!(rail_index(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_differ_between_rails_and_nodes() {
        let mut seen = std::collections::HashSet::new();
        for rail in 0..LabSpec::MAX_RAILS {
            for node in (0..LabSpec::MAX_NODES).map(|index| Node::new(index).unwrap()) {
                assert!(seen.insert(ipv4_of(rail, node).to_string()));
                assert!(seen.insert(ipv6_of(rail, node).to_string()));
                assert!(seen.insert(format!("{:?}", hardware_of(rail, node))));
                assert!(seen.insert(format!("{:?}", port_hardware_of(rail, node))));
            }
        }
        assert_eq!(ipv4_of(3, Side::B.into()).to_string(), "10.77.3.2");
        assert_eq!(ipv6_of(3, Side::B.into()).to_string(), "fd10:77:0:3::2");
    }
}
