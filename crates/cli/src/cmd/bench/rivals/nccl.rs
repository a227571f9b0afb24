//! Rival NCCL. Each of its modes has two separate processes, because NCCL reads its settings once per process.
//!
//! The processes run this program. They take orders as lines of JSON on standard input, and reply in such lines. Lines
//! that NCCL prints go to standard error.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::standing::{Rival, Turn};
use crate::cmd::bench::faults;
use crate::cmd::bench::options::{Layout, MemoryKind, NcclMode, Schedule, Verify};
use crate::crew::{Missing, Output, Worker, Workers};
use crate::fault::{Fault, Mismatch};
use crate::interrupt::Interrupt;
use crate::lines::LINE_MAX;

/// First order of a process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// Rank of the process. Rank 0 sends; both ranks send with `bidir`.
    pub(crate) rank: u8,
    pub(crate) layout: Layout,
    pub(crate) bidir: bool,
    pub(crate) verify: Verify,
    /// Seed of the bytes that rank 0 sends. Rank 1 uses the next seed.
    pub(crate) seed: u64,
    pub(crate) library: Option<PathBuf>,
    /// Identity by which both processes join, in hexadecimal. Rank 0 creates it.
    pub(crate) id: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub(crate) enum Order {
    Poison,
    Run { transfers: u64 },
    Verify { slots: u64, round: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub(crate) enum Reply {
    Id { id: String },
    Done,
    Ran { seconds: f64, cpu_seconds: f64 },
    Mismatch(Mismatch),
    Failed(Fault),
}

/// Mode that is set up, with its two processes.
pub(crate) struct NcclRival {
    ranks: Ranks,
    layout: Layout,
    /// Number of directions in use.
    ways: u64,
    transfers: u64,
}

struct Ranks {
    workers: Workers,
    mode: NcclMode,
    interrupt: Interrupt,
}

impl NcclRival {
    /// Starts both processes, which connect, and determines the number of transfers in a round.
    pub(crate) fn open(
        mode: NcclMode,
        memory: [MemoryKind; 2],
        schedule: &Schedule,
        size: u64,
        seed: u64,
        library: Option<&Path>,
        interrupt: &Interrupt,
    ) -> Result<Self, Fault> {
        let layout = schedule.layout(size);
        let task = |rank: u8, id: Option<String>| Task {
            rank,
            layout,
            bidir: schedule.bidir,
            verify: schedule.verify,
            seed,
            library: library.map(Path::to_owned),
            id,
        };
        let workers = Workers::default();
        let mut ranks = Ranks { workers, mode, interrupt: interrupt.clone() };
        ranks.start(memory[0])?;
        ranks.tell(0, &task(0, None))?;
        let id = ranks.collect(|reply| match reply {
            Reply::Id { id } => Some(id),
            _ => None,
        })?;
        ranks.start(memory[1])?;
        ranks.tell(1, &task(1, id.into_iter().next()))?;
        ranks.done()?;
        let ways = 1 + u64::from(schedule.bidir);
        let mut rival = Self { ranks, layout, ways, transfers: 2 };
        rival.transfers = rival.warm_up(schedule)?;
        Ok(rival)
    }

    /// Returns the number of transfers that fit into a round, found by doubling runs.
    fn warm_up(&mut self, schedule: &Schedule) -> Result<u64, Fault> {
        // NCCL connects with the first transfers.
        self.run(2)?;
        let aim = (schedule.time / schedule.rounds).as_secs_f64();
        let (mut transfers, mut left) = (2, schedule.warmup.as_secs_f64());
        loop {
            let (seconds, _) = self.run(transfers)?;
            left -= seconds;
            if left <= 0.0 || transfers >= TRANSFERS_MAX {
                let fitting = (aim * transfers as f64 / seconds.max(1e-9)) as u64;
                return Ok(schedule.iters.unwrap_or(fitting.clamp(1, TRANSFERS_MAX)));
            }
            transfers = (transfers * 2).min(TRANSFERS_MAX);
        }
    }

    /// Runs transfers. Returns the seconds of the slower process, and the CPU seconds of both.
    fn run(&mut self, transfers: u64) -> Result<(f64, f64), Fault> {
        self.ranks.tell_all(&Order::Run { transfers })?;
        let ran = self.ranks.collect(|reply| match reply {
            Reply::Ran { seconds, cpu_seconds } => Some((seconds, cpu_seconds)),
            _ => None,
        })?;
        let add = |sum: (f64, f64), one: (f64, f64)| (sum.0.max(one.0), sum.1 + one.1);
        Ok(ran.into_iter().fold((0.0, 0.0), add))
    }

    fn all(&mut self, order: Order) -> Result<(), Fault> {
        self.ranks.tell_all(&order)?;
        self.ranks.done()
    }
}

impl Rival for NcclRival {
    fn turn(&mut self, round: u64) -> Result<Turn, Fault> {
        self.all(Order::Poison)?;
        let (seconds, cpu_seconds) = self.run(self.transfers)?;
        let slots = self.transfers.min(self.layout.slots);
        self.all(Order::Verify { slots, round })?;
        let gb = (self.transfers * self.ways * self.layout.size) as f64 / 1e9;
        let cpu_seconds_per_gb = Some(cpu_seconds / gb);
        Ok(Turn { gb_per_s: gb / seconds, cpu_seconds_per_gb, p50_us: None })
    }

    fn finish(self: Box<Self>) -> Result<(), Fault> {
        Ok(())
    }
}

impl Ranks {
    fn start(&mut self, memory: MemoryKind) -> Result<(), Fault> {
        let failed = |source| Fault::system("starting a process for NCCL", source);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", "--nccl-rank", "--mem"]).arg(memory.to_string());
        apply(self.mode, &mut command);
        let output = [Output::Heard(LINE_MAX), Output::Ours];
        self.workers.0.push(Worker::start(command, Stdio::piped(), output).map_err(failed)?);
        Ok(())
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), Fault> {
        (0..self.workers.0.len()).try_for_each(|rank| self.tell(rank, order))
    }

    fn tell(&mut self, rank: usize, message: &impl Serialize) -> Result<(), Fault> {
        let until = Instant::now() + SILENCE_MAX;
        let told = self.workers.0[rank].tell(message, until, &self.interrupt);
        told.or_else(|error| match error.kind() {
            ErrorKind::TimedOut => Err(silent()),
            ErrorKind::Interrupted => Err(Fault::interrupted()),
            // The process has ended, and its last reply gives the reason.
            _ => self.collect(|_| Some(())).and(Err(self.gone())),
        })
    }

    fn done(&self) -> Result<(), Fault> {
        self.collect(|reply| matches!(reply, Reply::Done).then_some(())).map(drop)
    }

    /// Waits for a reply of each rank. `take` returns `None` for a reply to another order.
    fn collect<T>(&self, take: impl Fn(Reply) -> Option<T>) -> Result<Vec<T>, Fault> {
        let name = self.mode.name();
        let read = |line: &str| {
            let reply: Reply = serde_json::from_str(line).ok()?;
            Some(match reply {
                Reply::Failed(fault) => Err(Fault::of_peer(&name, fault)),
                Reply::Mismatch(mismatch) => Err(mismatch.into()),
                reply => take(reply).ok_or_else(|| {
                    let answer = format!("a process of {name} said something else");
                    faults::protocol(ORDER, answer)
                }),
            })
        };
        let collected = self.workers.collect(SILENCE_MAX, &self.interrupt, |_| (), read);
        collected.map_err(|missing| match missing {
            Missing::Silent(_) => silent(),
            Missing::Ended(_) => self.gone(),
            Missing::Interrupted => Fault::interrupted(),
            Missing::Refused { why, .. } => why,
        })
    }

    fn gone(&self) -> Fault {
        Fault::environment(format!("{}: its process ended early", self.mode.name()))
            .with_help("standard error says why; NCCL_DEBUG=INFO tells more")
    }
}

fn silent() -> Fault {
    faults::silent(ORDER, SILENCE_MAX)
}

/// Sets the environment variables that make NCCL use the mode.
fn apply(mode: NcclMode, command: &mut Command) {
    // The caller's own variables would choose another transport. No send uses multicast.
    for name in ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_P2P_LEVEL"] {
        command.env_remove(name);
    }
    command.env("NCCL_NET_PLUGIN", "none").env("NCCL_NVLS_ENABLE", "0");
    if let NcclMode::Socket { threads, sockets } = mode {
        for name in ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"] {
            command.env(name, "1");
        }
        command.env("NCCL_NET", "Socket");
        for (name, value) in [("NCCL_SOCKET_NTHREADS", threads), ("NCCL_NSOCKS_PERTHREAD", sockets)]
        {
            match value {
                0 => command.env_remove(name),
                value => command.env(name, value.to_string()),
            };
        }
    }
    if std::env::var_os("NCCL_SOCKET_IFNAME").is_none() {
        // Both processes are on this machine.
        command.env("NCCL_SOCKET_IFNAME", "lo");
    }
}

/// Maximum time for an order. A process that takes longer has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const ORDER: &str = "an order to NCCL";
/// Maximum number of transfers of a run. Each takes a place in a stream, which has room for some thousands.
const TRANSFERS_MAX: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_a_process_that_is_stopped_is_given_up_once_somebody_asks_for_the_end() {
        let mut command = Command::new("tail");
        command.args(["-f", "/dev/null"]);
        let output = [Output::Heard(LINE_MAX), Output::Ours];
        let workers = Workers(vec![Worker::start(command, Stdio::piped(), output).unwrap()]);
        let (mode, interrupt) = ("p2p".parse().unwrap(), Interrupt::default());
        let mut ranks = Ranks { workers, mode, interrupt };
        ranks.interrupt.raise();
        let begin = Instant::now();
        let answer = ranks.tell_all(&Order::Poison).and_then(|()| ranks.done());
        assert!(matches!(answer, Err(fault) if fault.is_interrupted()));
        assert!(begin.elapsed() < SILENCE_MAX / 2, "{:?}", begin.elapsed());
    }

    #[test]
    fn a_mode_is_what_ncclls_settings_say_and_nothing_inherited() {
        let variables = |mode: &str| -> Vec<(String, Option<String>)> {
            let mut command = Command::new("true");
            apply(mode.parse().unwrap(), &mut command);
            let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
            command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
        };
        let set = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let socket = variables("4x8");
        for wanted in [
            set("NCCL_NET", "Socket"),
            set("NCCL_P2P_DISABLE", "1"),
            set("NCCL_SHM_DISABLE", "1"),
            set("NCCL_SOCKET_NTHREADS", "4"),
            set("NCCL_NSOCKS_PERTHREAD", "8"),
            set("NCCL_NET_PLUGIN", "none"),
        ] {
            assert!(socket.contains(&wanted), "{wanted:?} in {socket:?}");
        }
        assert!(variables("p2p").contains(&("NCCL_P2P_DISABLE".to_owned(), None)));
        assert!(variables("0x0").contains(&("NCCL_SOCKET_NTHREADS".to_owned(), None)));
    }
}
