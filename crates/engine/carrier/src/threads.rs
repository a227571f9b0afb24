//! Threads that a plugin starts. A thread has the name of the one that started it until somebody gives it another, so
//! those with the name of the host's threads for slow calls are the plugin's.

use std::fs;

use parking_lot::Mutex;

use crate::tcpx::Wishes;

/// The name of the threads that listen, accept and connect.
pub(crate) const NAME: &str = "pr-carrier";

/// Those of this process that have this name and belong to no plugin.
static OWN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A thread that a plugin has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginThread {
    /// As the kernel numbers it.
    pub id: u32,
    /// The CPUs that it may run on, as the kernel writes them: `0-3,8`.
    pub cpus: String,
    /// They are what the engine's bindings allow; also where there are none.
    pub is_as_asked: bool,
}

/// A thread with the name that is none of a plugin's, as long as this lives.
pub(crate) struct Own(u32);

impl Own {
    /// This thread.
    pub(crate) fn here() -> Self {
        // SAFETY: it takes nothing and can't fail.
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

/// All threads that plugins have started in this process and not named otherwise.
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

/// The CPUs of a list that the kernel has written.
fn listed(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}
