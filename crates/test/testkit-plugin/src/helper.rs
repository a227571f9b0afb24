//! An idle thread of a connection, started if the environment requests one: for tests that look for a plugin's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use polyrail_sys::threads::bind_current;

/// Thread that ends when this is dropped.
pub(crate) struct Helper {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts the thread. Returns when it is bound to this CPU.
    pub(crate) fn start(cpu: u32) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let ((tell, told), ends) = (channel(), is_over.clone());
        let thread = std::thread::spawn(move || {
            // If binding is not permitted, it runs anywhere.
            let _ = bind_current(&[cpu]);
            let _ = tell.send(());
            while !ends.load(Ordering::Acquire) {
                std::thread::park();
            }
        });
        let _ = told.recv();
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
