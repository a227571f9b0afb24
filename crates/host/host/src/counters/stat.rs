//! `/proc/stat`: use of each CPU's time.

use serde::Serialize;

use super::{CountersError, numbers};
use crate::sysroot::{ReadError, Sysroot};

const PATH: &str = "/proc/stat";

/// Clock ticks since boot (100 per second on every common Linux).
///
/// Unless the kernel accounts interrupts exactly, it samples `irq` and `softirq` at ticks, so differences over less
/// than a second are inaccurate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuTicks {
    pub user: u64,
    /// Time of programs with lowered priority.
    pub nice: u64,
    /// Time of the kernel on behalf of programs.
    pub system: u64,
    pub idle: u64,
    /// Idle time while a program that ran here waits for a disk.
    pub iowait: u64,
    pub irq: u64,
    /// Deferred work of interrupts: for network traffic, most of the receive path.
    pub softirq: u64,
    /// Time that the CPU was ready to run, but the hypervisor ran something else.
    pub steal: u64,
}

/// Content of `/proc/stat` at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stat {
    pub all: CpuTicks,
    /// Online CPUs, in the file's order.
    pub cpus: Vec<(u32, CpuTicks)>,
    pub context_switches: u64,
    /// Start of the machine, in seconds since 1970.
    pub boot_unix_s: u64,
}

impl CpuTicks {
    pub fn total(&self) -> u64 {
        let Self { user, nice, system, idle, iowait, irq, softirq, steal } = *self;
        [user, nice, system, idle, iowait, irq, softirq, steal]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Returns the ticks since `earlier`. A counter that went backwards, as `iowait` may, counts as unchanged.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

impl Stat {
    /// Reads `/proc/stat` below the root.
    ///
    /// # Errors
    /// [`ReadError`] with the path.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        Self::parse(&root.read(PATH)?).map_err(|error| root.content(PATH, error.to_string()))
    }

    /// Parses the text of the file; lines of other kinds are ignored.
    ///
    /// # Errors
    /// [`CountersError`] with the line: a word that is not a number, or no line of CPU time at all.
    pub fn parse(text: &str) -> Result<Self, CountersError> {
        let mut stat = Self::default();
        let mut has_cpu = false;
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text)) {
            let mut words = text.split_ascii_whitespace();
            let Some(key) = words.next() else { continue };
            if let Some(cpu) = key.strip_prefix("cpu") {
                let ticks = ticks(&numbers(words, 10, line)?);
                has_cpu = true;
                match cpu.parse() {
                    Ok(cpu) => stat.cpus.push((cpu, ticks)),
                    Err(_) if cpu.is_empty() => stat.all = ticks,
                    Err(_) => return Err(CountersError::new(line, "begins with no CPU number")),
                }
                continue;
            }
            let field = match key {
                "ctxt" => &mut stat.context_switches,
                "btime" => &mut stat.boot_unix_s,
                _ => continue,
            };
            *field = numbers(words, 10, line)?.first().copied().unwrap_or(0);
        }
        match has_cpu {
            true => Ok(stat),
            false => Err(CountersError::new(1, "no line begins with `cpu`")),
        }
    }

    /// Returns the ticks of one CPU; `None` while it is offline.
    pub fn cpu(&self, cpu: u32) -> Option<&CpuTicks> {
        self.cpus.iter().find(|(number, _)| *number == cpu).map(|(_, ticks)| ticks)
    }
}

/// Reads the known columns. Newer kernels add columns at the end; columns that an old kernel lacks count as zero.
fn ticks(columns: &[u64]) -> CpuTicks {
    let at = |index: usize| columns.get(index).copied().unwrap_or(0);
    CpuTicks {
        user: at(0),
        nice: at(1),
        system: at(2),
        idle: at(3),
        iowait: at(4),
        irq: at(5),
        softirq: at(6),
        steal: at(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "cpu  10 1 5 100 2 0 3 1 0 0\ncpu0 4 0 2 50 1 0 1 1 0 0\n\
                        cpu2 6 1 3 50 1 0 2 0 0 0\nintr 5 1 2\nctxt 77\nbtime 1700000000\n";

    #[test]
    fn cpus_are_known_by_their_number_and_not_by_their_line() {
        let stat = Stat::parse(TEXT).unwrap();
        assert_eq!(stat.cpu(2).unwrap().softirq, 2);
        assert_eq!(stat.cpu(1), None);
        assert_eq!((stat.all.total(), stat.context_switches), (122, 77));
        assert_eq!(stat.boot_unix_s, 1_700_000_000);
    }

    #[test]
    fn a_difference_never_wraps() {
        let stat = Stat::parse(TEXT).unwrap();
        let earlier = CpuTicks { user: 3, iowait: 9, ..CpuTicks::default() };
        let passed = stat.cpu(0).unwrap().since(&earlier);
        assert_eq!((passed.user, passed.iowait, passed.idle), (1, 0, 50));
    }

    #[test]
    fn what_is_not_the_file_is_refused() {
        assert_eq!(Stat::parse("").unwrap_err().line, 1);
        assert_eq!(
            Stat::parse("cpu 1 2\ncpu0 1 x").unwrap_err().to_string(),
            "line 2: `x` is not a number"
        );
        assert!(Stat::parse("cpux 1").is_err());
    }

    #[test]
    fn this_machine_has_time() {
        let stat = Stat::read(&Sysroot::live()).unwrap();
        assert!(!stat.cpus.is_empty() && stat.all.total() > 0 && stat.context_switches > 0);
    }
}
