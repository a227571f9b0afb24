//! A process that forks while it has an engine, as programs that start workers do: the copy may
//! neither use nor disturb it. Here because this crate may call `fork`, which no safe code can.

use std::os::fd::AsRawFd;
use std::time::Duration;

use polyrail::{Config, Engine, Memory, PeerError, PostError, TransferError};

const LONG: Duration = Duration::from_secs(30);
/// The copy is killed if it hangs.
const COPY_SECONDS: u32 = 20;

/// Runs `child` in a copy of this process; returns its exit status, as `waitpid` has it.
fn in_a_copy(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc makes its allocator usable in the copy. Other locks that other threads hold stay
    // locked there, which is what the test is about: the copy takes none of the engine's.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(COPY_SECONDS);
                let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
                libc::_exit(status.unwrap_or(99))
            }
            pid => {
                assert!(pid > 0);
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                status
            }
        }
    }
}

fn engine(progress: &str) -> Engine {
    let config = Config::builder().set("rails", "127.0.0.1,127.0.0.2").unwrap();
    let config = config.set("progress", progress).unwrap().build().unwrap();
    Engine::builder().config(config).build().unwrap()
}

#[test]
fn a_forked_process_is_refused_the_engine_and_drops_it_without_a_trace() {
    for progress in ["proxy", "caller"] {
        let (a, b) = (engine(progress), engine(progress));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let to_a = b.add_peer(&a.metadata()).unwrap();
        let local = a.register(Memory::from(vec![7; 1 << 20])).unwrap();
        let target = b.register(Memory::from(vec![0; 1 << 20])).unwrap();
        let there = a.import(&target.describe()).unwrap();
        let write = || a.write(&to_b, &local.all(), &there.all());
        write().unwrap().wait(LONG).unwrap().unwrap();
        let open = write().unwrap();
        let events = a.events().unwrap();
        let (own, twin) = (a.clone(), local.clone());
        let status = in_a_copy(|| {
            if !matches!(write(), Err(PostError::Forked)) {
                return 1;
            }
            if !matches!(a.add_peer(&b.metadata()), Err(PeerError::Forked)) {
                return 2;
            }
            if !matches!(open.wait(LONG), Some(Ok(_) | Err(TransferError::Forked))) {
                return 3;
            }
            if !matches!(a.connect(b.addresses()[0]).join(), Err(PeerError::Forked)) {
                return 4;
            }
            if a.wait_notification(LONG).is_some() {
                return 5;
            }
            // Arming the copy's descriptor would empty the original's.
            events.clear();
            a.remove_peer(&to_b);
            a.close();
            // As if all handles were dropped here: the last one is.
            drop((own, twin));
            // SAFETY: what is read is forgotten in this copy, which ends by `_exit`.
            unsafe {
                drop(std::ptr::read(&raw const open));
                drop(std::ptr::read(&raw const local));
                drop(std::ptr::read(&raw const a));
                drop(std::ptr::read(&raw const b));
            }
            0
        });
        assert_eq!(status, 0, "exit status or signal of the copy");
        let mut ready = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        assert_eq!(unsafe { libc::poll(&raw mut ready, 1, 0) }, 1, "it was readable before");
        open.wait(LONG).unwrap().unwrap();
        for _ in 0..3 {
            write().unwrap().wait(LONG).unwrap().unwrap();
        }
        assert_eq!((to_a.lost(), to_b.lost()), (None, None));
        // One of its own works in the copy.
        let status = in_a_copy(|| {
            let own = engine("proxy");
            let other = engine("proxy");
            let peer = own.add_peer(&other.metadata()).unwrap();
            i32::from(own.notify(&peer, b"hello").unwrap().wait(LONG).unwrap().is_err())
        });
        assert_eq!(status, 0, "exit status or signal of the copy");
    }
}
