//! Pages that other processes write to before they write to memory of this one, in the same system call: the
//! kernel stops them at a page that is closed.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};

use crate::memory::page_bytes;
use crate::per_process::PerProcess;

/// Pages that one mapping brings.
const AT_ONCE: usize = 16;
/// How far behind the word the byte stands that others write to.
pub(crate) const SCRATCH_OFFSET: u64 = 8;

/// Open pages that no other process knows of.
static UNKNOWN: PerProcess<Mutex<Vec<Page>>> = PerProcess::new();

/// A page that begins with a word which others read, and a byte which they write to, before and after they copy
/// from and to memory of this process. Once it is closed the word is gone, and the kernel writes nothing there.
///
/// A process that was stopped may come back to the page at any later time. So the page's address is used for
/// nothing else, unless [`GuardPage::allow_reuse`] was called. That costs address space, and no memory.
#[derive(Debug)]
pub struct GuardPage {
    page: Page,
    is_closed: AtomicBool,
    may_be_reused: AtomicBool,
}

/// Belongs to this module for good: it is never unmapped.
#[derive(Debug)]
struct Page(NonNull<AtomicU64>);

// SAFETY: a page belongs to the process, not to a thread, and only its word is touched here, atomically.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl GuardPage {
    /// An open page with this word.
    pub fn new(word: u64) -> io::Result<Self> {
        let page = Page::take()?;
        page.word().store(word, Ordering::Release);
        Ok(Self { page, is_closed: AtomicBool::default(), may_be_reused: AtomicBool::default() })
    }

    /// The address of its word.
    pub fn place(&self) -> u64 {
        self.page.0.as_ptr().addr() as u64
    }

    /// From now on nobody's look finds the word, and nobody's write begins. One that has begun may still go on for
    /// as long as the kernel takes for it.
    ///
    /// An error, mostly as the process has `vm.max_map_count` mappings, leaves the word cleared and the page open.
    pub fn close(&self) -> io::Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            // A closed page can't be stored to.
            return Ok(());
        }
        self.page.word().store(0, Ordering::SeqCst);
        if let Err(error) = self.page.set_access(MprotectFlags::READ) {
            // Its end tries again.
            self.is_closed.store(false, Ordering::Release);
            return Err(error);
        }
        // SAFETY: it is the page's own memory, which nothing refers to; it reads as zero afterwards. Only a hint:
        // the memory may be locked.
        let _ =
            unsafe { madvise(self.page.0.as_ptr().cast(), page_bytes(), Advice::LinuxDontNeed) };
        Ok(())
    }

    /// No other process comes back to the page, however late, so it may become another one.
    pub fn allow_reuse(&self) {
        self.may_be_reused.store(true, Ordering::Release);
    }
}

impl Drop for GuardPage {
    fn drop(&mut self) {
        if !*self.may_be_reused.get_mut() {
            // The word is cleared in any case.
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
