//! Values of the host: reading, writing, and the meaning of the kernel's errors.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use polyrail_host::{CpuSet, ReadError, Sysroot};
use polyrail_nic::{
    Ethtool, NicError, RssTable, require_right_to_change, rss_table, set_rss_table,
};
use polyrail_sys::files::Below;

use crate::balancer;
use crate::irq::Vectors;
use crate::target::{Target, VectorId};

/// A host whose values can be read and written. Tests inject faults through this trait.
pub trait Machine {
    /// Returns the current value, without surrounding spaces; `None` if the target does not exist.
    ///
    /// # Errors
    /// [`Fault`] if it exists but can't be read.
    fn read(&mut self, target: &Target) -> Result<Option<String>, Fault>;

    /// Sets the value.
    ///
    /// # Errors
    /// [`Fault`] with the system's error.
    fn write(&mut self, target: &Target, value: &str) -> Result<(), Fault>;

    /// Opens the target as for a write, and writes nothing.
    ///
    /// # Errors
    /// [`Fault`] if a missing right forbids the write.
    fn try_open(&mut self, target: &Target) -> Result<(), Fault>;

    /// Returns the CPUs that an interrupt really goes to; `None` if the kernel does not report
    /// them.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn effective(&mut self, vector: &VectorId) -> Result<Option<String>, Fault>;

    /// Names the place of the value: a path, or the setting of an interface.
    fn place(&mut self, target: &Target) -> String;

    /// Returns the file tree, for code that reads other facts.
    fn root(&self) -> &Sysroot;

    /// Waits for the kernel to settle.
    fn pause(&mut self, duration: std::time::Duration);
}

/// A file tree, plus netlink if it is this machine's own.
#[derive(Debug)]
pub struct SysMachine {
    root: Sysroot,
    ethtool: Option<Ethtool>,
    vectors: Option<Vectors>,
}

/// An access that failed.
#[derive(Debug, thiserror::Error)]
pub struct Fault {
    /// A path, or a setting of an interface.
    pub what: String,
    /// The part of the access that failed.
    pub step: Step,
    pub source: io::Error,
    /// The kernel's own message, if there was one.
    pub said: Option<String>,
}

/// The part of an access that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value was read.
    Read,
    /// The file was opened for a write: permissions and mounts decide here.
    Open,
    /// The value was written: the kernel's subsystem decides here.
    Write,
    /// A program was stopped or started.
    Switch,
}

/// Meaning of a refused write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The kernel places this interrupt itself and forbids changes: not a failure.
    Managed,
    /// A retry may succeed in a moment.
    Transient,
    /// This process lacks the right.
    Denied,
    /// The write can never succeed like this.
    Hard,
}

// Errno values of Linux on every architecture that this program supports.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;
const EOVERFLOW: i32 = 75;

impl SysMachine {
    /// Uses the machine below `root`.
    pub fn new(root: Sysroot) -> Self {
        Self { root, ethtool: None, vectors: None }
    }

    /// Returns the current number of a vector, looked up again whenever it may have changed.
    fn number(&mut self, vector: &VectorId) -> Result<Option<u32>, Fault> {
        if let Some(number) = self.vectors.as_ref().and_then(|vectors| vectors.find(vector))
            && self.still_is(number, &vector.action)
        {
            return Ok(Some(number));
        }
        let vectors = Vectors::read(&self.root).map_err(|error| Fault {
            what: error.path().display().to_string(),
            step: Step::Read,
            source: io::Error::other(error.to_string()),
            said: None,
        })?;
        let number = vectors.find(vector);
        self.vectors = Some(vectors);
        Ok(number)
    }

    /// Whether an interrupt has kept its handler since it was looked up. `false` where the kernel
    /// has no cheap way to check.
    fn still_is(&self, number: u32, action: &str) -> bool {
        let actions = self.root.read(format!("/sys/kernel/irq/{number}/actions"));
        actions.is_ok_and(|actions| actions.split(',').any(|found| found.trim() == action))
    }

    fn ethtool(&mut self, target: &Target) -> Result<&mut Ethtool, Fault> {
        self.require_drivers(target)?;
        let opened = match self.ethtool.take() {
            Some(ethtool) => ethtool,
            None => Ethtool::open().map_err(|error| from_nic(&error, target, Step::Read))?,
        };
        Ok(self.ethtool.insert(opened))
    }

    /// Refuses to use this machine's drivers and programs for another machine.
    fn require_drivers(&self, target: &Target) -> Result<(), Fault> {
        match self.root.is_live() {
            true => Ok(()),
            false => Err(Fault {
                what: target.to_string(),
                step: Step::Read,
                source: io::ErrorKind::Unsupported.into(),
                said: Some("a copy of /proc and /sys has neither drivers nor programs".to_owned()),
            }),
        }
    }

    fn open(&mut self, target: &Target) -> Result<(File, PathBuf), Fault> {
        let path = match target {
            Target::Irq(vector) => match self.number(vector)? {
                Some(number) => PathBuf::from(format!("/proc/irq/{number}/smp_affinity_list")),
                None => return Err(gone(target)),
            },
            Target::File { path } => PathBuf::from(path),
            _ => return Err(gone(target)),
        };
        // Truncate as a shell does. A copy of the tree then behaves like kernel files, which ignore
        // truncation.
        let file = self.open_path(&path, true)?;
        Ok((file, self.root.path(path)))
    }

    /// Opens the file of a value to write it. In a copy of a machine, links must stay in the copy, and the file itself
    /// must not be a link or have a second name: otherwise the text would go to a file outside the copy.
    fn open_path(&self, path: &Path, to_empty: bool) -> Result<File, Fault> {
        let opened = match self.root.is_live() {
            // On the running machine, only the kernel makes files and links there.
            true => OpenOptions::new().write(true).truncate(to_empty).open(path),
            false => Below::find_link(self.root.root(), path)
                .and_then(|found| found.open_to_write(to_empty)),
        };
        opened.map_err(|source| Fault {
            what: self.root.path(path).display().to_string(),
            step: Step::Open,
            source,
            said: None,
        })
    }
}

impl Machine for SysMachine {
    fn read(&mut self, target: &Target) -> Result<Option<String>, Fault> {
        let path = match target {
            Target::Irq(vector) => match self.number(vector)? {
                Some(number) => format!("/proc/irq/{number}/smp_affinity_list"),
                None => return Ok(None),
            },
            Target::File { path } => path.clone(),
            Target::Ethtool { nic, .. } => {
                let Some(setting) = target.setting() else { return Ok(None) };
                return match self.ethtool(target)?.value(nic, setting) {
                    Ok(limits) => Ok(limits.now.map(|value| value.to_string())),
                    Err(error) if error.is_absent() || error.is_unsupported() => Ok(None),
                    Err(error) => Err(from_nic(&error, target, Step::Read)),
                };
            }
            Target::Rss { nic } => {
                self.require_drivers(target)?;
                return match rss_table(nic) {
                    Ok(table) => Ok(Some(table.to_string())),
                    Err(error) if error.is_absent() || error.is_unsupported() => Ok(None),
                    Err(error) => Err(from_nic(&error, target, Step::Read)),
                };
            }
            Target::IrqbalanceService | Target::IrqbalanceProcess { .. } => {
                return Ok(balancer::read(&self.root, target));
            }
        };
        match self.root.read(&path) {
            Ok(text) => Ok(Some(chosen(text.trim()).to_owned())),
            Err(ReadError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound
                    || matches!(source.raw_os_error(), Some(ENODEV | ENXIO)) =>
            {
                Ok(None)
            }
            Err(error) => Err(Fault {
                what: error.path().display().to_string(),
                step: Step::Read,
                source: match error {
                    ReadError::Io { source, .. } => source,
                    other => io::Error::other(other.to_string()),
                },
                said: None,
            }),
        }
    }

    fn write(&mut self, target: &Target, value: &str) -> Result<(), Fault> {
        if let Target::Ethtool { nic, .. } = target {
            let (Some(setting), Ok(value)) = (target.setting(), value.parse()) else {
                return Err(gone(target));
            };
            let result = self.ethtool(target)?.set(nic, &[(setting, value)]);
            return result.map_err(|error| from_nic(&error, target, Step::Write));
        }
        if let Target::Rss { nic } = target {
            self.require_drivers(target)?;
            let table: RssTable = value.parse().map_err(|_| gone(target))?;
            let result = set_rss_table(nic, &table);
            return result.map_err(|error| from_nic(&error, target, Step::Write));
        }
        if target.is_balancer() {
            self.require_drivers(target)?;
            return balancer::write(&self.root, target, value);
        }
        let (mut file, path) = self.open(target)?;
        // Use a single write: the kernel takes each write as a whole value.
        file.write_all(format!("{value}\n").as_bytes()).map_err(|source| Fault {
            what: path.display().to_string(),
            step: Step::Write,
            source,
            said: None,
        })
    }

    fn try_open(&mut self, target: &Target) -> Result<(), Fault> {
        let path = match target {
            Target::Ethtool { .. } | Target::Rss { .. } => {
                self.require_drivers(target)?;
                return require_right_to_change()
                    .map_err(|error| from_nic(&error, target, Step::Write));
            }
            Target::Irq(vector) => match self.number(vector)? {
                Some(number) => format!("/proc/irq/{number}/smp_affinity_list"),
                None => return Err(gone(target)),
            },
            Target::File { path } => path.clone(),
            // Only the service manager knows which users may stop a service.
            Target::IrqbalanceService | Target::IrqbalanceProcess { .. } => {
                return self.require_drivers(target);
            }
        };
        self.open_path(Path::new(&path), false).map(drop)
    }

    fn effective(&mut self, vector: &VectorId) -> Result<Option<String>, Fault> {
        let Some(number) = self.number(vector)? else { return Ok(None) };
        let text = self.root.read(format!("/proc/irq/{number}/effective_affinity_list"));
        // On some architectures the file is missing or empty.
        let text = text.ok().filter(|text| !text.is_empty());
        Ok(text.filter(|text| CpuSet::parse_list(text).is_ok()))
    }

    fn place(&mut self, target: &Target) -> String {
        match target {
            Target::Irq(vector) => match self.number(vector) {
                Ok(Some(number)) => format!("/proc/irq/{number}/smp_affinity_list"),
                _ => target.to_string(),
            },
            Target::File { path } => path.clone(),
            _ => target.to_string(),
        }
    }

    fn root(&self) -> &Sysroot {
        &self.root
    }

    fn pause(&mut self, duration: std::time::Duration) {
        std::thread::sleep(duration);
    }
}

/// Returns the word in brackets where the kernel lists all accepted words, as in `always [madvise]
/// never`: writing a word makes it the one in brackets.
fn chosen(text: &str) -> &str {
    let mut words = text.split_whitespace().filter(|word| word.len() > 2);
    let word = words.find(|word| word.starts_with('[') && word.ends_with(']'));
    word.map_or(text, |word| &word[1..word.len() - 1])
}

impl Fault {
    /// Returns the meaning of the fault, by the error codes in the kernel's source.
    pub fn meaning(&self, target: &Target) -> Meaning {
        let code = self.source.raw_os_error().unwrap_or_default();
        match (self.step, code) {
            (Step::Open, EACCES | EPERM | EROFS) => Meaning::Denied,
            // EIO before Linux 6.11 or so, EPERM since.
            (Step::Write, EIO | EPERM) if matches!(target, Target::Irq(_)) => Meaning::Managed,
            (Step::Write | Step::Switch, EACCES | EPERM | EROFS) => Meaning::Denied,
            (Step::Write, EAGAIN | EBUSY) => Meaning::Transient,
            _ => Meaning::Hard,
        }
    }

    /// Returns the system's error code, if the system refused.
    pub fn code(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns the fix where one is known.
    pub fn help(&self) -> Option<String> {
        if self.code().is_none() && self.source.kind() == io::ErrorKind::Unsupported {
            return Some("run it on that machine, without --sysroot".to_owned());
        }
        let is_proc_irq = self.what.contains("/proc/irq/");
        let text = match (self.step, self.code()?) {
            (_, EACCES | EPERM) if self.step != Step::Read => {
                "run as root, with CAP_NET_ADMIN for settings of interfaces; files of /proc and \
                 /sys belong to root, and CAP_DAC_OVERRIDE alone opens them, too"
            }
            (Step::Open, EROFS) => {
                "/proc or /sys is mounted read-only, as in most containers: run on the host, or in \
                 a privileged container (CAP_SYS_ADMIN)"
            }
            (Step::Write, ENOSPC) if is_proc_irq => {
                "this CPU has no free interrupt vector left: choose another, or fewer queues"
            }
            (Step::Write, EINVAL) if is_proc_irq => "none of these CPUs is online",
            (Step::Write, ERANGE | EOVERFLOW) if is_proc_irq => {
                "this machine has no CPU of that number"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let did = match self.step {
            Step::Read => "can't be read",
            Step::Open => "can't be opened for writing",
            Step::Write => "can't be written",
            Step::Switch => "can't be stopped or started",
        };
        write!(f, "{} {did}: ", self.what)?;
        match &self.said {
            Some(said) => write!(f, "{said} ({})", self.source),
            None => write!(f, "{}", self.source),
        }
    }
}

fn gone(target: &Target) -> Fault {
    Fault {
        what: target.to_string(),
        step: Step::Write,
        source: io::Error::from_raw_os_error(ENOENT),
        said: None,
    }
}

fn from_nic(error: &NicError, target: &Target, step: Step) -> Fault {
    let source = match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::ErrorKind::Unsupported.into(),
    };
    let said = match error {
        NicError::Refused { said, .. } => said.clone(),
        other => Some(other.to_string()),
    };
    Fault { what: target.to_string(), step, source, said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_choice_only_the_word_that_is_chosen_counts() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        for text in ["cubic", "4096 131072 33554432", "[", "a[b]c d"] {
            assert_eq!(chosen(text), text);
        }
    }
}
