//! Requests: transfers that are checked once and posted any number of times.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use polyrail::operation::{OneSided, TwoSided};
use polyrail::{PreparedTransfer, RegionSlice, RemoteSlice};

use crate::bytes::Bytes;
use crate::call::{Out, Versioned, bytes, call, choice, duration, list, versioned, wrong};
use crate::engine::Engine;
use crate::handles::{Handle, find, open};
use crate::peers::{Peer, release};
use crate::regions::{Region, Remote};
use crate::status::{Failure, Status};
use crate::transfers::{Transfer, give};

/// A request that was checked and cut into chunks. It may be posted by several threads at a time, also while
/// earlier posts of it are under way.
pub struct Prepared(pub(crate) PreparedTransfer);

/// In polyrail_request.operation: bytes from here into the peer's memory.
pub const POLYRAIL_WRITE: u32 = 1;
/// In polyrail_request.operation: bytes from the peer's memory to here.
pub const POLYRAIL_READ: u32 = 2;
/// In polyrail_request.operation: a message for the peer's oldest receive of the same tag. It waits for that.
pub const POLYRAIL_SEND: u32 = 3;
/// In polyrail_request.operation: room for a message of a tag. At most 1024 segments after merging.
pub const POLYRAIL_RECEIVE: u32 = 4;

/// A part of a request. Segments that continue each other on both sides are merged.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Memory here.
    pub local: *mut Region,
    /// Where in it, in bytes.
    pub local_offset: u64,
    /// Memory of the peer; NULL for a send and a receive.
    pub remote: *mut Remote,
    /// Where in that; 0 for a send and a receive.
    pub remote_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What is to be moved. Everything that it points to is read during the call only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// sizeof(polyrail_request).
    pub size: usize,
    /// POLYRAIL_WRITE, POLYRAIL_READ, POLYRAIL_SEND or POLYRAIL_RECEIVE.
    pub operation: u32,
    /// sizeof(polyrail_segment).
    pub segment_size: u32,
    /// With whom.
    pub peer: *mut Peer,
    /// Of a send or a receive.
    pub tag: u64,
    /// The parts; 100,000 and more are fine.
    pub segments: *const Segment,
    /// How many parts there are; none are needed for a notification.
    pub segment_count: usize,
    /// Of a write: bytes that the peer gets once all others are in place; NULL: none.
    pub notification: *const c_void,
    /// Bytes of the notification, at most 64 KiB; not looked at if that is NULL.
    pub notification_length: usize,
    /// The transfer fails if it is not complete after this time, which counts from each post. 0: no
    /// limit; a peer without progress is given up after `peer_timeout_ms`.
    pub timeout_ns: u64,
}

/// What is known of a prepared request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PreparedInfo {
    /// sizeof(polyrail_prepared_info).
    pub size: usize,
    /// Payload of each post.
    pub bytes: u64,
    /// Segments after merging.
    pub segments: u64,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers and raw pointers.
unsafe impl Versioned for Request {
    const NAME: &'static str = "polyrail_request";
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers.
unsafe impl Versioned for PreparedInfo {
    const NAME: &'static str = "polyrail_prepared_info";
}

/// Checks a request and cuts it into chunks, for many posts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepare(
    engine: *mut Engine,
    request: *const Request,
    prepared: *mut *mut Prepared,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place, the request, and of what that points to.
        let (out, ready) = unsafe { (Out::new("prepared", prepared)?, prepare(engine, request)?) };
        out.set(open(Prepared(ready))?);
        Ok(Status::PolyrailOk)
    })
}

/// Prepares a request and posts it, for one that is posted once. `transfer` may be NULL: then the transfer
/// goes on by itself, and nobody learns how it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_submit(
    engine: *mut Engine,
    request: *const Request,
    transfer: *mut *mut Transfer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place, the request, and of what that points to.
        let (out, ready) =
            unsafe { (Out::optional("transfer", transfer)?, prepare(engine, request)?) };
        give(ready.post()?, out)
    })
}

/// Sends a notification of its own; they have no order among each other. `transfer` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_notify(
    engine: *mut Engine,
    peer: *mut Peer,
    notification: *const c_void,
    notification_length: usize,
    transfer: *mut *mut Transfer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, data) = unsafe {
            let out = Out::optional("transfer", transfer)?;
            (out, bytes("notification", notification, notification_length)?)
        };
        let (held, peer) = (find("engine", engine)?, find("peer", peer)?);
        give(held.engine.notify(&peer.peer, data)?, out)
    })
}

/// Posts a prepared request. POLYRAIL_BUSY: again, once an older transfer is over. `transfer` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_post(
    prepared: *mut Prepared,
    transfer: *mut *mut Transfer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::optional("transfer", transfer)? };
        give(find("prepared", prepared)?.0.post()?, out)
    })
}

/// Posts a prepared write with this notification, this once, in place of its own or none. `transfer` may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_post_with(
    prepared: *mut Prepared,
    notification: *const c_void,
    notification_length: usize,
    transfer: *mut *mut Transfer,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, data) = unsafe {
            let out = Out::optional("transfer", transfer)?;
            (out, bytes("notification", notification, notification_length)?)
        };
        give(find("prepared", prepared)?.0.post_with(data.to_vec())?, out)
    })
}

/// What is known of a prepared request. Fill in `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_describe(
    prepared: *mut Prepared,
    info: *mut PreparedInfo,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("info", info)? };
        let held = find("prepared", prepared)?;
        let (bytes, segments) = (held.0.bytes(), held.0.segments() as u64);
        out.set(PreparedInfo { size: size_of::<PreparedInfo>(), bytes, segments });
        Ok(Status::PolyrailOk)
    })
}

/// How the bytes of a prepared request travel, and why so: "tcp: ...", "shared memory: ...", "peer copy: ..."
/// or "single copy: ...".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_path(
    prepared: *mut Prepared,
    path: *mut Bytes,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("path", path)? };
        out.set(Bytes::new(find("prepared", prepared)?.0.path().to_string()));
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle; transfers that were posted go on. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_free(prepared: *mut Prepared) -> c_int {
    release("prepared", prepared)
}

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
    Send,
    Receive,
}

const OPERATIONS: [(u32, &str, Operation); 4] = [
    (POLYRAIL_WRITE, "POLYRAIL_WRITE", Operation::Write),
    (POLYRAIL_READ, "POLYRAIL_READ", Operation::Read),
    (POLYRAIL_SEND, "POLYRAIL_SEND", Operation::Send),
    (POLYRAIL_RECEIVE, "POLYRAIL_RECEIVE", Operation::Receive),
];

/// # Safety
/// `request` is NULL or a request, and everything it points to is valid.
unsafe fn prepare(
    engine: *mut Engine,
    request: *const Request,
) -> Result<PreparedTransfer, Failure> {
    // SAFETY: the caller's promise.
    let request = unsafe { versioned("request", request)? };
    let operation = choice("request.operation", request.operation, &OPERATIONS)?;
    let (got, allowed) = (request.segment_size as usize, size_of::<Segment>());
    if got != allowed && request.segment_count > 0 {
        return Err(wrong(format!(
            "request.segment_size is {got}, allowed is {allowed}, which is sizeof(polyrail_segment)"
        )));
    }
    let (held, peer) = (find("engine", engine)?, find("request.peer", request.peer)?);
    // SAFETY: the caller's promise of what the request points to.
    let (segments, notification) = unsafe {
        let segments = list("request.segments", request.segments, request.segment_count)?;
        let notification = match request.notification.is_null() {
            true => None,
            false => {
                let length = request.notification_length;
                Some(bytes("request.notification", request.notification, length)?)
            }
        };
        (segments, notification)
    };
    if notification.is_some() && operation != Operation::Write {
        return Err(wrong(
            "request.notification is given, allowed is NULL: only a write has one".to_owned(),
        ));
    }
    let (engine, peer, tag) = (&held.engine, &peer.peer, request.tag);
    Ok(match operation {
        Operation::Write => {
            let mut write = polyrail::Request::write(peer);
            if let Some(notification) = notification {
                write = write.notification(notification.to_vec());
            }
            engine.prepare(timed(one_sided(write, segments)?, request.timeout_ns))?
        }
        Operation::Read => {
            let read = one_sided(polyrail::Request::read(peer), segments)?;
            engine.prepare(timed(read, request.timeout_ns))?
        }
        Operation::Send => {
            let send = two_sided(polyrail::Request::send(peer, tag), segments)?;
            engine.prepare(timed(send, request.timeout_ns))?
        }
        Operation::Receive => {
            let receive = two_sided(polyrail::Request::receive(peer, tag), segments)?;
            engine.prepare(timed(receive, request.timeout_ns))?
        }
    })
}

fn timed<O: polyrail::operation::Operation>(
    request: polyrail::Request<O>,
    timeout_ns: u64,
) -> polyrail::Request<O> {
    if timeout_ns == 0 { request } else { request.timeout(duration(timeout_ns)) }
}

fn one_sided<O: OneSided>(
    request: polyrail::Request<O>,
    segments: &[Segment],
) -> Result<polyrail::Request<O>, Failure> {
    let (mut locals, mut remotes) = (Latest::default(), Latest::default());
    let mut pairs: Vec<(RegionSlice, RemoteSlice)> = Vec::with_capacity(segments.len());
    for (index, segment) in segments.iter().enumerate() {
        let local = locals.find(index, "local", segment.local)?;
        let local = local.region.slice(segment.local_offset, segment.length);
        let remote = remotes.find(index, "remote", segment.remote)?;
        let remote = remote.0.slice(segment.remote_offset, segment.length);
        pairs.push((at(index, "local", local)?, at(index, "remote", remote)?));
    }
    Ok(request.segments(pairs))
}

fn two_sided<O: TwoSided>(
    request: polyrail::Request<O>,
    segments: &[Segment],
) -> Result<polyrail::Request<O>, Failure> {
    let mut locals = Latest::default();
    let mut slices: Vec<RegionSlice> = Vec::with_capacity(segments.len());
    for (index, segment) in segments.iter().enumerate() {
        if !segment.remote.is_null() || segment.remote_offset != 0 {
            return Err(wrong(format!(
                "request.segments[{index}].remote is {:?} and remote_offset {}, allowed are NULL and 0 in a \
                 send and a receive",
                segment.remote, segment.remote_offset
            )));
        }
        let local = locals.find(index, "local", segment.local)?;
        let local = local.region.slice(segment.local_offset, segment.length);
        slices.push(at(index, "local", local)?);
    }
    Ok(request.locals(slices))
}

fn at<T>(index: usize, side: &str, slice: Result<T, polyrail::RegionError>) -> Result<T, Failure> {
    slice.map_err(|error| Failure::from(error).within(&format!("request.segments[{index}].{side}")))
}

/// Object of the latest handle: consecutive segments mostly have the same one.
struct Latest<T>(Option<(*mut T, Arc<T>)>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Handle> Latest<T> {
    fn find(&mut self, index: usize, side: &str, handle: *mut T) -> Result<&T, Failure> {
        if self.0.as_ref().is_none_or(|(latest, _)| *latest != handle) {
            let found = match find(side, handle) {
                Ok(found) => found,
                Err(failure) => return Err(failure.within(&format!("request.segments[{index}]"))),
            };
            self.0 = Some((handle, found));
        }
        match &self.0 {
            Some((_, found)) => Ok(found),
            None => Err(wrong(format!("request.segments[{index}].{side} is not there"))),
        }
    }
}
