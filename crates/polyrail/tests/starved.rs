//! Threads that get no CPU for a while: nobody else waits for them, and nobody is taken for dead.

mod common;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use polyrail::{OnEnd, Outcome, Request, TransferError};

/// Holds up whoever tells it of an end, as a thread is held up that gets no CPU.
struct Holdup {
    begins: Mutex<mpsc::Sender<()>>,
    ends: Mutex<mpsc::Receiver<()>>,
}

impl OnEnd for Holdup {
    fn ended(&self, _token: u64, _result: &Result<Outcome, TransferError>) {
        self.begins.lock().unwrap().send(()).unwrap();
        // Also if the test has failed, and nobody is there any more.
        let _ = self.ends.lock().unwrap().recv_timeout(LONG);
    }
}

#[test]
fn to_post_waits_for_no_thread_that_drives_and_has_no_cpu() {
    for mode in [&[][..], &[("progress", "caller")]] {
        let p = pair(mode);
        let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let holdup = Arc::new(Holdup { begins: Mutex::new(begins), ends: Mutex::new(ends) });
        let request = Request::write(&p.to_b).notification(b"first".to_vec());
        let first = p.a.prepare(request.on_end(holdup, 1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| first.post().unwrap().wait(LONG).unwrap());
            // Where callers drive, b's has to look for the answer, too.
            assert_eq!(p.b.wait_notification(LONG).expect("it comes").data, b"first");
            begun.recv_timeout(LONG).expect("the end is told");
            let (posts, posted) = mpsc::channel();
            let (a, to_b) = (p.a.clone(), p.to_b.clone());
            scope.spawn(move || {
                let transfer = a.notify(&to_b, b"second").unwrap();
                let _ = transfer.poll();
                transfer.detach();
                posts.send(()).unwrap();
            });
            let is_posted = posted.recv_timeout(Duration::from_secs(10)).is_ok();
            end.send(()).unwrap();
            assert!(is_posted, "{mode:?}: it waits for the thread that drives");
        });
        assert_eq!(p.b.wait_notification(LONG).expect("it comes").data, b"second");
    }
}
