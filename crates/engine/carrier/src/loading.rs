//! Loading a plugin and asking what its devices are: by a thread of its own, since nobody can make it return.

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

/// A plugin that was initialized.
pub(crate) struct Opened {
    pub(crate) net: Net,
    /// What each device says of itself; at least one.
    pub(crate) devices: Vec<Properties>,
}

/// When the user is told what it is that takes so long, and told again.
const FIRST_WORD: Duration = Duration::from_secs(2);
const NEXT_WORDS: Duration = Duration::from_secs(10);

/// Whether a plugin's code may be in this process.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// Loads the plugin and initializes it.
pub(crate) fn open(plugin: &str, wishes: &Wishes) -> Result<Opened, HostError> {
    name_who_exits();
    IS_LOADED.store(true, Ordering::Relaxed);
    let limit = wishes.load_limit;
    let (tell, told) = sync_channel(1);
    let (name, wishes) = (plugin.to_owned(), wishes.clone());
    let run = move || {
        let _own = threads::Own::here();
        // Nobody waits any more if it took too long.
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
    // Before each of them is asked for.
    if count > DEVICES_MAX && wishes.devices.is_empty() {
        return Err(HostError::TooMany { name: net.name(), count });
    }
    let devices = (0..count).map(|number| net.properties(number)).collect::<Result<_, _>>()?;
    Ok(Opened { net, devices })
}

/// For a program that is about to end: what plugins have left to do then may take so long. After that the process ends
/// without it, with exit code 1.
pub fn limit_exit(limit: Duration) {
    if !IS_LOADED.load(Ordering::Relaxed) {
        return;
    }
    let end = move || {
        // The time is the limit.
        std::thread::sleep(limit);
        let _ = writeln!(
            std::io::stderr(),
            "error: a plugin that this process hosts has kept it from ending for {} s",
            limit.as_secs()
        );
        // SAFETY: it returns to nobody.
        unsafe { libc::_exit(1) }
    };
    // Without the thread it ends when the plugin lets it.
    let _ = Builder::new().name("pr-exit".to_owned()).spawn(end);
}

/// A plugin that calls `exit` ends the process as if all were well, unless somebody says so.
fn name_who_exits() {
    extern "C" fn at_exit() {
        let Some(function) = calls::function_here() else { return };
        let _ = writeln!(
            std::io::stderr(),
            "error: a plugin that this process hosts has ended it, from `{function}`; `polyrail nccl try` says what the plugin can do"
        );
        // SAFETY: it returns to nobody. What else there is to do at the end belongs to who has not asked for it.
        unsafe { libc::_exit(1) }
    }

    static ONCE: Once = Once::new();
    // SAFETY: the function is there as long as the process, and does not unwind: it only prints.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}
