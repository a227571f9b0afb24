//! Rates of copies that earlier runs measured. The rates are valid until the machine restarts.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_host::CpuSet;
use polyrail_sys::threads::allowed_cpus;
use serde::{Deserialize, Serialize};

use crate::cmd::bench::trial::Quotas;
use crate::files::{read_text, replace};

/// Name of the file of these rates, in this user's folder.
pub(crate) const KNOWN_FILE: &str = "limits.json";

/// File of these rates.
pub(crate) struct KnownRates {
    path: PathBuf,
    contents: Contents,
}

#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    machine: Machine,
    /// Rates, the oldest first.
    rates: Vec<Known>,
}

/// Conditions under which rates are valid: one machine since its start, one version, one set of CPUs, and one quota of
/// CPU time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    boot_id: String,
    version: String,
    cpus_allowed: String,
    /// CPU quota of the control groups, as a number of CPUs; `None` without a quota.
    cpu_quota: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Known {
    /// Hash of the use of memory.
    used: u64,
    gb_per_s: f64,
    measured_unix_ms: u64,
}

impl Machine {
    /// Returns the conditions of this machine, or `None` if its boot id or its CPUs are unknown.
    pub(crate) fn this(boot_id: Option<&str>) -> Option<Self> {
        let cpus: CpuSet = allowed_cpus().ok()?.into_iter().collect();
        Some(Self {
            boot_id: boot_id?.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpus_allowed: cpus.to_string(),
            cpu_quota: Quotas::look().least_cpus().map(|cpus| format!("{cpus:.2}")),
        })
    }
}

impl KnownRates {
    /// Reads the file in this folder. A file that is missing, damaged or of another machine counts as empty.
    pub(crate) fn open(folder: &Path, machine: Machine) -> Self {
        let path = folder.join(KNOWN_FILE);
        let text = if can_be_used(&path) { read_text(&path).ok() } else { None };
        let found = text.and_then(|text| serde_json::from_str::<Contents>(&text).ok());
        let mut contents = found
            .filter(|found| found.machine == machine)
            .unwrap_or(Contents { machine, rates: Vec::new() });
        contents.rates.retain(|known| (MIN_GB_PER_S..=MAX_GB_PER_S).contains(&known.gb_per_s));
        Self { path, contents }
    }

    /// Returns the rate in GB/s, and its age. A measurement in the future counts as unknown: the clock was set back.
    pub(crate) fn get(&self, used: &impl Hash, now_unix_ms: u64) -> Option<(f64, Duration)> {
        let used = hash(used);
        let known = self.contents.rates.iter().find(|known| known.used == used)?;
        let age = now_unix_ms.checked_sub(known.measured_unix_ms)?;
        Some((known.gb_per_s, Duration::from_millis(age)))
    }

    /// Keeps a rate. If the file can't be written, the next run measures again.
    pub(crate) fn keep(&mut self, used: &impl Hash, gb_per_s: f64, now_unix_ms: u64) {
        let (used, rates) = (hash(used), &mut self.contents.rates);
        rates.retain(|known| known.used != used);
        rates.push(Known { used, gb_per_s, measured_unix_ms: now_unix_ms });
        let surplus = rates.len().saturating_sub(RATES_MAX);
        rates.drain(..surplus);
        if let Ok(text) = serde_json::to_string(&self.contents)
            && can_be_used(&self.path)
        {
            let _ = replace(&self.path, text);
        }
    }
}

/// Whether the path is a regular file or does not exist. Opening a pipe would wait for the process at its other end.
fn can_be_used(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.is_file(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Formats the age of a measurement for people.
pub(crate) fn ago(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds} s ago"),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

fn hash(used: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    used.hash(&mut hasher);
    hasher.finish()
}

const RATES_MAX: usize = 64;
/// Range of plausible rates, in GB/s. Rates outside are damage: no machine copies so slowly or so fast.
const MIN_GB_PER_S: f64 = 1e-3;
const MAX_GB_PER_S: f64 = 1e5;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a stand-in for the use of memory.
    fn used(size: u64) -> (u64, &'static str) {
        (size, "twice")
    }

    fn machine(boot: &str) -> Machine {
        let version = "1.0.0".to_owned();
        let cpus_allowed = "0-1".to_owned();
        Machine { boot_id: boot.to_owned(), version, cpus_allowed, cpu_quota: None }
    }

    #[test]
    fn a_rate_holds_until_the_next_boot_and_for_one_version_set_of_cpus_and_quota() {
        let folder = tempfile::tempdir().unwrap();
        let get = |machine: Machine, used: &(u64, &'static str)| {
            KnownRates::open(folder.path(), machine).get(used, 61_000)
        };
        assert_eq!(get(machine("a"), &used(8)), None, "there is no file yet");
        KnownRates::open(folder.path(), machine("a")).keep(&used(8), 4.93, 1_000);
        assert_eq!(get(machine("a"), &used(8)), Some((4.93, Duration::from_secs(60))));
        assert_eq!(get(machine("a"), &used(16)), None, "another use of memory");
        let before = KnownRates::open(folder.path(), machine("a")).get(&used(8), 999);
        assert_eq!(before, None, "the clock was set back");
        assert_eq!(get(machine("b"), &used(8)), None);
        let other = Machine { version: "1.0.1".to_owned(), ..machine("a") };
        assert_eq!(get(other, &used(8)), None);
        let other = Machine { cpu_quota: Some("1.50".to_owned()), ..machine("a") };
        assert_eq!(get(other, &used(8)), None);
        let other = Machine { cpus_allowed: "0".to_owned(), ..machine("a") };
        assert_eq!(get(other.clone(), &used(8)), None);
        // Writing the file drops the rates of other conditions.
        KnownRates::open(folder.path(), other).keep(&used(16), 1.0, 0);
        assert_eq!(get(machine("a"), &used(8)), None);
    }

    #[test]
    fn a_damaged_file_counts_as_empty_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let damaged = ["", "{", "[]", "{\"machine\":1}", "\0\0"];
        for text in damaged {
            std::fs::write(folder.path().join(KNOWN_FILE), text).unwrap();
            let mut known = KnownRates::open(folder.path(), machine("a"));
            assert_eq!(known.get(&used(8), 0), None, "{text}");
            known.keep(&used(8), 2.0, 0);
            let known = KnownRates::open(folder.path(), machine("a"));
            assert_eq!(known.get(&used(8), 0), Some((2.0, Duration::ZERO)), "{text}");
        }
        let text = std::fs::read_to_string(folder.path().join(KNOWN_FILE)).unwrap();
        for damaged in ["0.0", "5e-324", "-1.0", "1e308", "1e999", "null"] {
            std::fs::write(folder.path().join(KNOWN_FILE), text.replace("2.0", damaged)).unwrap();
            let known = KnownRates::open(folder.path(), machine("a"));
            assert_eq!(known.get(&used(8), 0), None, "no machine copies {damaged} GB/s");
        }
    }

    #[test]
    fn a_pipe_a_folder_a_device_and_a_large_file_are_no_obstacle() {
        let kept = |make: &dyn Fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            make(&folder.path().join(KNOWN_FILE));
            let path = folder.path().to_owned();
            let (tell, done) = std::sync::mpsc::channel();
            let keep = move || {
                let mut known = KnownRates::open(&path, machine("a"));
                let found = known.get(&used(8), 0);
                known.keep(&used(8), 2.0, 0);
                let _ = tell.send((found, known.get(&used(8), 0)));
            };
            std::thread::Builder::new().spawn(keep).unwrap();
            let (found, kept) = done.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!((found, kept), (None, Some((2.0, Duration::ZERO))));
            KnownRates::open(folder.path(), machine("a")).get(&used(8), 0).is_some()
        };
        let mode = rustix::fs::Mode::RWXU;
        assert!(!kept(&|path| rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap()));
        assert!(!kept(&|path| fs::create_dir(path).unwrap()));
        assert!(!kept(&|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()));
        assert!(kept(&|path| fs::File::create(path).unwrap().set_len(3 << 30).unwrap()));
    }

    #[test]
    fn the_oldest_of_too_many_rates_go_and_a_new_one_replaces_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut known = KnownRates::open(folder.path(), machine("a"));
        for size in 1..=70 {
            known.keep(&used(size), size as f64, size);
        }
        known.keep(&used(70), 7.0, 71);
        let known = KnownRates::open(folder.path(), machine("a"));
        assert_eq!(known.contents.rates.len(), RATES_MAX);
        assert_eq!(
            (known.get(&used(6), 0), known.get(&used(7), 7)),
            (None, Some((7.0, Duration::ZERO)))
        );
        assert_eq!(known.get(&used(70), 71), Some((7.0, Duration::ZERO)));
    }

    #[test]
    fn an_age_has_one_unit() {
        let text = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!([0, 59].map(text), ["0 s ago", "59 s ago"]);
        assert_eq!([60, 3599].map(text), ["1 min ago", "59 min ago"]);
        assert_eq!([3600, 90_000].map(text), ["1 h ago", "25 h ago"]);
    }
}
