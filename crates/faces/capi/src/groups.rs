//! Groups: engines that find each other at the place in the setting `rendezvous`.

use std::ffi::{c_char, c_int};

use polyrail_rendezvous::{Event, Membership, NameError, RendezvousError};

use crate::bytes::Bytes;
use crate::call::{Out, Versioned, call, duration, text, wrong};
use crate::engine::{Engine, to_json};
use crate::handles::{close, find, open};
use crate::peers::Peer;
use crate::status::{Failure, Status};

/// The membership of an engine in a group.
pub struct Group {
    pub(crate) group: std::sync::Arc<polyrail_rendezvous::Group>,
    engine: polyrail::Engine,
}

/// A change in a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupEvent {
    /// sizeof(polyrail_group_event).
    pub size: usize,
    /// 1 if the member has joined, 0 if it has left or died.
    pub has_joined: u32,
    /// Its name; free it with polyrail_bytes_free().
    pub name: Bytes,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers and raw pointers.
unsafe impl Versioned for GroupEvent {
    const NAME: &'static str = "polyrail_group_event";
}

/// Joins a group of engines at the place that the setting `rendezvous` names: a folder, etcd, the addresses of a name, the
/// ranks of a job. Returns as soon as others can find this engine; waits at most this time for that, as long as a name is that
/// of an engine that has died, or rank 0 has not started.
///
/// `name` may be NULL: then it is rank-3 among ranks, and else the engine's instance. POLYRAIL_ERR_CONNECT: the place can't be
/// reached; POLYRAIL_ERR_REFUSED: it refuses, or the name is taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_join(
    engine: *mut Engine,
    group: *const c_char,
    name: *const c_char,
    timeout_ns: u64,
    joined: *mut *mut Group,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place and the text.
        let (out, group) = unsafe { (Out::new("joined", joined)?, text("group", group)?) };
        let mut wanted = Membership::new(group).map_err(|error| wrong_name("group", &error))?;
        if !name.is_null() {
            // SAFETY: the caller's promise of the text.
            let name = unsafe { text("name", name)? };
            wanted = wanted.name(name).map_err(|error| wrong_name("name", &error))?;
        }
        let held = find("engine", engine)?;
        let made = polyrail_rendezvous::join(&held.engine, &wanted.timeout(duration(timeout_ns)))?;
        let made = std::sync::Arc::new(made);
        held.note_group(&made)?;
        out.set(open(Group { group: made, engine: held.engine.clone() })?);
        Ok(Status::PolyrailOk)
    })
}

/// The name of this engine in the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_name(group: *mut Group, name: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("name", name)? };
        out.set(Bytes::new(find("group", group)?.group.name()));
        Ok(Status::PolyrailOk)
    })
}

/// How many members the launcher of the ranks has started, this one included. POLYRAIL_PENDING: nobody knows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_expected(group: *mut Group, count: *mut usize) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("count", count)? };
        let Some(expected) = find("group", group)?.group.expected() else {
            return Ok(Status::PolyrailPending);
        };
        out.set(expected);
        Ok(Status::PolyrailOk)
    })
}

/// Waits until the group has as many members, this one included. POLYRAIL_PENDING: it has fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_wait(
    group: *mut Group,
    count: usize,
    timeout_ns: u64,
) -> c_int {
    call(|| {
        let held = find("group", group)?;
        match held.group.wait_for(count, duration(timeout_ns)) {
            Some(_) => Ok(Status::PolyrailOk),
            None => held.not_yet(),
        }
    })
}

/// The other members now, as JSON: a list of objects with `name`, and as each says of itself `engine`, `instance` and
/// `addresses`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_members(group: *mut Group, json: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("json", json)? };
        let members = find("group", group)?.group.members();
        let members: Vec<_> = members.iter().map(member_json).collect();
        out.set(Bytes::new(to_json(&members)?));
        Ok(Status::PolyrailOk)
    })
}

/// The member of this name as a peer of the engine; it is connected when it is first used. POLYRAIL_PENDING: no other member
/// is called so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_peer(
    group: *mut Group,
    name: *const c_char,
    peer: *mut *mut Peer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, name) = unsafe { (Out::new("peer", peer)?, text("name", name)?) };
        let held = find("group", group)?;
        let mut members = held.group.members().into_iter();
        let Some(member) = members.find(|member| member.name() == name) else {
            return Ok(Status::PolyrailPending);
        };
        out.set(open(Peer::new(held.group.peer(&member)?, &held.engine))?);
        Ok(Status::PolyrailOk)
    })
}

/// The next change; waits for it. Whoever was there before has joined first. POLYRAIL_PENDING: nothing has changed. Fill in
/// `event->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_next_event(
    group: *mut Group,
    timeout_ns: u64,
    event: *mut GroupEvent,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("event", event)? };
        let held = find("group", group)?;
        let (has_joined, name) = match held.group.next_event(duration(timeout_ns)) {
            Some(Event::Joined(member)) => (1, member.name().to_owned()),
            Some(Event::Left { name }) => (0, name),
            _ => return held.not_yet(),
        };
        out.set(GroupEvent { size: size_of::<GroupEvent>(), has_joined, name: Bytes::new(name) });
        Ok(Status::PolyrailOk)
    })
}

/// Leaves the group, so that the others hear of it at once, and ends the handle. Peers stay. An engine that closes leaves
/// its groups by itself. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_group_leave(group: *mut Group) -> c_int {
    call(|| {
        if !group.is_null() {
            close("group", group)?.group.end();
        }
        Ok(Status::PolyrailOk)
    })
}

fn wrong_name(field: &str, error: &NameError) -> Failure {
    wrong(format!("{field} {error}"))
}

fn member_json(member: &polyrail_rendezvous::Member) -> serde_json::Value {
    let card = member.card();
    let addresses = card.iter().flat_map(|card| &card.addresses).map(ToString::to_string);
    serde_json::json!({
        "name": member.name(),
        "engine": card.as_ref().map(|card| &card.engine),
        "instance": card.as_ref().map(|card| &card.instance),
        "addresses": addresses.collect::<Vec<_>>(),
    })
}

impl Group {
    /// Result of a wait that ended without an event.
    fn not_yet(&self) -> Result<Status, Failure> {
        match self.group.has_ended() {
            true => Err(Failure::new(Status::PolyrailErrClosed, "the group was left".to_owned())),
            false => Ok(Status::PolyrailPending),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.group.end();
    }
}

impl From<RendezvousError> for Failure {
    fn from(error: RendezvousError) -> Self {
        let status = match &error {
            RendezvousError::NotSet | RendezvousError::Value { .. } => Status::PolyrailErrConfig,
            RendezvousError::Name(_) => Status::PolyrailErrArgument,
            RendezvousError::Taken { .. } | RendezvousError::Refused { .. } => {
                Status::PolyrailErrRefused
            }
            RendezvousError::Unreachable { .. } | RendezvousError::Rank0 { .. } => {
                Status::PolyrailErrConnect
            }
            RendezvousError::File { .. }
            | RendezvousError::Environment { .. }
            | RendezvousError::Thread(_) => Status::PolyrailErrSystem,
            _ => Status::PolyrailErrOther,
        };
        Self::new(status, error.to_string()).helped_by(error.help())
    }
}
