//! Memory that the serving end has promised to measurements. Several engines serve one client, and untouched memory
//! still counts as free.

use std::sync::OnceLock;

use parking_lot::Mutex;
use polyrail_host::Sysroot;
use rustix::param::page_size;

use crate::cmd::bench::faults;
use crate::fault::Fault;
use crate::host::available_memory;

/// Total bytes promised to all measurements of this process.
static PROMISED: Mutex<u64> = Mutex::new(0);

/// Bytes promised to one measurement. Dropping the value ends the promise.
#[derive(Debug)]
pub(super) struct Promise(u64);

impl Promise {
    /// Promises the bytes. Refuses more memory than this host, or a control group, has left after earlier promises.
    pub(super) fn of(bytes: u64) -> Result<Self, Fault> {
        static BEFORE: OnceLock<u64> = OnceLock::new();
        let mut promised = PROMISED.lock();
        let resident = resident();
        let used = resident.saturating_sub(*BEFORE.get_or_init(|| resident));
        let available = available_memory();
        if let Some(available) =
            available.filter(|one| !has_room(bytes, *promised, used, one.bytes))
        {
            return Err(faults::memory(bytes, available));
        }
        *promised = promised.saturating_add(bytes);
        Ok(Self(bytes))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut promised = PROMISED.lock();
        *promised = promised.saturating_sub(self.0);
    }
}

/// Whether the memory suffices. `used`: bytes that this process has touched since the first promise.
fn has_room(bytes: u64, promised: u64, used: u64, available: u64) -> bool {
    bytes.saturating_add(promised.saturating_sub(used)) <= available
}

/// Returns the bytes of this process's memory that are not swapped out; see `proc_pid_statm(5)`.
fn resident() -> u64 {
    let statm = Sysroot::live().read("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_and_not_touched_is_not_promised_again() {
        assert!(has_room(3, 0, 0, 3) && !has_room(4, 0, 0, 3));
        assert!(has_room(1, 2, 0, 3) && !has_room(2, 2, 0, 3));
        // Touched memory is not available any more.
        assert!(has_room(2, 2, 2, 2) && has_room(2, 2, 5, 2));
        assert!(!has_room(u64::MAX, u64::MAX, 0, 7));
    }

    #[test]
    fn a_promise_counts_until_it_is_dropped() {
        let available = available_memory().expect("the kernel says it").bytes;
        // Other tests allocate memory meanwhile.
        let most = Promise::of(available / 8 * 5).unwrap();
        let error = Promise::of(available / 8 * 5).unwrap_err();
        assert!(error.message.contains(" of memory; allowed: "), "{error}");
        drop(most);
        drop(Promise::of(available / 8 * 5).unwrap());
    }
}
