//! Worker processes: their start, orders as lines of JSON, their output, and their end. [`orders`](crate::orders) is
//! the worker's side.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_sys::process::kill_with_this_thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::lines::{LINE_MAX, Lines, QUEUED_MAX};

/// Interval between checks of the deadline and of Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);
/// Interval between checks for the exit of a worker.
const EXIT_LOOK: Duration = Duration::from_millis(5);
/// Time to wait for the exit of a worker, and for the end of its output, after other workers have reported its loss.
pub(crate) const NEWS: Duration = Duration::from_secs(1);

/// Text that workers wrote. Clones share it.
#[derive(Clone)]
pub(crate) struct Kept {
    text: Arc<Mutex<String>>,
    most: Most,
}

#[derive(Clone, Copy)]
enum Most {
    Lines(usize),
    Bytes(usize),
}

impl Kept {
    /// Keeps the first `most` lines, without blank lines and repeats.
    pub(crate) fn lines(most: usize) -> Self {
        Self { text: Arc::default(), most: Most::Lines(most) }
    }

    /// Keeps the first `most` bytes.
    pub(crate) fn bytes(most: usize) -> Self {
        Self { text: Arc::default(), most: Most::Bytes(most) }
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().clone()
    }

    fn add(&self, line: &str) {
        let mut text = self.text.lock();
        let is_new = || !line.trim().is_empty() && text.lines().all(|known| known != line);
        let is_kept = match self.most {
            Most::Lines(most) => text.lines().count() < most && is_new(),
            // A text without a line break at its end is full.
            Most::Bytes(_) => text.is_empty() || text.ends_with('\n'),
        };
        if is_kept {
            *text += line;
            text.push('\n');
        }
        if let Most::Bytes(most) = self.most
            && text.len() > most
        {
            let end = text.floor_char_boundary(most);
            text.truncate(end);
            if text.ends_with('\n') {
                text.pop();
            }
        }
    }

    fn collect(&self, pipe: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
        let kept = self.clone();
        let longest = match self.most {
            Most::Lines(_) => LINE_MAX,
            Most::Bytes(most) => most,
        };
        let lines = Lines::up_to(longest, pipe).map_while(Result::ok);
        thread::Builder::new().spawn(move || lines.for_each(|line| kept.add(&line)))
    }
}

/// Destination of an output of a worker.
#[derive(Clone, Copy)]
pub(crate) enum Output<'k> {
    /// The output of this process.
    Ours,
    /// Lines go to [`Worker::hear`], which cuts each at this many bytes.
    Heard(usize),
    Kept(&'k Kept),
}

/// A process that may take orders on its standard input. Dropping the `Worker` kills it.
pub(crate) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    heard: Receiver<String>,
    /// Threads that read the output that is kept.
    collectors: Vec<JoinHandle<()>>,
    /// Process group of the worker and the processes that it starts.
    group: Option<Pid>,
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
    /// Starts the command with these standard streams. The kernel kills it when the calling thread ends.
    pub(crate) fn start(
        mut command: Command,
        stdin: impl Into<Stdio>,
        [stdout, stderr]: [Output<'_>; 2],
    ) -> io::Result<Self> {
        let stream = |output| match output {
            Output::Ours => Stdio::inherit(),
            Output::Heard(_) | Output::Kept(_) => Stdio::piped(),
        };
        command.stdin(stdin).stdout(stream(stdout)).stderr(stream(stderr));
        kill_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let (sender, heard) = sync_channel(QUEUED_MAX);
        let orders = child.stdin.take();
        let mut worker = Self { child, orders, heard, collectors: Vec::new(), group: None };
        for (output, pipe) in [stdout, stderr].into_iter().zip(pipes) {
            match (output, pipe) {
                (Output::Heard(most), Some(pipe)) => {
                    let sender = sender.clone();
                    let mut lines = Lines::up_to(most, pipe).map_while(Result::ok);
                    // This thread ends with the worker or when the receiver is dropped.
                    let listen = move || lines.try_for_each(|line| sender.send(line));
                    thread::Builder::new().spawn(listen)?;
                }
                (Output::Kept(kept), Some(pipe)) => worker.collectors.push(kept.collect(pipe)?),
                _ => {}
            }
        }
        Ok(worker)
    }

    /// Starts the command in a separate process group, which Ctrl-C of a terminal does not reach. Processes that the
    /// worker starts end with it.
    pub(crate) fn start_group(
        mut command: Command,
        stdin: impl Into<Stdio>,
        output: [Output<'_>; 2],
    ) -> io::Result<Self> {
        command.process_group(0);
        let mut worker = Self::start(command, stdin, output)?;
        worker.group = Some(Pid::from_child(&worker.child));
        Ok(worker)
    }

    /// Sends the worker an order.
    ///
    /// # Errors
    /// The errors of [`Self::send`].
    pub(crate) fn tell(
        &mut self,
        order: &impl Serialize,
        until: Instant,
        interrupt: &Interrupt,
    ) -> io::Result<()> {
        self.send(&(serde_json::to_string(order)? + "\n"), until, interrupt)
    }

    /// Writes the text to the worker, which may be stopped and read nothing.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] at `until`, [`ErrorKind::Interrupted`] after Ctrl-C, or the system's error.
    pub(crate) fn send(
        &mut self,
        text: &str,
        until: Instant,
        interrupt: &Interrupt,
    ) -> io::Result<()> {
        let stdin = self.orders.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        ioctl_fionbio(&*stdin, true)?;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match stdin.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if interrupt.is_raised() {
                        return Err(ErrorKind::Interrupted.into());
                    }
                    if Instant::now() >= until {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    // Room in the pipe or a signal ends the wait.
                    let look = Timespec::try_from(LOOK).ok();
                    let _ = poll(&mut [PollFd::new(&*stdin, PollFlags::OUT)], look.as_ref());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Closes the worker's standard input. Returns whether it was open.
    pub(crate) fn close(&mut self) -> bool {
        self.orders.take().is_some()
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
        self.ended_unless(within, &Interrupt::default())
    }

    /// Returns the exit status, or `None` if the worker still runs after `within`, or after Ctrl-C.
    pub(crate) fn ended_unless(
        &mut self,
        within: Duration,
        interrupt: &Interrupt,
    ) -> io::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait()? {
                None if begin.elapsed() < within && !interrupt.is_raised() => {
                    thread::sleep(EXIT_LOOK);
                }
                status => return Ok(status),
            }
        }
    }

    /// Sends SIGTERM to the worker's group, waits for the worker's exit, `patience` at most, and kills the group.
    pub(crate) fn terminate(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM);
        let ended = self.ended(patience);
        self.kill();
        ended.and_then(|_| self.child.wait())
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Fails only if all processes of the group have ended.
            let _ = kill_process_group(group, signal);
        }
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        // Killing fails only if the process has ended.
        let _ = self.child.kill();
    }

    /// Waits for the end of a killed worker, and for the rest of its output.
    fn reap(&mut self) {
        let _ = self.child.wait();
        let until = Instant::now() + NEWS;
        // A child of the worker may hold its output open.
        while !self.collectors.iter().all(JoinHandle::is_finished) && Instant::now() < until {
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
    /// Calls `wait` with the number of each worker that it waits for.
    pub(crate) fn collect<T, E>(
        &self,
        patience: Duration,
        interrupt: &Interrupt,
        wait: impl Fn(usize),
        mut take: impl FnMut(&str) -> Option<Result<T, E>>,
    ) -> Result<Vec<T>, Missing<E>> {
        let until = Instant::now() + patience;
        let mut answers: Vec<Option<T>> = self.0.iter().map(|_| None).collect();
        for first in 0..self.0.len() {
            if answers[first].is_none() {
                wait(first);
            }
            while answers[first].is_none() {
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
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the lines that the workers have queued. Waits up to [`LOOK`] for the first line of worker `first`, and
    /// for no other line.
    fn hear_all(&self, first: usize) -> impl Iterator<Item = (usize, Heard)> {
        self.0.iter().enumerate().flat_map(move |(number, one)| {
            let mut within = if number == first { LOOK } else { Duration::ZERO };
            let next = move || (number, one.hear(std::mem::take(&mut within)));
            let queued = std::iter::repeat_with(next).take(QUEUED_MAX);
            queued.take_while(|(_, heard)| !matches!(heard, Heard::Nothing))
        })
    }

    /// Waits up to [`NEWS`] for a worker other than `known` to end, and returns its number. Stops when no worker is
    /// silent any more.
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

    /// Closes the standard input of all workers, and waits for their exit, `patience` at most in all.
    pub(crate) fn part(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        for worker in &mut self.0 {
            worker.close();
        }
        for worker in &mut self.0 {
            // An error ends the wait.
            let _ = worker.ended(until.saturating_duration_since(Instant::now()));
        }
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

/// Describes the end of a process, for a sentence that begins with its cause.
pub(crate) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended the process with exit code {code}"),
        (_, Some(signal)) => format!("ended the process by signal {signal} ({})", name(signal)),
        _ => "ended the process".to_owned(),
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => "illegal instruction",
        6 => "abort",
        7 => "bus error",
        8 => "arithmetic error",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => "of some other cause",
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{kill_process, test_kill_process};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn worker(program: &[&str], kept: &Kept) -> Worker {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        let output = [Output::Heard(LINE_MAX), Output::Kept(kept)];
        Worker::start(command, Stdio::piped(), output).unwrap()
    }

    fn shell(script: &str) -> Worker {
        worker(&["sh", "-c", script], &Kept::lines(0))
    }

    fn workers(all: impl IntoIterator<Item = Worker>) -> Workers {
        Workers(all.into_iter().collect())
    }

    /// Parses numbers as answers, and refuses those of 10 and more.
    fn number(line: &str) -> Option<Result<u32, String>> {
        let number: u32 = line.parse().ok()?;
        Some(if number < 10 { Ok(number) } else { Err(line.to_owned()) })
    }

    #[test]
    fn each_answers_what_it_is_told_and_other_lines_are_no_answers() {
        let echo = || worker(&["cat"], &Kept::lines(0));
        let (mut workers, interrupt) = (workers([echo(), echo()]), Interrupt::default());
        let until = Instant::now() + LONG;
        for (worker, order) in [(1, 7), (0, 5)] {
            workers.0[worker].tell(&"not a number", until, &interrupt).unwrap();
            workers.0[worker].tell(&order, until, &interrupt).unwrap();
        }
        assert_eq!(workers.collect(LONG, &interrupt, |_| (), number), Ok(vec![5, 7]));
    }

    #[test]
    fn one_that_refuses_is_named_with_those_that_are_silent() {
        let interrupt = Interrupt::default();
        let mut workers =
            workers([shell("read x"), shell("echo 10; read x"), shell("echo 1; read x")]);
        // The third worker may have answered already.
        let Err(Missing::Refused { worker: 1, why, mut silent }) =
            workers.collect(LONG, &interrupt, |_| (), number)
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
        let ended = workers.collect(LONG, &Interrupt::default(), |_| (), number);
        assert_eq!(ended, Err(Missing::Ended(1)));
        let status = workers.0[1].ended(LONG).unwrap().unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn one_that_is_stopped_is_given_up_at_the_deadline_and_after_ctrl_c() {
        let (mut one, interrupt) = (worker(&["cat"], &Kept::lines(0)), Interrupt::default());
        kill_process(Pid::from_child(&one.child), Signal::STOP).unwrap();
        let order = "x".repeat(1 << 20);
        let begin = Instant::now();
        let soon = Duration::from_millis(50);
        let told = one.tell(&order, begin + soon, &interrupt).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::TimedOut);
        let mut workers = workers([one]);
        let found = workers.collect(soon, &interrupt, |_| (), number);
        assert_eq!(found, Err(Missing::Silent(0)));
        assert!(begin.elapsed() >= 2 * soon, "{:?}", begin.elapsed());
        interrupt.raise();
        let told = workers.0[0].tell(&order, begin + LONG, &interrupt).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Interrupted);
        let found = workers.collect(LONG, &interrupt, |_| (), number);
        assert_eq!(found, Err(Missing::Interrupted));
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
    }

    #[test]
    fn of_what_it_writes_to_standard_error_the_first_lines_are_kept_once() {
        let kept = Kept::lines(3);
        let script = "for i in 1 1 2 3 4 5; do echo $i >&2; done; sleep 60 & echo $!; read x";
        let one = worker(&["sh", "-c", script], &kept);
        let begin = Instant::now();
        while kept.text().lines().count() < 3 {
            assert!(begin.elapsed() < LONG, "{:?}", kept.text());
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
        assert_eq!(kept.text(), "1\n2\n3\n");
    }

    #[test]
    fn of_the_first_line_that_does_not_fit_its_beginning_is_kept_and_nothing_more() {
        for (most, lines, kept_text) in [
            (8, ["ab", "cdefghi", "j"], "ab\ncdefg"),
            (8, ["ab", "cdef", "j"], "ab\ncdef\n"),
            (8, ["ab", "cdefg", "j"], "ab\ncdefg"),
            (4, ["ab", "é€", "j"], "ab"),
            (3, ["ab", "cd", "j"], "ab"),
        ] {
            let kept = Kept::bytes(most);
            lines.iter().for_each(|line| kept.add(line));
            let full = kept.text();
            assert_eq!(full.trim_end(), kept_text.trim_end(), "{most}: {lines:?}");
            assert!(full.len() <= most, "{full:?}");
        }
    }

    #[test]
    fn a_group_ends_with_its_worker_and_output_beyond_the_bound_is_dropped() {
        let (kept, interrupt) = (Kept::bytes(1 << 10), Interrupt::default());
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & read x; yes | head -n 9999 >&2; echo ${#x}; read x"]);
        let output = [Output::Heard(LINE_MAX), Output::Kept(&kept)];
        let mut one = Worker::start_group(command, Stdio::piped(), output).unwrap();
        // More bytes than a pipe holds.
        let order = "x".repeat(100_000);
        one.tell(&order, Instant::now() + LONG, &interrupt).unwrap();
        assert!(matches!(one.hear(LONG), Heard::Line(length) if length == "100002"));
        assert_eq!(one.terminate(LONG).unwrap().signal(), Some(Signal::TERM.as_raw()));
        // The worker's child has held its output open.
        assert!(matches!(one.hear(LONG), Heard::Ended));
        drop(one);
        assert!(kept.text().len() <= 1 << 10, "{}", kept.text().len());
        assert!(kept.text().len() >= (1 << 10) - 1, "{}", kept.text().len());
        assert!(kept.text().starts_with("y\ny\n"), "{}", kept.text());
    }
}
