//! Peers: adding, connecting, finding, watching, removing.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::OnceLock;

use polyrail::{Connecting as Answer, Gone, Invitation, LostReason};

use crate::bytes::Bytes;
use crate::call::{Out, Versioned, bytes, call, duration, path, room, text, wrong};
use crate::engine::{Engine, Instance, to_json};
use crate::handles::{close, find, open};
use crate::status::{Failure, Status};

/// A remote engine, as one engine knows it. Several handles may stand for the same peer:
/// polyrail_peer_describe() has its instance, by which peers are compared.
pub struct Peer {
    pub(crate) peer: polyrail::Peer,
    /// Instance of the engine whose peer it is.
    of: polyrail::InstanceId,
    /// Set by the first wait for its end, from which on the peer is watched.
    gone: OnceLock<Gone>,
}

/// An attempt to connect.
pub struct Connecting {
    answer: Answer,
    engine: polyrail::Engine,
}

/// What is known of a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// sizeof(polyrail_peer_info).
    pub size: usize,
    /// Which run of which engine it is.
    pub instance: Instance,
    /// 1 if it is on this host.
    pub is_same_host: u32,
    /// 1 if it is gone.
    pub is_gone: u32,
    /// Connections towards it that are up.
    pub flows_up: u64,
    /// Connections towards it that are meant to be.
    pub flows_total: u64,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers.
unsafe impl Versioned for PeerInfo {
    const NAME: &'static str = "polyrail_peer_info";
}

impl Peer {
    pub(crate) fn new(peer: polyrail::Peer, engine: &polyrail::Engine) -> Self {
        Self { peer, of: engine.instance(), gone: OnceLock::new() }
    }
}

/// Adds a peer by the metadata that it gave. It is connected in the background: post at once, transfers
/// wait for that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_add_peer(
    engine: *mut Engine,
    metadata: *const c_void,
    metadata_length: usize,
    peer: *mut *mut Peer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, metadata) =
            unsafe { (Out::new("peer", peer)?, bytes("metadata", metadata, metadata_length)?) };
        let engine = &find("engine", engine)?.engine;
        out.set(open(Peer::new(engine.add_peer(metadata)?, engine))?);
        Ok(Status::PolyrailOk)
    })
}

/// Begins to connect to the engine that listens on an address such as "10.0.0.1:39411", any of its rails.
///
/// `invitation` is the text that polyrail_engine_invitation() gave there, or NULL. Without it both ends
/// need the same secret (setting `secret_file`), or to be processes of one user on one host, or `auth=none`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_connect(
    engine: *mut Engine,
    address: *const c_char,
    invitation: *const c_char,
    connecting: *mut *mut Connecting,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, address) =
            unsafe { (Out::new("connecting", connecting)?, text("address", address)?) };
        let to: SocketAddr = address.parse().map_err(|_| {
            wrong(format!("address is {address:?}, allowed are 10.0.0.1:39411 and [fd00::1]:39411"))
        })?;
        let invitation: Option<Invitation> = match invitation.is_null() {
            true => None,
            false => {
                // SAFETY: the caller's promise of the text.
                let parsed = unsafe { text("invitation", invitation)? }.parse();
                Some(parsed.map_err(|error: polyrail::InvitationError| {
                    Failure::new(Status::PolyrailErrFormat, error.to_string())
                })?)
            }
        };
        let engine = &find("engine", engine)?.engine;
        let answer = match &invitation {
            Some(invitation) => engine.connect_by(to, invitation),
            None => engine.connect(to),
        };
        out.set(open(Connecting { answer, engine: engine.clone() })?);
        Ok(Status::PolyrailOk)
    })
}

/// Waits until the peer has answered, or `connect_timeout_ms` has passed. POLYRAIL_PENDING: not yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_connecting_wait(
    connecting: *mut Connecting,
    timeout_ns: u64,
    peer: *mut *mut Peer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("peer", peer)? };
        let held = find("connecting", connecting)?;
        let Some(answer) = held.answer.wait(duration(timeout_ns)) else {
            return Ok(Status::PolyrailPending);
        };
        out.set(open(Peer::new(answer?, &held.engine))?);
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle, and the attempt if it is under way. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_connecting_free(connecting: *mut Connecting) -> c_int {
    release("connecting", connecting)
}

/// Adds the peer that published its metadata in a file, by polyrail_engine_publish(); waits for the file.
/// `extra` gets the bytes that the peer has added, unless it is NULL. POLYRAIL_PENDING: no file is there yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_find_peer(
    engine: *mut Engine,
    file: *const c_char,
    timeout_ns: u64,
    peer: *mut *mut Peer,
    extra: *mut Bytes,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of all three.
        let (out, extra_out, file) = unsafe {
            (Out::new("peer", peer)?, Out::optional("extra", extra)?, path("file", file)?)
        };
        let held = find("engine", engine)?;
        let Some(found) = held.engine.find_peer_with(file, duration(timeout_ns)) else {
            return held.not_yet();
        };
        let (found, extra) = found?;
        out.set(open(Peer::new(found, &held.engine))?);
        if let Some(place) = extra_out {
            place.set(Bytes::new(extra));
        }
        Ok(Status::PolyrailOk)
    })
}

/// The next peer that came to this engine by itself; waits for it. POLYRAIL_PENDING: none came. One that is
/// gone again before it was taken is not among them; its notifications stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_accept_peer(
    engine: *mut Engine,
    timeout_ns: u64,
    peer: *mut *mut Peer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("peer", peer)? };
        let held = find("engine", engine)?;
        let Some(came) = held.engine.accept_peer(duration(timeout_ns)) else {
            return held.not_yet();
        };
        out.set(open(Peer::new(came, &held.engine))?);
        Ok(Status::PolyrailOk)
    })
}

/// The peer of this instance. POLYRAIL_PENDING: none is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_peer(
    engine: *mut Engine,
    instance: *const Instance,
    peer: *mut *mut Peer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, instance) = unsafe { (Out::new("peer", peer)?, one("instance", instance)?) };
        let engine = &find("engine", engine)?.engine;
        let Some(known) = engine.peer(instance.id()) else { return Ok(Status::PolyrailPending) };
        out.set(open(Peer::new(known, engine))?);
        Ok(Status::PolyrailOk)
    })
}

/// Every peer that is known now: writes as many instances as there is room for, and to `count` how many
/// there are. `instances` may be NULL with a capacity of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_peers(
    engine: *mut Engine,
    instances: *mut Instance,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, places) =
            unsafe { (Out::new("count", count)?, room("instances", instances, capacity)?) };
        let peers = find("engine", engine)?.engine.peers();
        for (place, peer) in places.iter_mut().zip(&peers) {
            *place = peer.instance().into();
        }
        out.set(peers.len());
        Ok(Status::PolyrailOk)
    })
}

/// Ends all transfers with a peer and forgets it; it is told so. The handle stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_remove_peer(
    engine: *mut Engine,
    peer: *mut Peer,
) -> c_int {
    call(|| {
        let (held, peer) = (find("engine", engine)?, find("peer", peer)?);
        if held.engine.instance() != peer.of {
            let text = format!("peer {} was added to another engine", peer.peer.name());
            return Err(Failure::new(Status::PolyrailErrForeign, text));
        }
        held.engine.remove_peer(&peer.peer);
        Ok(Status::PolyrailOk)
    })
}

/// What is known of a peer now. Fill in `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_describe(peer: *mut Peer, info: *mut PeerInfo) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("info", info)? };
        let peer = &find("peer", peer)?.peer;
        let flows = peer.flows();
        out.set(PeerInfo {
            size: size_of::<PeerInfo>(),
            instance: peer.instance().into(),
            is_same_host: peer.is_same_host().into(),
            is_gone: peer.lost().is_some().into(),
            flows_up: flows.up as u64,
            flows_total: flows.total as u64,
        });
        Ok(Status::PolyrailOk)
    })
}

/// What the peer calls itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_name(peer: *mut Peer, name: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("name", name)? };
        out.set(Bytes::new(find("peer", peer)?.peer.name()));
        Ok(Status::PolyrailOk)
    })
}

/// The names on the peer's certificate, as JSON: a list of texts, empty if it proved something else than a
/// certificate. What the peer calls itself proves nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_proven_names(peer: *mut Peer, json: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("json", json)? };
        out.set(Bytes::new(to_json(&find("peer", peer)?.peer.proven_names())?));
        Ok(Status::PolyrailOk)
    })
}

/// Waits until the peer is gone; `why` gets the reason, unless it is NULL. POLYRAIL_PENDING: it is there.
///
/// From the first such call on, and until the handle is freed, a peer that is silent is asked for a sign
/// of life, so that its end is noticed though no transfer is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_gone(
    peer: *mut Peer,
    timeout_ns: u64,
    why: *mut Bytes,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::optional("why", why)? };
        let held = find("peer", peer)?;
        let gone = held.gone.get_or_init(|| held.peer.gone());
        let reason: Option<LostReason> = match timeout_ns {
            0 => gone.try_wait(),
            time => gone.wait(duration(time)),
        };
        let Some(reason) = reason else { return Ok(Status::PolyrailPending) };
        if let Some(out) = out {
            out.set(Bytes::new(reason.to_string()));
        }
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle. The peer stays one of its engine. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_free(peer: *mut Peer) -> c_int {
    release("peer", peer)
}

/// Ends a handle. NULL is accepted.
pub(crate) fn release<T: crate::handles::Handle>(field: &str, handle: *mut T) -> c_int {
    call(|| {
        if !handle.is_null() {
            close(field, handle)?;
        }
        Ok(Status::PolyrailOk)
    })
}

unsafe fn one(field: &str, pointer: *const Instance) -> Result<Instance, Failure> {
    // SAFETY: as the caller promises; any bits make an instance.
    let found = unsafe { crate::call::list(field, pointer, 1)? };
    Ok(found[0])
}
