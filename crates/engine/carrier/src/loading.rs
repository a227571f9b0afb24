//! Loads a plugin and reads the properties of its devices. A separate thread does that, because a plugin call can't be
//! made to return.

use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use polyrail_nccl_abi::{Library, Net, Properties};

use crate::calls;
use crate::error::{DEVICES_MAX, HostError};
use crate::signals::Signals;
use crate::tcpx::{self, Wishes};
use crate::threads;

/// An initialized plugin.
pub(crate) struct Opened {
    pub(crate) net: Net,
    /// Properties of each device; at least one.
    pub(crate) devices: Vec<Properties>,
}

/// Times of the first and the further messages to the user about a slow load.
const FIRST_WORD: Duration = Duration::from_secs(2);
const NEXT_WORDS: Duration = Duration::from_secs(10);

/// True if a plugin's code may be in this process.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// Loads and initializes the plugin.
pub(crate) fn open(plugin: &str, wishes: &Wishes) -> Result<Opened, HostError> {
    name_who_exits();
    IS_LOADED.store(true, Ordering::Relaxed);
    let limit = wishes.load_limit;
    let (tell, told) = sync_channel(1);
    let (name, wishes) = (plugin.to_owned(), wishes.clone());
    let run = move || {
        let _own = threads::Own::here();
        // The caller may have given up.
        let _ = tell.send(opened(&name, &wishes));
    };
    Builder::new().name(threads::NAME.to_owned()).spawn(run).map_err(HostError::Thread)?;
    let (mut waited, mut pause) = (Duration::ZERO, FIRST_WORD.min(limit));
    loop {
        match told.recv_timeout(pause) {
            Ok(opened) => return opened,
            Err(RecvTimeoutError::Timeout) => waited += pause,
            Err(RecvTimeoutError::Disconnected) => {
                let why = "it panicked while it was loaded";
                return Err(HostError::Thread(std::io::Error::other(why)));
            }
        }
        let function = calls::under_way().first().copied().unwrap_or(calls::LOAD);
        if waited >= limit {
            return Err(HostError::Hangs { function, limit });
        }
        let seconds = waited.as_secs();
        tracing::warn!(target: "polyrail::carrier", plugin, function, seconds,
            "the plugin has not returned yet");
        pause = NEXT_WORDS.min(limit - waited);
    }
}

fn opened(plugin: &str, wishes: &Wishes) -> Result<Opened, HostError> {
    let signals = Signals::now();
    let loaded = calls::within(calls::LOAD, || Library::open(plugin)).map_err(HostError::from);
    let loaded = loaded.and_then(|library| {
        if let Some((_, table)) = library.tables().last() {
            tcpx::tell(table, wishes);
        }
        Ok(Net::open(&library, None, Some(calls::observer()))?)
    });
    let changed = signals.restore();
    if !changed.is_empty() {
        tracing::warn!(target: "polyrail::carrier", plugin, ?changed,
            "the plugin changed what happens at signals; it is as before again");
    }
    let net = loaded?;
    let count = net.devices()?;
    if count == 0 {
        return Err(HostError::NoDevices { name: net.name() });
    }
    // Checked before the properties of each device are read.
    if count > DEVICES_MAX && wishes.devices.is_empty() {
        return Err(HostError::TooMany { name: net.name(), count });
    }
    let devices = (0..count).map(|number| net.properties(number)).collect::<Result<_, _>>()?;
    Ok(Opened { net, devices })
}

/// Limits the time that plugins may take for their exit handlers when the program is about to end. After `limit` the
/// process ends with exit code 1.
pub fn limit_exit(limit: Duration) {
    if !IS_LOADED.load(Ordering::Relaxed) {
        return;
    }
    let end = move || {
        // The sleep is the time limit itself.
        std::thread::sleep(limit);
        let _ = writeln!(
            std::io::stderr(),
            "error: a plugin that this process hosts has kept it from ending for {} s",
            limit.as_secs()
        );
        // SAFETY: the call does not return.
        unsafe { libc::_exit(1) }
    };
    // Without the thread the process ends when the plugin allows it.
    let _ = Builder::new().name("pr-exit".to_owned()).spawn(end);
}

/// Reports a plugin that calls `exit`, which would otherwise end the process as if nothing had failed.
fn name_who_exits() {
    extern "C" fn at_exit() {
        let Some(function) = calls::function_here() else { return };
        let _ = writeln!(
            std::io::stderr(),
            "error: a plugin that this process hosts has ended it, from `{function}`; `polyrail nccl try` says what the plugin can do"
        );
        // SAFETY: the call does not return. The remaining exit handlers are skipped, because the program did not ask to
        // exit.
        unsafe { libc::_exit(1) }
    }

    static ONCE: Once = Once::new();
    // SAFETY: the function exists as long as the process, and does not unwind: it only prints.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}
