//! Events: notifications, and a descriptor for polling loops.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use crate::bytes::Bytes;
use crate::call::{Out, Versioned, call, duration};
use crate::engine::{Engine, Instance};
use crate::handles::{find, open};
use crate::peers::release;
use crate::status::Status;

/// A descriptor that tells of events.
pub struct Events(polyrail::Events);

/// Bytes that a peer sent with a write, or by polyrail_notify().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    /// sizeof(polyrail_notification).
    pub size: usize,
    /// Who sent it; polyrail_engine_peer() has the peer, while it is known.
    pub from: Instance,
    /// What; free it with polyrail_bytes_free().
    pub data: Bytes,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers and raw pointers.
unsafe impl Versioned for Notification {
    const NAME: &'static str = "polyrail_notification";
}

/// Takes the next notification; waits for it at most this time, 0 for a look. POLYRAIL_PENDING: none came.
/// Those that came before the engine was closed are gone with its handle. Fill in `notification->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_next_notification(
    engine: *mut Engine,
    timeout_ns: u64,
    notification: *mut Notification,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("notification", notification)? };
        let held = find("engine", engine)?;
        let Some(taken) = held.engine.wait_notification(duration(timeout_ns)) else {
            return held.not_yet();
        };
        out.set(Notification {
            size: size_of::<Notification>(),
            from: taken.peer.instance().into(),
            data: Bytes::new(taken.data),
        });
        Ok(Status::PolyrailOk)
    })
}

/// Makes a descriptor that is readable, for poll(2) and its like, once a transfer has ended, a notification
/// or a peer has come, a peer is gone, or an attempt to connect has ended. Each loop may have one of its own.
///
/// It stays readable until polyrail_events_clear(). Clear first, and look then at all that you wait for.
/// With `progress=caller` nothing makes it readable unless somebody calls the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_events_open(
    engine: *mut Engine,
    events: *mut *mut Events,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("events", events)? };
        let events = find("engine", engine)?.engine.events()?;
        out.set(open(Events(events))?);
        Ok(Status::PolyrailOk)
    })
}

/// The descriptor. It belongs to the library: poll it, and neither read nor close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_events_descriptor(
    events: *mut Events,
    descriptor: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("descriptor", descriptor)? };
        out.set(find("events", events)?.0.as_raw_fd());
        Ok(Status::PolyrailOk)
    })
}

/// Arms it again: from now on the descriptor is not readable, until something else happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_events_clear(events: *mut Events) -> c_int {
    call(|| {
        find("events", events)?.0.clear();
        Ok(Status::PolyrailOk)
    })
}

/// Closes the descriptor. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_events_close(events: *mut Events) -> c_int {
    release("events", events)
}
