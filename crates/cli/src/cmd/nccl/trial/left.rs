//! Changes that a plugin has left in its process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use polyrail_sys::process::signal_handlers;

use super::findings::{Left, Thread};

/// Properties of its process that a plugin may change.
pub(super) struct State {
    threads: BTreeMap<OsString, Thread>,
    descriptors: BTreeMap<OsString, String>,
    environment: BTreeMap<OsString, OsString>,
    signals: BTreeMap<i32, usize>,
    cpus: String,
}

impl State {
    pub(super) fn read() -> Self {
        let names = |folder: &str| -> Vec<OsString> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        };
        let thread = |id: OsString| {
            let of = format!("/proc/self/task/{}", id.display());
            let name = fs::read_to_string(format!("{of}/comm")).ok()?.trim_end().to_owned();
            Some((id, Thread { name, cpus: cpus(&format!("{of}/status"))? }))
        };
        let file = |number: OsString| {
            let target = fs::read_link(format!("/proc/self/fd/{}", number.display())).ok()?;
            Some((number, target.display().to_string()))
        };
        Self {
            threads: names("/proc/self/task").into_iter().filter_map(thread).collect(),
            descriptors: names("/proc/self/fd").into_iter().filter_map(file).collect(),
            environment: std::env::vars_os().collect(),
            signals: signal_handlers().into_iter().collect(),
            cpus: cpus("/proc/thread-self/status").unwrap_or_default(),
        }
    }

    pub(super) fn left_until_now(&self) -> Left {
        let now = Self::read();
        let threads = now.threads.iter().filter(|(id, _)| !self.threads.contains_key(*id));
        let files = now.descriptors.iter();
        // The folder that is being read is open, too.
        let files = files.filter(|(number, target)| {
            self.descriptors.get(*number) != Some(*target) && !target.ends_with("/fd")
        });
        let mut environment = Vec::new();
        for (name, value) in &now.environment {
            match self.environment.get(name) {
                None => environment.push(format!("{} is set", name.display())),
                Some(old) if old != value => {
                    environment.push(format!("{} has another value", name.display()));
                }
                Some(_) => {}
            }
        }
        let gone = self.environment.keys().filter(|name| !now.environment.contains_key(*name));
        environment.extend(gone.map(|name| format!("{} is gone", name.display())));
        let changed =
            now.signals.iter().filter(|(signal, then)| self.signals.get(*signal) != Some(*then));
        let signals = changed.map(|(signal, then)| match then {
            0 => format!("signal {signal}: the default"),
            1 => format!("signal {signal}: it is ignored"),
            _ => format!("signal {signal}: a function is called"),
        });
        Left {
            threads: threads.map(|(_, thread)| thread.clone()).collect(),
            descriptors: files.map(|(_, target)| target.clone()).collect(),
            environment,
            signal_handlers: signals.collect(),
            caller_cpus: Some(now.cpus).filter(|cpus| *cpus != self.cpus),
        }
    }
}

fn cpus(status: &str) -> Option<String> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}
