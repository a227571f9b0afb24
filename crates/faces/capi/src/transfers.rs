//! Posted transfers: polling, waiting, cancelling.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::{Out, Versioned, call, duration};
use crate::handles::{close, find, open};
use crate::status::{Failure, Status};

/// In place of a time in nanoseconds: however long it takes.
pub const POLYRAIL_FOREVER: u64 = u64::MAX;

/// A posted request. It may be used by several threads at a time.
pub struct Transfer {
    /// Present until this is dropped.
    transfer: Option<polyrail::Transfer>,
    is_detached: AtomicBool,
}

/// How a transfer ended that is complete.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// sizeof(polyrail_outcome).
    pub size: usize,
    /// Payload that is in place. For a receive: the length of the message.
    pub bytes: u64,
    /// From post to completion.
    pub duration_ns: u64,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers.
unsafe impl Versioned for Outcome {
    const NAME: &'static str = "polyrail_outcome";
}

type Ended = Option<Result<polyrail::Outcome, polyrail::TransferError>>;

/// Looks whether a transfer is over: POLYRAIL_OK if it is complete, POLYRAIL_PENDING if it is under way, or
/// the error that ended it. Makes no system call and never blocks; with `progress=caller` it moves data.
///
/// `outcome` may be NULL; else fill in `outcome->size` before. It is filled in if the transfer is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_poll(
    transfer: *mut Transfer,
    outcome: *mut Outcome,
) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { ended(transfer, outcome, polyrail::Transfer::try_wait) }
}

/// Waits until a transfer is over, at most this time, and says how it ended, as polyrail_transfer_poll()
/// does. Any number of threads may wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_wait(
    transfer: *mut Transfer,
    timeout_ns: u64,
    outcome: *mut Outcome,
) -> c_int {
    let wait = |transfer: &polyrail::Transfer| match timeout_ns {
        POLYRAIL_FOREVER => Some(transfer.join()),
        time => transfer.wait(duration(time)),
    };
    // SAFETY: the caller's promise of the place.
    unsafe { ended(transfer, outcome, wait) }
}

/// Asks for an early end and returns at once. It is over when polyrail_transfer_poll() says so: after that
/// no byte of it is read here, or lands at the peer. It may still turn out complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_cancel(transfer: *mut Transfer) -> c_int {
    call(|| {
        find("transfer", transfer)?.get()?.cancel();
        Ok(Status::PolyrailOk)
    })
}

/// Payload of the parts that are complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_bytes_done(
    transfer: *mut Transfer,
    bytes: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("bytes", bytes)? };
        out.set(find("transfer", transfer)?.get()?.bytes_done());
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle, and lets the transfer go on by itself. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_detach(transfer: *mut Transfer) -> c_int {
    call(|| {
        if !transfer.is_null() {
            close("transfer", transfer)?.is_detached.store(true, Ordering::Release);
        }
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle, and cancels the transfer if it is under way. Its memory may be in use for a while after
/// that: wait for the end of the transfer, or close its regions, before you use it for something else. NULL
/// is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_transfer_free(transfer: *mut Transfer) -> c_int {
    call(|| {
        if !transfer.is_null() {
            let held = close("transfer", transfer)?;
            // A thread that waits for it keeps it until then.
            let transfer = held.get()?;
            if !transfer.is_over() {
                transfer.cancel();
            }
        }
        Ok(Status::PolyrailOk)
    })
}

/// Returns a handle of the transfer, or detaches it if the caller wants none.
pub(crate) fn give(
    transfer: polyrail::Transfer,
    out: Option<Out<*mut Transfer>>,
) -> Result<Status, Failure> {
    match out {
        Some(out) => {
            let is_detached = AtomicBool::new(false);
            out.set(open(Transfer { transfer: Some(transfer), is_detached })?);
        }
        None => transfer.detach(),
    }
    Ok(Status::PolyrailOk)
}

/// # Safety
/// `outcome` is NULL, or a structure that may be read and written.
unsafe fn ended(
    transfer: *mut Transfer,
    outcome: *mut Outcome,
    look: impl FnOnce(&polyrail::Transfer) -> Ended,
) -> c_int {
    call(|| {
        let out = match outcome.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Out::versioned("outcome", outcome)? }),
        };
        let held = find("transfer", transfer)?;
        let Some(result) = look(held.get()?) else { return Ok(Status::PolyrailPending) };
        let ended = result?;
        if let Some(out) = out {
            let duration_ns = u64::try_from(ended.duration.as_nanos()).unwrap_or(u64::MAX);
            out.set(Outcome { size: size_of::<Outcome>(), bytes: ended.bytes, duration_ns });
        }
        Ok(Status::PolyrailOk)
    })
}

impl Transfer {
    fn get(&self) -> Result<&polyrail::Transfer, Failure> {
        let gone = || Failure::new(Status::PolyrailErrHandle, "the transfer is gone".to_owned());
        self.transfer.as_ref().ok_or_else(gone)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer.take().filter(|_| *self.is_detached.get_mut()) {
            transfer.detach();
        }
    }
}
