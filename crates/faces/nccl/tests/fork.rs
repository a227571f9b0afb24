//! A process that forks while it has an engine, like programs that start workers: the copy may neither use nor disturb
//! the engine. The test is in this crate because it may call `fork`, which safe code can't.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use polyrail::{
    Config, Engine, EngineError, LostReason, Memory, PeerError, PostError, RegionError, Request,
    TransferError,
};

const LONG: Duration = Duration::from_secs(30);
/// Time after which a hanging copy is killed.
const COPY_SECONDS: u32 = 20;
/// The same for a copy that makes a single call, which returns at once.
const CALL_SECONDS: u32 = 5;

/// Runs `child` in a copy of this process, for at most `seconds`. Returns its exit status, as `waitpid` reports it.
fn in_a_copy(seconds: u32, child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc makes its allocator usable in the copy. Other locks that other threads hold stay locked there,
    // which is what the test is about: the copy takes none of the engine's.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(seconds);
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
fn a_forked_process_drops_what_threads_of_the_original_copy_just_then() {
    let (a, b) = (engine("proxy"), engine("proxy"));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let local = a.register(Memory::from(vec![7; 16 << 20])).unwrap();
    let target = b.register(Memory::from(vec![0; 16 << 20])).unwrap();
    let there = a.import(&target.describe()).unwrap();
    for round in 0..100 {
        let open = a.write(&to_b, &local.all(), &there.all()).unwrap();
        let status = in_a_copy(COPY_SECONDS, || {
            // SAFETY: the value read is forgotten in this copy, which ends by `_exit`.
            unsafe { drop(std::ptr::read(&raw const open)) };
            0
        });
        assert_eq!(status, 0, "exit status or signal of the copy, round {round}");
        open.wait(LONG).unwrap().unwrap();
    }
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
        let status = in_a_copy(COPY_SECONDS, || {
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
            // SAFETY: the values read are forgotten in this copy, which ends by `_exit`.
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
        // A new engine works in the copy.
        let status = in_a_copy(COPY_SECONDS, || {
            let own = engine("proxy");
            let other = engine("proxy");
            let peer = own.add_peer(&other.metadata()).unwrap();
            i32::from(own.notify(&peer, b"hello").unwrap().wait(LONG).unwrap().is_err())
        });
        assert_eq!(status, 0, "exit status or signal of the copy");
    }
}

/// Metrics page of this socket.
fn page(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_forked_process_leaves_the_metrics_of_the_original_alone_and_serves_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = || -> Vec<_> {
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let watched = |name: &str| {
        let listen = format!("dir:{}", folder.path().display());
        let config = Config::builder().set("rails", "127.0.0.1").unwrap();
        let config = config.set("metrics_listen", &listen).unwrap().build().unwrap();
        Engine::builder().config(config).name(name).build().unwrap()
    };
    let original = watched("original");
    let status = in_a_copy(COPY_SECONDS, || {
        let before = sockets();
        // SAFETY: the value read is forgotten in this copy, which ends by `_exit`.
        drop(unsafe { std::ptr::read(&raw const original) });
        let own = watched("copy");
        let new: Vec<_> = sockets().into_iter().filter(|path| !before.contains(path)).collect();
        let page = page(&new[0]);
        drop(own);
        let is_good = page.contains("engine=\"copy\"") && !page.contains("original");
        i32::from(!is_good || sockets() != before)
    });
    assert_eq!(status, 0, "exit status or signal of the copy");
    assert!(page(&sockets()[0]).contains("engine=\"original\""));
    drop(original);
    assert_eq!(sockets().len(), 0);
}

/// Name of a call in the copy, and a function that returns whether it succeeded.
type Call<'a> = (&'static str, &'a dyn Fn() -> bool);

/// Threads hold locks of the engine during the fork. These locks are never released in the copy.
#[test]
fn a_forked_process_waits_for_nobody_whatever_lock_was_held() {
    const ROUNDS: usize = 8;
    const MANY: usize = 200;
    let none = Path::new("/no/such/folder/rank7");
    for progress in ["proxy", "caller"] {
        let (a, b) = (engine(progress), engine(progress));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let local = a.register(Memory::from(vec![7; 1 << 10])).unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let connecting = a.connect(silent.local_addr().unwrap());
        let pending = a.receive(&to_b, 9, &local.all()).unwrap();
        let notify = || Request::write(&to_b).notification(b"x".to_vec());
        let prepared = a.prepare(notify()).unwrap();
        let events = a.events().unwrap();
        let mut accept = pin!(a.accept());
        let waits = accept.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(waits.is_pending());
        let is_refused = |posted: Result<_, _>| matches!(posted, Err(PostError::Forked));
        let is_nobody = |found: Result<_, _>| matches!(found, Err(PeerError::Forked));
        let calls: [Call<'_>; 22] = [
            ("accept_peer", &|| a.accept_peer(LONG).is_none()),
            ("add_peer", &|| is_nobody(a.add_peer(&b.metadata()))),
            ("close", &|| matches!(a.close(), ())),
            ("connect", &|| is_nobody(a.connect(b.addresses()[0]).join())),
            ("drain", &|| a.drain(LONG).is_none()),
            ("dump", &|| a.dump().contains("forked")),
            ("events", &|| matches!(a.events(), Err(EngineError::Forked))),
            ("find_peer", &|| a.find_peer(none, LONG).is_some_and(is_nobody)),
            ("gone", &|| matches!(to_b.gone().join(), LostReason::Forked)),
            ("post_with", &|| is_refused(prepared.post_with(Vec::new()))),
            ("peer", &|| a.peer(b.instance()).is_none()),
            ("peers", &|| a.peers().is_empty()),
            ("post", &|| is_refused(prepared.post())),
            ("prepare", &|| matches!(a.prepare(notify()), Err(PostError::Forked))),
            ("register", &|| matches!(a.register(vec![0; 9]), Err(RegionError::Forked))),
            ("remove_peer", &|| matches!(a.remove_peer(&to_b), ())),
            ("stats", &|| a.stats().peers.is_empty()),
            ("take_notifications", &|| b.take_notifications().is_empty()),
            ("wait_notification", &|| b.wait_notification(LONG).is_none()),
            ("what connects", &|| connecting.wait(LONG).is_some_and(is_nobody)),
            ("what is posted", &|| matches!(pending.join(), Err(TransferError::Forked))),
            // SAFETY: the values read are forgotten in this copy, which ends by `_exit`.
            ("drop", &|| unsafe {
                drop(std::ptr::read(&raw const events));
                drop(std::ptr::read(&raw const *accept));
                drop(std::ptr::read(&raw const connecting));
                drop(std::ptr::read(&raw const pending));
                true
            }),
        ];
        let over = AtomicBool::new(false);
        let busy = |work: &dyn Fn()| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                busy(&|| drop(a.notify(&to_b, b"x").map(|transfer| transfer.wait(LONG))));
            });
            // More of them make the lock of their list be held longer.
            scope.spawn(|| {
                let _many: Vec<_> = (0..MANY).map(|_| a.events().unwrap()).collect();
                busy(&|| drop(a.events()));
            });
            scope.spawn(|| busy(&|| drop((a.stats(), a.register(vec![0; 9])))));
            scope.spawn(|| busy(&|| drop((b.take_notifications(), b.peers()))));
            let mut failed = Vec::new();
            for (name, call) in calls.iter().cycle().take(ROUNDS * calls.len()) {
                let status = in_a_copy(CALL_SECONDS, || i32::from(!call()));
                if status != 0 {
                    failed.push((name, status));
                }
            }
            over.store(true, Ordering::Relaxed);
            assert!(failed.is_empty(), "{progress}: exit status or signal of {failed:?}");
        });
        pending.cancel();
    }
}
