//! Worker processes that this process starts and sends orders, as lines of JSON. [`orders`](crate::orders) is the
//! worker's side.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_sys::process::kill_with_this_thread;
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::lines::{Lines, QUEUED_MAX};
use crate::patient_pipe::write_until;

/// Interval between checks of the deadline and of Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);
/// Time to wait for the exit of a worker, and for the end of its output, after other workers have reported its loss.
pub(crate) const NEWS: Duration = Duration::from_secs(1);

/// Lines that workers wrote to standard error, without repeats. Clones share them.
#[derive(Clone)]
pub(crate) struct Kept {
    lines: Arc<Mutex<BTreeSet<String>>>,
    most: usize,
}

impl Kept {
    /// Keeps the first `most` lines.
    pub(crate) fn new(most: usize) -> Self {
        Self { lines: Arc::default(), most }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().iter().cloned().collect()
    }

    fn collect(&self, pipe: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
        let Self { lines, most } = self.clone();
        thread::Builder::new().spawn(move || {
            for line in Lines::of(pipe).map_while(Result::ok) {
                let mut lines = lines.lock();
                if lines.len() < most {
                    lines.insert(line);
                }
            }
        })
    }
}

/// A process that takes orders on its standard input. Dropping the `Worker` kills it.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    heard: Receiver<String>,
    /// The thread that reads the worker's standard error.
    collector: Option<JoinHandle<()>>,
}

/// Output of a worker.
pub(crate) enum Heard {
    Line(String),
    /// The worker has closed its standard output: it has ended, or is about to.
    Ended,
    /// No line has come yet.
    Nothing,
}

impl Worker {
    /// Starts the command. The kernel kills it when the calling thread ends.
    pub(crate) fn start(mut command: Command, kept: &Kept) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        kill_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(orders), Some(stdout), Some(stderr)) = pipes else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let (sender, heard) = sync_channel(QUEUED_MAX);
        let mut worker = Self { child, orders, heard, collector: None };
        // This thread ends with the process, or with the receiver.
        let listen = move || {
            for line in Lines::of(stdout).map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().spawn(listen)?;
        worker.collector = Some(kept.collect(stderr)?);
        Ok(worker)
    }

    /// Sends the worker an order.
    ///
    /// # Errors
    /// The errors of [`write_until`].
    pub(crate) fn tell(
        &mut self,
        order: &impl Serialize,
        until: Instant,
        interrupt: &Interrupt,
    ) -> io::Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        write_until(&self.orders, line.as_bytes(), until, interrupt)
    }

    /// Waits for the next line, `within` at most.
    pub(crate) fn hear(&self, within: Duration) -> Heard {
        match self.heard.recv_timeout(within) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Disconnected) => Heard::Ended,
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
        }
    }

    /// Returns the exit status, or `None` if the worker still runs after `within`.
    pub(crate) fn ended(&mut self, within: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < until => thread::sleep(LOOK),
                status => return Ok(status),
            }
        }
    }

    fn kill(&mut self) {
        // Killing fails only if the process has ended.
        let _ = self.child.kill();
    }

    /// Waits for the end of a killed worker, and for the rest of its output.
    fn reap(&mut self) {
        let _ = self.child.wait();
        let Some(collector) = self.collector.take() else { return };
        let until = Instant::now() + NEWS;
        // A child of the worker may hold its standard error open.
        while !collector.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        self.reap();
    }
}

/// Workers by number.
#[derive(Default)]
pub(crate) struct Workers(pub(crate) Vec<Worker>);

/// The reason why an answer is missing.
#[derive(Debug, PartialEq)]
pub(crate) enum Missing<E> {
    /// This worker did not answer in time.
    Silent(usize),
    /// This worker has ended, or is about to.
    Ended(usize),
    /// The user interrupted the command.
    Interrupted,
    /// `take` refused the answer of this worker. `silent`: the other workers that have not answered yet.
    Refused { worker: usize, why: E, silent: BTreeSet<usize> },
}

impl Workers {
    /// Waits for an answer of each worker, and returns the answers by number. `take` returns `None` for other lines.
    pub(crate) fn collect<T, E>(
        &self,
        patience: Duration,
        interrupt: &Interrupt,
        mut take: impl FnMut(&str) -> Option<Result<T, E>>,
    ) -> Result<Vec<T>, Missing<E>> {
        let until = Instant::now() + patience;
        let mut answers: Vec<Option<T>> = self.0.iter().map(|_| None).collect();
        while let Some(first) = answers.iter().position(Option::is_none) {
            for (number, heard) in self.hear_all(first) {
                let line = match heard {
                    Heard::Line(line) => line,
                    Heard::Ended => return Err(Missing::Ended(number)),
                    Heard::Nothing => continue,
                };
                match take(&line) {
                    None => {}
                    Some(Ok(answer)) => answers[number] = Some(answer),
                    Some(Err(why)) => {
                        let is_silent =
                            |other: &usize| *other != number && answers[*other].is_none();
                        let silent = (0..answers.len()).filter(is_silent).collect();
                        return Err(Missing::Refused { worker: number, why, silent });
                    }
                }
            }
            if answers[first].is_none() {
                if interrupt.is_raised() {
                    return Err(Missing::Interrupted);
                }
                if Instant::now() >= until {
                    return Err(Missing::Silent(first));
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the lines that the workers have queued. Waits a moment for the first line of worker `first` only.
    fn hear_all(&self, first: usize) -> impl Iterator<Item = (usize, Heard)> {
        self.0.iter().enumerate().flat_map(move |(number, one)| {
            let mut within = if number == first { LOOK } else { Duration::ZERO };
            let next = move || (number, one.hear(std::mem::take(&mut within)));
            let queued = std::iter::repeat_with(next).take(QUEUED_MAX);
            queued.take_while(|(_, heard)| !matches!(heard, Heard::Nothing))
        })
    }

    /// Waits a moment for the end of a worker other than `known`, and returns it. Stops when none is silent any more.
    pub(crate) fn other_end(&self, known: usize, silent: &mut BTreeSet<usize>) -> Option<usize> {
        let until = Instant::now() + NEWS;
        while let Some(first) = silent.first().copied().filter(|_| Instant::now() < until) {
            for (number, heard) in self.hear_all(first).filter(|(number, _)| *number != known) {
                match heard {
                    Heard::Line(_) => drop(silent.remove(&number)),
                    Heard::Ended => return Some(number),
                    Heard::Nothing => {}
                }
            }
        }
        None
    }

    /// Kills all workers, and waits for the rest of their output.
    pub(crate) fn end(&mut self) {
        // Kill all before the first wait, so that no worker reports the end of another one.
        self.0.iter_mut().for_each(Worker::kill);
        self.0.iter_mut().for_each(Worker::reap);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal, kill_process, test_kill_process};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn worker(program: &[&str], kept: &Kept) -> Worker {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        Worker::start(command, kept).unwrap()
    }

    fn shell(script: &str) -> Worker {
        worker(&["sh", "-c", script], &Kept::new(0))
    }

    fn workers(all: impl IntoIterator<Item = Worker>) -> Workers {
        Workers(all.into_iter().collect())
    }

    /// Takes numbers as answers, and refuses large ones.
    fn number(line: &str) -> Option<Result<u32, String>> {
        let number: u32 = line.parse().ok()?;
        Some(if number < 10 { Ok(number) } else { Err(line.to_owned()) })
    }

    #[test]
    fn each_answers_what_it_is_told_and_other_lines_are_no_answers() {
        let echo = || worker(&["cat"], &Kept::new(0));
        let (mut workers, interrupt) = (workers([echo(), echo()]), Interrupt::default());
        let until = Instant::now() + LONG;
        for (worker, order) in [(1, 7), (0, 5)] {
            workers.0[worker].tell(&"not a number", until, &interrupt).unwrap();
            workers.0[worker].tell(&order, until, &interrupt).unwrap();
        }
        assert_eq!(workers.collect(LONG, &interrupt, number), Ok(vec![5, 7]));
    }

    #[test]
    fn one_that_refuses_is_named_with_those_that_are_silent() {
        let interrupt = Interrupt::default();
        let mut workers =
            workers([shell("read x"), shell("echo 10; read x"), shell("echo 1; read x")]);
        // The third worker may have answered already.
        let Err(Missing::Refused { worker: 1, why, mut silent }) =
            workers.collect(LONG, &interrupt, number)
        else {
            panic!("the second one answers what is not wanted");
        };
        assert_eq!(why, "10");
        assert!(silent.contains(&0) && !silent.contains(&1), "{silent:?}");
        workers.0[2].kill();
        assert_eq!(workers.other_end(1, &mut silent), Some(2));
    }

    #[test]
    fn one_that_ends_is_named_and_how_it_ended() {
        let mut workers = workers([shell("read x"), shell("exit 3")]);
        let ended = workers.collect(LONG, &Interrupt::default(), number);
        assert_eq!(ended, Err(Missing::Ended(1)));
        let status = workers.0[1].ended(LONG).unwrap().unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn one_that_is_stopped_is_given_up_at_the_deadline_and_after_ctrl_c() {
        let (mut one, interrupt) = (worker(&["cat"], &Kept::new(0)), Interrupt::default());
        kill_process(Pid::from_child(&one.child), Signal::STOP).unwrap();
        let order = "x".repeat(1 << 20);
        let begin = Instant::now();
        let soon = Duration::from_millis(50);
        let told = one.tell(&order, begin + soon, &interrupt).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::TimedOut);
        let mut workers = workers([one]);
        let found = workers.collect(soon, &interrupt, number);
        assert_eq!(found, Err(Missing::Silent(0)));
        assert!(begin.elapsed() >= 2 * soon, "{:?}", begin.elapsed());
        interrupt.raise();
        let told = workers.0[0].tell(&order, begin + LONG, &interrupt).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Interrupted);
        let found = workers.collect(LONG, &interrupt, number);
        assert_eq!(found, Err(Missing::Interrupted));
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
    }

    #[test]
    fn of_what_it_writes_to_standard_error_the_first_lines_are_kept_once() {
        let kept = Kept::new(3);
        let script = "for i in 1 1 2 3 4 5; do echo $i >&2; done; sleep 60 & echo $!; read x";
        let one = worker(&["sh", "-c", script], &kept);
        let begin = Instant::now();
        while kept.lines().len() < 3 {
            assert!(begin.elapsed() < LONG, "{:?}", kept.lines());
            // No event announces a kept line. Poll.
            thread::sleep(Duration::from_millis(1));
        }
        let Heard::Line(started) = one.hear(LONG) else { panic!("it tells what it has started") };
        let started = Pid::from_raw(started.parse().unwrap()).unwrap();
        let pid = Pid::from_child(&one.child);
        // The worker's child holds its standard error open. `reap` does not wait for the child.
        drop(one);
        assert!(begin.elapsed() < LONG / 2, "{:?}", begin.elapsed());
        assert!(test_kill_process(pid).is_err(), "it is still there");
        kill_process(started, Signal::KILL).unwrap();
        assert_eq!(kept.lines(), ["1", "2", "3"]);
    }
}
