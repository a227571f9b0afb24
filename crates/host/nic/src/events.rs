//! Changes of links and settings, as the kernel announces them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use polyrail_netlink::{Protocol, Reply, Socket, find, replies, text, u16_at};
use serde::Serialize;

use crate::error::NicError;
use crate::generic::{self, Family, GENERIC_HEADER};

/// A subscription to changes. Poll both of [`Self::sources`], then call [`Self::take`] until it is
/// empty.
#[derive(Debug)]
pub struct Events {
    links: Socket,
    /// The socket with the number of the `ethtool` family, which kernels before 5.6 lack.
    settings: Option<(Socket, u16)>,
}

/// A change that the kernel announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// A link appeared, or changed its state.
    Link {
        nic: String,
        /// Whether the interface is switched on.
        is_up: bool,
    },
    /// An interface was removed.
    Gone { nic: String },
    /// A program changed settings.
    Changed {
        nic: String,
        /// The group of settings, such as `channels`.
        what: &'static str,
    },
    /// The kernel dropped some announcements, because there were too many: read everything again.
    Overflow,
}

const RTNLGRP_LINK: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const IFINFO_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u16 = 1;

/// The announcements of the `ethtool` family: command number and group of settings.
const CHANGES: &[(u8, &str)] = &[
    (3, "link settings"),
    (5, "link modes"),
    (13, "features"),
    (15, "private flags"),
    (17, "rings"),
    (19, "channels"),
    (21, "coalesce"),
    (23, "pause"),
];

impl Events {
    /// Subscribes to both kinds of announcements.
    ///
    /// # Errors
    /// [`NicError::Open`] if no netlink socket can be opened or subscribed.
    pub fn open() -> Result<Self, NicError> {
        let joining = |source| NicError::Open { what: "a subscription to changes", source };
        let links = generic::open(Protocol::Route)?;
        links.join(RTNLGRP_LINK).map_err(joining)?;
        let settings = match Family::open("ethtool") {
            Ok(family) => match family.group("monitor") {
                Some(group) => {
                    let socket = generic::open(Protocol::Generic)?;
                    socket.join(group).map_err(joining)?;
                    Some((socket, family.id()))
                }
                None => None,
            },
            Err(NicError::NoFamily { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { links, settings })
    }

    /// Returns the descriptors to poll for input.
    pub fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let settings = self.settings.as_ref().map(|(socket, _)| socket.as_fd());
        [Some(self.links.as_fd()), settings].into_iter().flatten().collect()
    }

    /// Returns the announcements since the last call, without waiting.
    ///
    /// # Errors
    /// [`NicError::Refused`] if the kernel ends the subscription.
    pub fn take(&mut self) -> Result<Vec<Event>, NicError> {
        let mut found = Vec::new();
        drain(&mut self.links, &mut found, link)?;
        if let Some((socket, family)) = &mut self.settings {
            drain(socket, &mut found, |reply| (reply.kind == *family).then(|| change(reply))?)?;
        }
        Ok(found)
    }
}

/// For fuzzing: reads an announcement of each kind.
pub(crate) fn examine(reply: &Reply<'_>) -> bool {
    link(reply).is_some() | change(reply).is_some()
}

fn drain(
    socket: &mut Socket,
    found: &mut Vec<Event>,
    read: impl Fn(&Reply<'_>) -> Option<Event>,
) -> Result<(), NicError> {
    loop {
        match socket.try_receive() {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => {
                found.extend(replies(bytes).flatten().filter_map(|reply| read(&reply)));
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                found.push(Event::Overflow);
            }
            Err(source) => return Err(ended(source)),
        }
    }
}

fn ended(source: io::Error) -> NicError {
    NicError::Refused { asked: "announcements of changes".to_owned(), source, said: None }
}

fn link(reply: &Reply<'_>) -> Option<Event> {
    let nic = text(find(reply.body.get(IFINFO_BYTES..)?, IFLA_IFNAME)?).to_owned();
    match reply.kind {
        // The flags come after family, type and index.
        RTM_NEWLINK => Some(Event::Link { nic, is_up: u16_at(reply.body, 8)? & IFF_UP != 0 }),
        RTM_DELLINK => Some(Event::Gone { nic }),
        _ => None,
    }
}

fn change(reply: &Reply<'_>) -> Option<Event> {
    let number = *reply.body.first()?;
    let (_, what) = CHANGES.iter().find(|(known, _)| *known == number)?;
    // Every answer of this family begins with the same nest, which names the interface.
    let header = find(reply.body.get(GENERIC_HEADER..)?, 1)?;
    Some(Event::Changed { nic: text(find(header, 2)?).to_owned(), what })
}
