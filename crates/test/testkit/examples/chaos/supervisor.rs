//! Runs the workers and injects faults. At the beginning, in the middle and at the end it pauses all operations, to
//! measure the resources of each process.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, LabGuard, LabSpec, Rate, Side, availability};
use polyrail_testkit::Rng;
use rustix::process::{Resource, Signal};

use crate::crew::{Heard, Needs, Process, State, WORKERS, Worker};
use crate::faults::{Action, Kind, RAIL_MBIT, RAILS, Target};
use crate::options::{self, Options};
use crate::report::{self, Report};
use crate::stranger::Hint;
use crate::talk::{Oracle, Order, Word, first_line};

/// Maximum number of simultaneous faults.
const FAULTS_MAX: usize = 3;
/// Maximum time until workers have no operations in flight, and all flows are up.
const QUIET_TIME: Duration = Duration::from_secs(60);
/// Maximum time for a process to start, or to end.
const START_TIME: Duration = Duration::from_secs(30);
/// Maximum time until descriptors are back to their former number.
const SETTLE_TIME: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const INTERRUPTED: u8 = 130;
const ENVIRONMENT: u8 = 3;

pub(crate) fn run(options: &Options) -> ExitCode {
    if let Err(error) = availability() {
        polyrail_skip::skip(error, "sudo -E scripts/chaos");
        return ExitCode::SUCCESS;
    }
    let kinds: Vec<Option<Kind>> = match options.each {
        true => Kind::ALL.into_iter().map(Some).collect(),
        false => vec![options.fault],
    };
    let mut reports = Vec::new();
    for fault in kinds {
        let options = Options { fault, ..options.clone() };
        match Supervisor::start(&options).and_then(Supervisor::run) {
            Ok(Some(report)) => reports.push(report),
            Ok(None) => {
                eprintln!("chaos: interrupted");
                return ExitCode::from(INTERRUPTED);
            }
            Err(error) => {
                eprintln!("chaos: {error}");
                return ExitCode::from(ENVIRONMENT);
            }
        }
    }
    if let Some(path) = &options.json
        && let Err(error) = report::write_json(path, &reports)
    {
        eprintln!("chaos: {}: {error}", path.display());
        return ExitCode::from(ENVIRONMENT);
    }
    match options.each {
        true => print!("{}", report::table(&reports)),
        false => reports.iter().for_each(|report| print!("{report}")),
    }
    ExitCode::from(u8::from(!reports.iter().all(Report::is_right)))
}

struct Supervisor {
    options: Options,
    begun: Instant,
    rng: Rng,
    workers: Vec<Worker>,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    strangers: Vec<Process>,
    /// Future actions, by the time since the beginning.
    agenda: BTreeMap<(Duration, u64), Action>,
    planned: u64,
    busy: Vec<Target>,
    next_fault: Duration,
    is_posting: bool,
    interrupted: Arc<AtomicBool>,
    report: Report,
    // Dropped last, when no process is in it any more.
    lab: LabGuard,
}

impl Supervisor {
    fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        let rails = vec![Self::rate(RAIL_MBIT)?; RAILS];
        let spec = LabSpec::new(format!("chaos-{}", std::process::id()), rails);
        let lab = Lab::up(&spec)?.guard();
        let (sender, heard) = mpsc::channel();
        let mut supervisor = Self {
            options: options.clone(),
            begun: Instant::now(),
            rng: Rng::new(options.seed),
            workers: Vec::new(),
            sender,
            heard,
            strangers: Vec::new(),
            agenda: BTreeMap::new(),
            planned: 0,
            busy: Vec::new(),
            next_fault: Duration::ZERO,
            is_posting: false,
            interrupted,
            report: Report::new(options),
            lab,
        };
        let fault = options.fault.map_or("all", Kind::name);
        supervisor.log(&format!("seed {}, faults: {fault}", options.seed));
        for index in 0..WORKERS {
            let worker =
                Worker::start(&supervisor.lab, (index, 0), options.seed, &supervisor.sender)?;
            supervisor.workers.push(worker);
        }
        let ready = |this: &Self| this.workers.iter().all(|worker| worker.metadata.is_some());
        supervisor.wait_for(START_TIME, "all workers are ready", ready)?;
        Ok(supervisor)
    }

    fn rate(mbit: u64) -> Result<Rate, Box<dyn Error>> {
        Ok(format!("{mbit}mbit").parse()?)
    }

    /// Runs all phases. Returns `None` if interrupted.
    fn run(mut self) -> Result<Option<Report>, Box<dyn Error>> {
        let whole = self.options.duration;
        // The warm-up covers the resources that engines keep from their first faults, before the first measurement.
        let warm_up = (whole / 5).min(Duration::from_secs(30));
        let half = (whole - warm_up) / 2;
        for length in [warm_up, half, half] {
            self.operate(length)?;
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.quiet()?;
        }
        self.finish()?;
        let elapsed = self.begun.elapsed();
        self.report.judge(elapsed);
        Ok(Some(self.report))
    }

    /// Lets workers post, and injects faults.
    fn operate(&mut self, length: Duration) -> Result<(), Box<dyn Error>> {
        self.is_posting = true;
        self.order_all(&Order::Go);
        if self.options.fault.is_none_or(|fault| fault == Kind::Stranger) {
            self.invite_strangers()?;
        }
        let until = self.begun.elapsed() + length;
        loop {
            let now = self.begun.elapsed();
            if now >= until || self.interrupted.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.act(now)?;
            if now >= self.next_fault {
                let pause = Duration::from_millis(self.rng.between(200, 1500));
                self.next_fault = now + pause;
                self.plan(now);
            }
            self.listen(LOOK_EVERY)?;
        }
    }

    fn plan(&mut self, now: Duration) {
        if self.busy.len() >= FAULTS_MAX {
            return;
        }
        let all = Kind::ALL;
        let kind = self.options.fault.unwrap_or(all[self.rng.index(all.len())]);
        let Some(plan) = kind.plan(&mut self.rng, WORKERS, &self.busy) else { return };
        if plan.target.has_rail() && self.workers.iter().any(|worker| worker.metadata.is_none()) {
            return;
        }
        self.busy.push(plan.target);
        self.report.fault(kind);
        for (after, action) in plan.actions {
            self.planned += 1;
            self.agenda.insert((now + after, self.planned), action);
        }
    }

    /// Performs the actions that are due.
    fn act(&mut self, now: Duration) -> Result<(), Box<dyn Error>> {
        while let Some(due) = self.agenda.first_entry().filter(|entry| entry.key().0 <= now) {
            let action = due.remove();
            self.perform(action)?;
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> Result<(), Box<dyn Error>> {
        // A killed worker is started when all rails are up, which may be after its next fault.
        if action.process().is_some_and(|worker| self.workers[worker].is_killed()) {
            return Ok(());
        }
        if !matches!(action, Action::Over(_) | Action::Start(_)) {
            self.log(&action.to_string());
        }
        match action {
            Action::Link { rail, up } => {
                self.lab.set_link(rail, up)?;
                if self.busy.contains(&Target::AllRails) {
                    self.order_all(&Order::Outage { of: None });
                }
            }
            Action::Rate { rail, mbit } => self.lab.set_rate(rail, Self::rate(mbit)?)?,
            Action::Kill(worker) => self.workers[worker].kill(),
            // An engine takes the rails that are up when it starts, so it waits for all of them.
            Action::Start(_) if self.busy.iter().any(|target| target.has_rail()) => {
                let last = self.agenda.last_key_value().map_or(Duration::ZERO, |((at, _), _)| *at);
                self.planned += 1;
                self.agenda.insert((last, self.planned), action);
            }
            Action::Start(worker) => {
                self.log(&action.to_string());
                let old = &self.workers[worker];
                self.report.add(&old.tally);
                let run = (worker, old.generation + 1);
                let new = Worker::start(&self.lab, run, self.options.seed, &self.sender)?;
                self.workers[worker] = new;
            }
            Action::Stop(worker) | Action::Continue(worker) => {
                let signal =
                    if matches!(action, Action::Stop(_)) { Signal::STOP } else { Signal::CONT };
                self.workers[worker].signal(signal)?;
                self.order_all(&Order::Outage { of: Some(worker) });
            }
            Action::Descriptors { worker, spare } => {
                let worker = &self.workers[worker];
                let limit = spare.map(|spare| Ok(worker.needs()?.descriptors + spare));
                let limit = limit.transpose().map_err(|error: io::Error| error)?;
                worker.limit(Resource::Nofile, limit)?;
            }
            Action::Memory { worker, spare_mib } => {
                let worker = &self.workers[worker];
                let limit = spare_mib.map(|spare| Ok(worker.address_space()? + (spare << 20)));
                let limit = limit.transpose().map_err(|error: io::Error| error)?;
                worker.limit(Resource::As, limit)?;
                worker.order(if limit.is_some() { &Order::Hoard } else { &Order::GiveBack });
            }
            Action::Withdraw(worker) => self.workers[worker].order(&Order::Withdraw),
            Action::Flood => self.strangers.iter().for_each(|one| one.tell(&Hint::Flood)),
            Action::Over(target) => self.busy.retain(|busy| *busy != target),
        }
        Ok(())
    }

    /// Ends all faults, lets all operations finish, and measures the resources of each process.
    fn quiet(&mut self) -> Result<(), Box<dyn Error>> {
        self.is_posting = false;
        self.act(Duration::MAX)?;
        self.strangers.clear();
        self.workers.iter_mut().for_each(|worker| worker.is_quiet = false);
        self.order_all(&Order::Pause);
        let quiet = |this: &Self| this.workers.iter().all(|worker| worker.is_quiet);
        if let Err(error) = self.wait_for(QUIET_TIME, "all workers are quiet", quiet) {
            let loud = self.workers.iter().filter(|worker| !worker.is_quiet);
            let loud: Vec<usize> = loud.map(|worker| worker.index).collect();
            self.report.violation(Oracle::Hung, format!("{error}; not quiet: {loud:?}"));
        }
        let deadline = Instant::now() + SETTLE_TIME;
        let mut before = self.needs()?;
        loop {
            self.listen(LOOK_EVERY)?;
            let now = self.needs()?;
            if (now == before && self.report.is_flat(&now)) || Instant::now() > deadline {
                self.log("all is quiet");
                self.report.needs(now);
                return Ok(());
            }
            before = now;
        }
    }

    fn finish(&mut self) -> Result<(), Box<dyn Error>> {
        for worker in &mut self.workers {
            worker.state = State::MayEnd;
            worker.order(&Order::Finish);
        }
        for at in 0..WORKERS {
            if !self.workers[at].wait()? {
                let what = format!("worker {at} did not end well");
                self.report.violation(Oracle::Unexplained, what);
            }
        }
        // The last messages of the workers.
        while let Ok(heard) = self.heard.try_recv() {
            self.hear(heard);
        }
        self.workers.iter().for_each(|worker| self.report.add(&worker.tally));
        Ok(())
    }

    fn invite_strangers(&mut self) -> Result<(), Box<dyn Error>> {
        for side in Side::BOTH {
            let seed = [self.rng.bits().to_string()];
            let stranger = Process::start(&self.lab, side, options::STRANGER, &seed, drop)?;
            self.strangers.push(stranger);
        }
        self.tell_strangers();
        Ok(())
    }

    fn tell_strangers(&self) {
        let addresses = self.workers.iter().flat_map(|worker| worker.addresses.clone()).collect();
        let hint = Hint::Listeners(addresses);
        self.strangers.iter().for_each(|stranger| stranger.tell(&hint));
    }

    fn order_all(&self, order: &Order) {
        self.workers.iter().for_each(|worker| worker.order(order));
    }

    fn needs(&self) -> io::Result<Vec<Needs>> {
        self.workers.iter().map(Worker::needs).collect()
    }

    fn wait_for(
        &mut self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + patience;
        while !is_so(self) {
            if Instant::now() > deadline {
                return Err(format!("it is not so after {patience:?} that {what}").into());
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(());
            }
            // A worker that ended by itself is restarted.
            self.act(self.begun.elapsed())?;
            self.listen(LOOK_EVERY)?;
        }
        Ok(())
    }

    /// Handles the messages received within a time limit.
    fn listen(&mut self, patience: Duration) -> Result<(), Box<dyn Error>> {
        let due = self.agenda.first_key_value().map(|((at, _), _)| *at);
        let pause = due.map_or(patience, |at| at.saturating_sub(self.begun.elapsed()));
        if let Ok(heard) = self.heard.recv_timeout(pause.min(patience)) {
            self.hear(heard);
            while let Ok(heard) = self.heard.try_recv() {
                self.hear(heard);
            }
        }
        Ok(())
    }

    fn hear(&mut self, heard: Heard) {
        let Heard { index, generation, word } = heard;
        if self.workers.get(index).is_none_or(|worker| worker.generation != generation) {
            return;
        }
        match word {
            Some(Word::Ready { metadata, addresses }) => {
                self.introduce(index, metadata, addresses);
            }
            Some(Word::Letter { to, generation, letter }) => {
                let to = self.workers.get(to).filter(|to| to.generation == generation);
                if let Some(to) = to {
                    to.order(&Order::Letter { from: index, letter });
                }
            }
            Some(Word::Quiet) => self.workers[index].is_quiet = true,
            Some(Word::Tally(tally)) => self.workers[index].tally = tally,
            Some(Word::Violation { oracle, what }) => {
                self.log(&format!("VIOLATION, {oracle:?}: {}", first_line(&what)));
                self.report.violation(oracle, what);
            }
            None if self.workers[index].state != State::MayEnd => {
                let how = self.workers[index].bury();
                let what = format!("worker {index}.{generation} ended by itself, {how}");
                self.log(first_line(&what));
                self.report.violation(Oracle::Unexplained, what);
                // The run continues with a new process.
                self.planned += 1;
                self.agenda.insert((self.begun.elapsed(), self.planned), Action::Start(index));
            }
            Some(Word::Finished) | None => {}
        }
    }

    /// Announces a ready worker to all others, and them to it.
    fn introduce(&mut self, index: usize, metadata: Vec<u8>, addresses: Vec<std::net::SocketAddr>) {
        let generation = self.workers[index].generation;
        (self.workers[index].metadata, self.workers[index].addresses) =
            (Some(metadata.clone()), addresses);
        let worker = &self.workers[index];
        for other in self.workers.iter().filter(|other| other.index != index) {
            let Some(theirs) = other.metadata.clone() else { continue };
            other.order(&Order::Peer { index, generation, metadata: metadata.clone() });
            let (index, generation) = (other.index, other.generation);
            worker.order(&Order::Peer { index, generation, metadata: theirs });
        }
        worker.order(if self.is_posting { &Order::Go } else { &Order::Pause });
        self.tell_strangers();
    }

    fn log(&self, what: &str) {
        eprintln!("{:9.3} s  {what}", self.begun.elapsed().as_secs_f64());
    }
}
