//! Allocator of the plugin.
//!
//! The C library grows each thread's heap by `mprotect`, page by page, which waits for the lock of the process's
//! address space. If CPUs are scarce, the thread that holds the lock waits 50 ms and more for a CPU, and NCCL's thread
//! waits with it in the middle of `isend`. mimalloc requests memory rarely, in large amounts.
//!
//! Valgrind and the sanitizers watch the C library's heap, so that is used under one of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

const UNKNOWN: u8 = 0;
const WATCHED: u8 = 1;
const ALONE: u8 = 2;

/// Threads that check at the same time get the same result.
static HEAP: AtomicU8 = AtomicU8::new(UNKNOWN);

fn is_watched() -> bool {
    match HEAP.load(Relaxed) {
        UNKNOWN => {
            let watched = has_sanitizer() || has_valgrind();
            HEAP.store(if watched { WATCHED } else { ALONE }, Relaxed);
            watched
        }
        heap => heap == WATCHED,
    }
}

/// Symbols that the sanitizers' runtimes export. None of them starts without its symbol.
const SANITIZERS: [&CStr; 3] = [c"__asan_init", c"__tsan_init", c"__lsan_init"];

fn has_sanitizer() -> bool {
    // SAFETY: the names end with a NUL, and the results are only compared with null.
    SANITIZERS
        .iter()
        .any(|name| unsafe { !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null() })
}

/// Valgrind preloads its own `malloc` by `LD_PRELOAD`.
fn has_valgrind() -> bool {
    // SAFETY: the name ends with a NUL, and the text is read before anything can change it. An allocator can't use
    // `std::env`, which allocates.
    let preloaded = unsafe { libc::getenv(c"LD_PRELOAD".as_ptr()) };
    // SAFETY: both are strings that end with a NUL.
    !preloaded.is_null() && unsafe { !libc::strstr(preloaded, c"/vgpreload_".as_ptr()).is_null() }
}

// SAFETY: both allocators fulfil the contract, and the choice between them never changes.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the contract of this same function.
        unsafe { if is_watched() { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if is_watched() { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; `memory` came from the same allocator.
        unsafe {
            if is_watched() {
                System.dealloc(memory, layout)
            } else {
                MiMalloc.dealloc(memory, layout)
            }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `memory` came from the same allocator.
        unsafe {
            if is_watched() {
                System.realloc(memory, layout, size)
            } else {
                MiMalloc.realloc(memory, layout, size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_valgrind_the_heap_that_it_watches_is_used() {
        let preloaded = std::env::var_os("LD_PRELOAD");
        let is_below = preloaded.is_some_and(|list| list == "/none/vgpreload_core.so");
        assert_eq!(is_watched(), is_below);
        if !is_below {
            let name = "allocator::tests::below_valgrind_the_heap_that_it_watches_is_used";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            // The loader ignores libraries that it can't load.
            again.args(["--exact", name]).env("LD_PRELOAD", "/none/vgpreload_core.so");
            let said = String::from_utf8(again.output().unwrap().stdout).unwrap();
            assert!(said.contains("1 passed"), "{said}");
        }
    }
}
