//! Threads started by a plugin. A thread inherits the name of the thread that starts it, so threads with the name of
//! the host's setup threads are the plugin's.

use std::fs;

use parking_lot::Mutex;

use crate::tcpx::Wishes;

/// Name of the threads that listen, accept and connect.
pub(crate) const NAME: &str = "pr-carrier";

/// Threads of this process that have this name and belong to no plugin.
static OWN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A thread that a plugin has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginThread {
    /// Thread id of the kernel.
    pub id: u32,
    /// CPUs that the thread may run on, in the kernel's notation: `0-3,8`.
    pub cpus: String,
    /// True if the engine's bindings allow these CPUs, or there are no bindings.
    pub is_as_asked: bool,
}

/// Marks a thread as the host's own while this lives.
pub(crate) struct Own(u32);

impl Own {
    /// Marks the calling thread.
    pub(crate) fn here() -> Self {
        // SAFETY: the call takes no arguments and can't fail.
        let id = unsafe { libc::gettid() }.cast_unsigned();
        OWN.lock().push(id);
        Self(id)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWN.lock().retain(|id| *id != self.0);
    }
}

/// All threads that plugins have started in this process and not renamed.
pub(crate) fn of_plugins(wishes: &Wishes) -> Vec<PluginThread> {
    let own = OWN.lock().clone();
    let thread = |id: u32| {
        let of = format!("/proc/self/task/{id}");
        let name = fs::read_to_string(format!("{of}/comm")).ok()?;
        if name.trim_end() != NAME || own.contains(&id) {
            return None;
        }
        let status = fs::read_to_string(format!("{of}/status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
        let is_as_asked = wishes.allow(&listed(cpus));
        Some(PluginThread { id, cpus: cpus.to_owned(), is_as_asked })
    };
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(thread).collect()
}

/// Parses a list of CPUs in the kernel's notation.
fn listed(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}
