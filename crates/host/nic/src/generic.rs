//! Generic netlink: families by name, and commands to them.

use polyrail_netlink::{Message, Protocol, Socket, attributes, find, find_u32, text, u16_at};

use crate::error::NicError;

/// A socket to one family.
#[derive(Debug)]
pub(crate) struct Family {
    socket: Socket,
    id: u16,
    version: u8,
    groups: Vec<(String, u32)>,
}

/// The header of generic netlink: command, version, two reserved bytes.
pub(crate) const GENERIC_HEADER: usize = 4;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

impl Family {
    pub(crate) fn open(name: &'static str) -> Result<Self, NicError> {
        let mut socket = open(Protocol::Generic)?;
        let mut question = command(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1);
        question.attribute_text(CTRL_ATTR_FAMILY_NAME, name);
        let asked = format!("netlink family `{name}`");
        let answers = match socket.request(question, 0).map_err(NicError::of(&asked)) {
            Ok(answers) => answers,
            Err(NicError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::ENOENT) =>
            {
                return Err(NicError::NoFamily { family: name });
            }
            Err(error) => return Err(error),
        };
        let found = answers.iter().find_map(|answer| described(answer.get(GENERIC_HEADER..)?));
        let (id, groups) = found.ok_or(NicError::Malformed { asked, fault: "no number" })?;
        Ok(Self { socket, id, version: 1, groups })
    }

    /// Sends one command; returns the attributes of its answers.
    pub(crate) fn call(
        &mut self,
        number: u8,
        asked: &str,
        fill: impl FnOnce(&mut Message),
    ) -> Result<Vec<Vec<u8>>, NicError> {
        let mut message = command(self.id, number, self.version);
        fill(&mut message);
        let found = self.socket.request(message, 0).map_err(NicError::of(asked))?;
        Ok(found.into_iter().map(without_header).collect())
    }

    /// Requests all objects; returns the attributes of each.
    pub(crate) fn dump(
        &mut self,
        number: u8,
        asked: &str,
        fill: impl Fn(&mut Message),
    ) -> Result<Vec<Vec<u8>>, NicError> {
        let (id, version) = (self.id, self.version);
        let request = || {
            let mut message = command(id, number, version);
            fill(&mut message);
            message
        };
        let found = self.socket.dump_whole(request, id).map_err(NicError::of(asked))?;
        Ok(found.into_iter().map(without_header).collect())
    }

    /// Returns the number of this family, which its messages carry as their type.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Returns the number of a multicast group.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find_map(|(found, id)| (found == name).then_some(*id))
    }
}

/// Opens a socket of the calling thread's network namespace.
pub(crate) fn open(protocol: Protocol) -> Result<Socket, NicError> {
    Socket::open(protocol).map_err(|source| NicError::Open { what: "a netlink socket", source })
}

/// For fuzzing: reads a description of a family.
pub(crate) fn examine(body: &[u8]) -> usize {
    described(body).map_or(0, |(_, groups)| 1 + groups.len())
}

fn command(kind: u16, number: u8, version: u8) -> Message {
    Message::new(kind, &[number, version, 0, 0])
}

fn without_header(mut body: Vec<u8>) -> Vec<u8> {
    body.drain(..GENERIC_HEADER.min(body.len()));
    body
}

fn described(body: &[u8]) -> Option<(u16, Vec<(String, u32)>)> {
    let id = u16_at(find(body, CTRL_ATTR_FAMILY_ID)?, 0)?;
    let groups = find(body, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default();
    let groups = attributes(groups).filter_map(|(_, group)| {
        let name = text(find(group, CTRL_ATTR_MCAST_GRP_NAME)?).to_owned();
        Some((name, find_u32(group, CTRL_ATTR_MCAST_GRP_ID)?))
    });
    Some((id, groups.collect()))
}
