//! The `ethtool` family: queues, rings, coalescing and receive-side scaling.

use std::collections::BTreeMap;

use polyrail_netlink::{Message, any_uint, find, find_u32};
use serde::Serialize;

use crate::error::NicError;
use crate::generic::Family;

/// A socket to the kernel's `ethtool` family, which came with Linux 5.6.
#[derive(Debug)]
pub struct Ethtool {
    family: Family,
}

/// A current value and its maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The current value; `None` if the driver does not support it.
    pub now: Option<u32>,
    /// The maximum that the device supports.
    pub max: Option<u32>,
}

/// The queues of an interface, as `ethtool -l` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Queues that only receive.
    pub rx: Limits,
    /// Queues that only send.
    pub tx: Limits,
    /// Interrupts for other purposes.
    pub other: Limits,
    /// Pairs of a receiving and a sending queue.
    pub combined: Limits,
}

/// The rings of an interface, as `ethtool -g` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rings {
    /// Descriptors of each receiving queue.
    pub rx: Limits,
    /// Descriptors of each sending queue.
    pub tx: Limits,
    /// The size of a receive buffer in bytes.
    pub rx_buffer_bytes: Option<u32>,
    /// Placement of headers and payload: 0 is the driver's choice, 1 one buffer, 2 separate
    /// buffers.
    pub tcp_data_split: Option<u32>,
    /// Packets above this many bytes are split.
    pub hds_threshold_bytes: Limits,
}

/// The distribution of received packets over queues, as `ethtool -x` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The queue of each bucket; empty if the driver does not report it.
    pub indirection: Vec<u32>,
    /// The key of the hash; empty if the driver does not report it.
    pub key: Vec<u8>,
    /// The hash function's bit: 1 Toeplitz, 2 XOR, 4 CRC32.
    pub function: Option<u32>,
}

/// A group of settings, which one request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// `ethtool -l` and `-L`.
    Channels,
    /// `ethtool -g` and `-G`.
    Rings,
    /// `ethtool -c` and `-C`.
    Coalesce,
}

/// A numeric setting of an interface that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub group: Group,
    /// The name in the group, as `ethtool` spells it.
    pub name: &'static str,
    attribute: u16,
    is_byte: bool,
    /// The attribute with the setting's maximum; 0 if it has none.
    max_attribute: u16,
}

/// Every setting that can be read and written.
pub const SETTINGS: &[Setting] = &[
    count(Group::Channels, "rx", 6, 2),
    count(Group::Channels, "tx", 7, 3),
    count(Group::Channels, "combined", 9, 5),
    count(Group::Rings, "rx", 6, 2),
    count(Group::Rings, "tx", 9, 5),
    count(Group::Rings, "rx-buf-len", 10, 0),
    flag(Group::Rings, "tcp-data-split", 11),
    flag(Group::Rings, "tx-push", 13),
    count(Group::Rings, "hds-thresh", 17, 18),
    count(Group::Coalesce, "rx-usecs", 2, 0),
    count(Group::Coalesce, "rx-frames", 3, 0),
    count(Group::Coalesce, "rx-usecs-irq", 4, 0),
    count(Group::Coalesce, "rx-frames-irq", 5, 0),
    count(Group::Coalesce, "tx-usecs", 6, 0),
    count(Group::Coalesce, "tx-frames", 7, 0),
    count(Group::Coalesce, "tx-usecs-irq", 8, 0),
    count(Group::Coalesce, "tx-frames-irq", 9, 0),
    count(Group::Coalesce, "stats-block-usecs", 10, 0),
    flag(Group::Coalesce, "adaptive-rx", 11),
    flag(Group::Coalesce, "adaptive-tx", 12),
    count(Group::Coalesce, "pkt-rate-low", 13, 0),
    count(Group::Coalesce, "rx-usecs-low", 14, 0),
    count(Group::Coalesce, "rx-frames-low", 15, 0),
    count(Group::Coalesce, "tx-usecs-low", 16, 0),
    count(Group::Coalesce, "tx-frames-low", 17, 0),
    count(Group::Coalesce, "pkt-rate-high", 18, 0),
    count(Group::Coalesce, "rx-usecs-high", 19, 0),
    count(Group::Coalesce, "rx-frames-high", 20, 0),
    count(Group::Coalesce, "tx-usecs-high", 21, 0),
    count(Group::Coalesce, "tx-frames-high", 22, 0),
    count(Group::Coalesce, "sample-interval", 23, 0),
];

const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const RSS_GET: u8 = 38;
const RSS_HFUNC: u16 = 3;
const RSS_INDIRECTION: u16 = 4;
const RSS_KEY: u16 = 5;

impl Ethtool {
    /// Opens a socket to the `ethtool` family.
    ///
    /// # Errors
    /// [`NicError::NoFamily`] on kernels without it, and [`NicError::Open`] if no netlink socket
    /// can be opened.
    pub fn open() -> Result<Self, NicError> {
        Ok(Self { family: Family::open("ethtool")? })
    }

    /// Reads the queues of `nic`.
    ///
    /// # Errors
    /// [`NicError`]; see [`NicError::is_unsupported`] for drivers that don't report them.
    pub fn channels(&mut self, nic: &str) -> Result<Channels, NicError> {
        Ok(channels(&self.group(nic, Group::Channels)?))
    }

    /// Reads the rings of `nic`.
    ///
    /// # Errors
    /// As [`Self::channels`].
    pub fn rings(&mut self, nic: &str) -> Result<Rings, NicError> {
        Ok(rings(&self.group(nic, Group::Rings)?))
    }

    /// Reads the interrupt coalescing of `nic`: values by their names in [`SETTINGS`].
    ///
    /// # Errors
    /// As [`Self::channels`].
    pub fn coalesce(&mut self, nic: &str) -> Result<BTreeMap<&'static str, u32>, NicError> {
        let body = self.group(nic, Group::Coalesce)?;
        let all = SETTINGS.iter().filter(|setting| setting.group == Group::Coalesce);
        Ok(all.filter_map(|setting| Some((setting.name, setting.read(&body)?))).collect())
    }

    /// Reads the distribution of packets that `nic` receives.
    ///
    /// # Errors
    /// As [`Self::channels`]; kernels before 6.2 don't support this request.
    pub fn rss(&mut self, nic: &str) -> Result<Rss, NicError> {
        let asked = format!("RSS of {nic}");
        let answers = self.family.call(RSS_GET, &asked, |message| header(message, nic))?;
        let body = answers.first().ok_or(NicError::Malformed { asked, fault: "nothing in it" })?;
        Ok(rss(body))
    }

    /// Reads one setting of `nic` and, where it has one, its maximum.
    ///
    /// # Errors
    /// As [`Self::channels`].
    pub fn value(&mut self, nic: &str, setting: &Setting) -> Result<Limits, NicError> {
        let body = self.group(nic, setting.group)?;
        let max = (setting.max_attribute != 0).then_some(setting.max_attribute);
        Ok(Limits {
            now: setting.read(&body),
            max: max.and_then(|attribute| find_u32(&body, attribute)),
        })
    }

    /// Changes settings of one group; others keep their values. Many drivers reset the device for
    /// this: the link is down for a moment, and the affinities of its interrupts may be lost.
    ///
    /// # Errors
    /// [`NicError`] with the driver's message; then nothing has changed.
    pub fn set(&mut self, nic: &str, values: &[(&Setting, u32)]) -> Result<(), NicError> {
        let Some((first, _)) = values.first() else { return Ok(()) };
        let shown: Vec<String> =
            values.iter().map(|(setting, value)| format!("{}={value}", setting.name)).collect();
        let asked = format!("{} of {nic}: {}", first.group.name(), shown.join(" "));
        if values.iter().any(|(setting, _)| setting.group != first.group) {
            return Err(NicError::Malformed { asked, fault: "settings of several groups" });
        }
        self.family.call(first.group.command() + 1, &asked, |message| {
            header(message, nic);
            for (setting, value) in values {
                match setting.is_byte {
                    true => message.attribute(setting.attribute, &[*value as u8]),
                    false => message.attribute_u32(setting.attribute, *value),
                }
            }
        })?;
        Ok(())
    }

    fn group(&mut self, nic: &str, group: Group) -> Result<Vec<u8>, NicError> {
        let asked = format!("{} of {nic}", group.name());
        let answers = self.family.call(group.command(), &asked, |message| header(message, nic))?;
        let fault = "nothing in it";
        answers.into_iter().next().ok_or(NicError::Malformed { asked, fault })
    }
}

impl Setting {
    /// Finds a setting by its full name, such as `rings.rx`.
    pub fn parse(full_name: &str) -> Option<&'static Self> {
        let (group, name) = full_name.split_once('.')?;
        SETTINGS.iter().find(|setting| setting.group.name() == group && setting.name == name)
    }

    /// Returns the full name, such as `rings.rx`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.group.name(), self.name)
    }

    /// Returns the equivalent `ethtool` command, to check or to paste.
    pub fn command(&self, nic: &str, value: &str) -> String {
        let option = match self.group {
            Group::Channels => "-L",
            Group::Rings => "-G",
            Group::Coalesce => "-C",
        };
        format!("ethtool {option} {nic} {} {value}", self.name)
    }

    fn read(&self, body: &[u8]) -> Option<u32> {
        any_uint(find(body, self.attribute)?)?.try_into().ok()
    }
}

impl Group {
    /// As in [`Setting::full_name`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalesce",
        }
    }

    /// Returns the number of the command that reads; the one that writes is the next.
    fn command(self) -> u8 {
        match self {
            Self::Rings => 15,
            Self::Channels => 17,
            Self::Coalesce => 19,
        }
    }
}

/// For fuzzing: reads every kind of answer.
pub(crate) fn examine(body: &[u8]) -> usize {
    let known = SETTINGS.iter().filter(|setting| setting.read(body).is_some()).count();
    let (channels, rings, rss) = (channels(body), rings(body), rss(body));
    known
        + usize::from(channels.combined.now.is_some() || rings.rx.now.is_some())
        + rss.indirection.len()
}

const fn count(group: Group, name: &'static str, attribute: u16, max_attribute: u16) -> Setting {
    Setting { group, name, attribute, is_byte: false, max_attribute }
}

const fn flag(group: Group, name: &'static str, attribute: u16) -> Setting {
    Setting { group, name, attribute, is_byte: true, max_attribute: 0 }
}

fn header(message: &mut Message, nic: &str) {
    // Interface names are shorter, and the kernel refuses the truncated name.
    let end = nic.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= 127);
    let name = &nic[..end.last().unwrap_or(0)];
    message.nested(HEADER, |header| header.attribute_text(HEADER_DEV_NAME, name));
}

fn limits(body: &[u8], now: u16, max: u16) -> Limits {
    Limits { now: find_u32(body, now), max: find_u32(body, max) }
}

fn channels(body: &[u8]) -> Channels {
    Channels {
        rx: limits(body, 6, 2),
        tx: limits(body, 7, 3),
        other: limits(body, 8, 4),
        combined: limits(body, 9, 5),
    }
}

fn rings(body: &[u8]) -> Rings {
    Rings {
        rx: limits(body, 6, 2),
        tx: limits(body, 9, 5),
        rx_buffer_bytes: find_u32(body, 10),
        tcp_data_split: find(body, 11).and_then(any_uint).map(|split| split as u32),
        hds_threshold_bytes: limits(body, 17, 18),
    }
}

fn rss(body: &[u8]) -> Rss {
    let table = find(body, RSS_INDIRECTION).unwrap_or_default();
    let (buckets, _) = table.as_chunks::<4>();
    Rss {
        indirection: buckets.iter().map(|bucket| u32::from_ne_bytes(*bucket)).collect(),
        key: find(body, RSS_KEY).unwrap_or_default().to_vec(),
        function: find_u32(body, RSS_HFUNC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(values: &[(u16, u32)]) -> Vec<u8> {
        let mut message = Message::new(0, &[]);
        for (kind, value) in values {
            message.attribute_u32(*kind, *value);
        }
        message.finish(0, 0)[16..].to_vec()
    }

    #[test]
    fn channels_that_a_driver_lacks_are_none_and_not_zero() {
        let found = channels(&body(&[(5, 16), (9, 8)]));
        assert_eq!(found.combined, Limits { now: Some(8), max: Some(16) });
        assert_eq!(found.rx, Limits::default());
    }

    #[test]
    fn settings_have_names_that_read_back_and_a_command_to_paste() {
        for setting in SETTINGS {
            assert_eq!(Setting::parse(&setting.full_name()), Some(setting));
        }
        assert_eq!(Setting::parse("rings.none"), None);
        assert_eq!(Setting::parse("rings"), None);
        let rx = Setting::parse("rings.rx").unwrap();
        assert_eq!(rx.command("eth1", "1024"), "ethtool -G eth1 rx 1024");
    }

    #[test]
    fn a_table_whose_length_is_no_multiple_of_four_loses_its_tail_only() {
        let mut message = Message::new(0, &[]);
        let table: Vec<u8> = [0u32, 1, 2].iter().flat_map(|queue| queue.to_ne_bytes()).collect();
        message.attribute(RSS_INDIRECTION, &[table, vec![9]].concat());
        assert_eq!(rss(&message.finish(0, 0)[16..]).indirection, [0, 1, 2]);
    }

    #[test]
    fn a_name_of_any_length_fits_its_attribute() {
        let mut message = Message::new(0, &[]);
        header(&mut message, &"ä".repeat(40_000));
        assert!(message.finish(0, 0).len() < 200);
    }
}
