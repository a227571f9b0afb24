//! Pages that other processes write to before they write to memory of this one, in the same system call: the kernel
//! stops at a closed page.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};

use crate::memory::page_bytes;
use crate::per_process::PerProcess;

/// Pages per mapping.
const AT_ONCE: usize = 16;
/// Offset from the word to the byte that other processes write to.
pub(crate) const SCRATCH_OFFSET: u64 = 8;

/// Open pages that no other process knows.
static UNKNOWN: PerProcess<Mutex<Vec<Page>>> = PerProcess::new();

/// A page that begins with a word that other processes read, and a byte that they write, before and after they copy
/// from and to memory of this process. Closing the page clears the word, and makes the kernel refuse writes.
///
/// A process that was stopped may access the page at any later time. So its address is not reused, unless
/// [`GuardPage::allow_reuse`] was called. That costs address space, and no memory.
#[derive(Debug)]
pub struct GuardPage {
    page: Page,
    is_closed: AtomicBool,
    may_be_reused: AtomicBool,
}

/// Page owned by this module forever: it is never unmapped.
#[derive(Debug)]
struct Page(NonNull<AtomicU64>);

// SAFETY: a page belongs to the process, not to a thread, and only its word is touched here, atomically.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl GuardPage {
    /// Creates an open page with this word.
    pub fn new(word: u64) -> io::Result<Self> {
        let page = Page::take()?;
        page.word().store(word, Ordering::Release);
        Ok(Self { page, is_closed: AtomicBool::default(), may_be_reused: AtomicBool::default() })
    }

    /// Address of the word.
    pub fn place(&self) -> u64 {
        self.page.0.as_ptr().addr() as u64
    }

    /// Closes the page: from now on no check finds the word, and no write begins. A write that has begun may continue
    /// for as long as the kernel needs.
    ///
    /// After an error, mostly because the process has `vm.max_map_count` mappings, the word is cleared and the page
    /// stays open.
    pub fn close(&self) -> io::Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            // Storing to a closed page would fault.
            return Ok(());
        }
        self.page.word().store(0, Ordering::SeqCst);
        if let Err(error) = self.page.set_access(MprotectFlags::READ) {
            // Dropping the page tries again.
            self.is_closed.store(false, Ordering::Release);
            return Err(error);
        }
        // SAFETY: the page's own memory, to which there are no references; it reads as zero afterwards. The call is
        // only a hint: the memory may be locked.
        let _ =
            unsafe { madvise(self.page.0.as_ptr().cast(), page_bytes(), Advice::LinuxDontNeed) };
        Ok(())
    }

    /// Allows the page's address to be reused, as no other process will access it again.
    pub fn allow_reuse(&self) {
        self.may_be_reused.store(true, Ordering::Release);
    }
}

impl Drop for GuardPage {
    fn drop(&mut self) {
        if !*self.may_be_reused.get_mut() {
            // On failure the word is still cleared.
            let _ = self.close();
        } else if self.page.set_access(MprotectFlags::READ | MprotectFlags::WRITE).is_ok() {
            unknown().push(Page(self.page.0));
        }
    }
}

fn unknown() -> MutexGuard<'static, Vec<Page>> {
    UNKNOWN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Page {
    fn take() -> io::Result<Self> {
        let mut unknown = unknown();
        if let Some(page) = unknown.pop() {
            return Ok(page);
        }
        let bytes = page_bytes();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), AT_ONCE * bytes, protection, flags)? };
        let page = |number: usize| NonNull::new(base.wrapping_byte_add(number * bytes).cast());
        unknown.extend((1..AT_ONCE).filter_map(page).map(Self));
        page(0).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped for good and begins with a word, which is only touched atomically.
        unsafe { self.0.as_ref() }
    }

    fn set_access(&self, access: MprotectFlags) -> io::Result<()> {
        // SAFETY: it is one page of this module's, whose word is only stored to while the page is open.
        unsafe { mprotect(self.0.as_ptr().cast(), page_bytes(), access) }.map_err(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_used_again_only_if_nobody_comes_back_to_it() {
        let kept = GuardPage::new(7).unwrap();
        let place = kept.place();
        kept.close().unwrap();
        kept.close().unwrap();
        drop(kept);
        // SAFETY: pages stay mapped for good, and closed ones can be read.
        let word = unsafe { (place as usize as *const u64).read_volatile() };
        assert_eq!(word, 0);
        let reused = GuardPage::new(8).unwrap();
        let again = reused.place();
        reused.close().unwrap();
        reused.allow_reuse();
        drop(reused);
        // Other tests take pages, too.
        let mut pages = Vec::new();
        while !pages.iter().any(|page: &GuardPage| page.place() == again) {
            pages.push(GuardPage::new(9).unwrap());
            assert!(pages.len() < 1000, "it was not used again");
        }
        assert!(
            pages
                .iter()
                .all(|page| page.place() != place && page.page.word().load(Ordering::Relaxed) == 9)
        );
    }
}
