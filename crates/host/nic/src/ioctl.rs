//! Facts that only the old ethtool call provides: the driver, its own counters, its flow rules and receiving queues.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use serde::Serialize;

use crate::error::NicError;
use crate::os;

/// The driver of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// The driver's name, such as `gve`.
    pub driver: String,
    /// The driver's own version, or the kernel's.
    pub version: String,
    /// The firmware's version; empty if the driver does not report it.
    pub firmware: String,
    /// The place on the bus, usually the PCI address.
    pub bus: String,
}

/// Offloads of an interface: work that the device or the kernel does for many packets at once, or
/// instead of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offloads {
    /// The device cuts long sends into packets (TSO).
    pub tso: bool,
    /// The kernel passes long sends on in one piece until the driver or the device cuts them (GSO).
    pub gso: bool,
    /// The kernel merges received packets before TCP processes them (GRO).
    pub gro: bool,
    /// The device computes checksums of sent packets.
    pub tx_checksum: bool,
    /// The device checks checksums of received packets.
    pub rx_checksum: bool,
}

const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXRINGS: u32 = 0x2d;
const GRXCSUM: u32 = 0x14;
const GTXCSUM: u32 = 0x16;
const GTSO: u32 = 0x1e;
const GGSO: u32 = 0x23;
const GGRO: u32 = 0x2b;

const STRING_SET_STATS: u32 = 1;
const STRING_BYTES: usize = 32;
/// `struct ethtool_drvinfo`.
const DRVINFO_BYTES: usize = 196;
/// `struct ethtool_rxnfc` without its table.
const RXNFC_BYTES: usize = 192;
/// Limits the memory that a driver can make this process allocate; the largest NICs have some ten
/// thousand counters.
const COUNTERS_LIMIT: usize = 32_000;

/// Returns the driver of `nic`.
///
/// # Errors
/// [`NicError::Refused`] if there is no such interface, or its driver does not report itself.
pub fn driver_info(nic: &str) -> Result<DriverInfo, NicError> {
    let mut request = command(GDRVINFO, DRVINFO_BYTES);
    call(nic, "the driver", &mut request)?;
    let bytes = to_bytes(&request);
    let field = |at: usize| polyrail_netlink::text(&bytes[at..at + STRING_BYTES]).trim().to_owned();
    Ok(DriverInfo { driver: field(4), version: field(36), firmware: field(68), bus: field(100) })
}

/// Returns the named counters of the driver of `nic`, as `ethtool -S` shows them.
///
/// # Errors
/// [`NicError::Refused`] if there is no such interface. Without counters the list is empty.
pub fn driver_stats(nic: &str) -> Result<Vec<(String, u64)>, NicError> {
    // `struct ethtool_sset_info`: command, reserved, a mask of 64 bits, one count per bit.
    let mut request = command(GSSET_INFO, 20);
    request[2] = 1 << STRING_SET_STATS;
    call(nic, "the driver's counters", &mut request)?;
    let count = match request[2] {
        0 => return Ok(Vec::new()),
        _ => request[4] as usize,
    };
    if count > COUNTERS_LIMIT {
        let asked = format!("the driver's counters of {nic}");
        return Err(NicError::Malformed { asked, fault: "more than 32,000 counters" });
    }
    // The kernel uses the driver's count at that moment for both requests, and writes as many
    // entries. If the count grows in between, the kernel would write past the first count, so the
    // buffers have room for as many as can be expected.
    let room = COUNTERS_LIMIT.min(count * 2 + 64);
    let mut names = command(GSTRINGS, 12 + room * STRING_BYTES);
    names[1] = STRING_SET_STATS;
    names[2] = count as u32;
    call(nic, "the names of the driver's counters", &mut names)?;
    let mut values = command(GSTATS, 8 + room * 8);
    values[1] = count as u32;
    call(nic, "the driver's counters", &mut values)?;
    Ok(paired(&to_bytes(&names), &to_bytes(&values)))
}

/// Returns the number of flow rules (`ethtool -n`) of `nic`.
///
/// # Errors
/// [`NicError::Refused`]; see [`NicError::is_unsupported`] for drivers that have none.
pub fn ntuple_rules(nic: &str) -> Result<u32, NicError> {
    let mut request = command(GRXCLSRLCNT, RXNFC_BYTES);
    call(nic, "the flow rules", &mut request)?;
    // `rule_cnt` comes after command, type, data and one `ethtool_rx_flow_spec` of 168 bytes.
    Ok(request[184 / 4])
}

/// Returns the state of the offloads of `nic`, as `ethtool -k` shows them.
///
/// # Errors
/// [`NicError::Refused`] if there is no such interface.
pub fn offloads(nic: &str) -> Result<Offloads, NicError> {
    let is_on = |number: u32| -> Result<bool, NicError> {
        // `struct ethtool_value`: command and answer.
        let mut request = command(number, 8);
        call(nic, "the offloads", &mut request)?;
        Ok(request[1] != 0)
    };
    Ok(Offloads {
        tso: is_on(GTSO)?,
        gso: is_on(GGSO)?,
        gro: is_on(GGRO)?,
        tx_checksum: is_on(GTXCSUM)?,
        rx_checksum: is_on(GRXCSUM)?,
    })
}

/// Returns the number of active receiving queues of `nic`: those that packets can be spread over.
///
/// # Errors
/// [`NicError::Refused`]; see [`NicError::is_unsupported`] for drivers that don't report it.
pub fn rx_queues(nic: &str) -> Result<u32, NicError> {
    let mut request = command(GRXRINGS, RXNFC_BYTES);
    call(nic, "the receiving queues", &mut request)?;
    // The low half of `data`, which comes after command and type.
    let number = u64::from_ne_bytes(word_pair(&request, 2));
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

/// For fuzzing: reads names and values out of an answer.
pub(crate) fn examine(bytes: &[u8]) -> usize {
    paired(bytes, bytes).len()
}

fn paired(names: &[u8], values: &[u8]) -> Vec<(String, u64)> {
    let count_at = |bytes: &[u8], at| polyrail_netlink::u32_at(bytes, at).unwrap_or(0) as usize;
    let count = count_at(names, 8).min(count_at(values, 4)).min(COUNTERS_LIMIT);
    let (names, _) = names.get(12..).unwrap_or_default().as_chunks::<STRING_BYTES>();
    let (values, _) = values.get(8..).unwrap_or_default().as_chunks::<8>();
    let pairs = names.iter().zip(values).take(count);
    pairs
        .map(|(name, value)| {
            (polyrail_netlink::text(name).trim().to_owned(), u64::from_ne_bytes(*value))
        })
        .collect()
}

pub(crate) fn command(number: u32, bytes: usize) -> Vec<u32> {
    let mut request = vec![0; bytes.div_ceil(4)];
    request[0] = number;
    request
}

/// Returns eight bytes that the kernel laid out over two words.
fn word_pair(words: &[u32], at: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&words[at].to_ne_bytes());
    bytes[4..].copy_from_slice(&words[at + 1].to_ne_bytes());
    bytes
}

fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn call(nic: &str, what: &str, request: &mut [u32]) -> Result<(), NicError> {
    // Any socket can reach the driver of an interface.
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"));
    let socket = socket.map_err(|source| NicError::Open { what: "a socket", source })?;
    os::ethtool_ioctl(socket.as_fd(), nic, request).map_err(|source| NicError::Refused {
        asked: format!("{what} of {nic}"),
        source,
        said: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_paired_up_to_the_smaller_count() {
        let mut names = vec![0; 12 + 3 * STRING_BYTES];
        names[8] = 3;
        for (index, name) in ["rx_drops", "  tx[0]"].iter().enumerate() {
            let at = 12 + index * STRING_BYTES;
            names[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let mut values = vec![0; 8 + 16];
        values[4] = 2;
        values[8] = 7;
        values[16] = 9;
        assert_eq!(paired(&names, &values), [("rx_drops".into(), 7), ("tx[0]".into(), 9)]);
        assert_eq!(paired(&[], &values), []);
    }
}
