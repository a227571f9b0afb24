//! Serving end: it answers one client after another.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Peer};
use polyrail_report::{PeerSample, exit};

use polyrail_profiler::drive::Ran;

use super::about::{settings, threads};
use super::idle::Idle;
use super::line::line;
use super::promise::Promise;
use crate::cmd::bench::faults;
use crate::cmd::bench::judge::{Copied, Copies, CopyRates, Use, silent_rails};
use crate::cmd::bench::memory::{Bank, Buffers};
use crate::cmd::bench::options::{changed_config, lone_rail_config, other_config};
use crate::cmd::bench::rivals::RawServer;
use crate::cmd::bench::talk::{
    About, Answer, Ask, CONTROL_VERSION, Counted, End, Link, Load, SetUp, Silent, process,
};
use crate::cmd::bench::trial::{Part, Poster, Snapshot, Watch, needs_of, rails_down, regions_of};
use crate::fault::{Cause, Fault};
use crate::interrupt::Interrupt;
use crate::reports;

/// Serves clients until `stop` is raised. After each client, `served` gets the result; if it returns `false`, the
/// service ends, too.
pub(crate) fn serve(
    engine: &Engine,
    bank: &Arc<Bank>,
    stop: &Interrupt,
    served: impl Fn(&Peer, Result<Vec<String>, Fault>) -> bool,
) {
    serve_on(engine, bank, (stop, false), served);
}

/// Serves clients on this engine. `is_opened`: a client requested the engine.
fn serve_on(
    engine: &Engine,
    bank: &Arc<Bank>,
    (stop, is_opened): (&Interrupt, bool),
    served: impl Fn(&Peer, Result<Vec<String>, Fault>) -> bool,
) {
    while !stop.is_raised() {
        let Some(peer) = engine.accept_peer(SLICE) else { continue };
        // A client that was turned away while another one was being served has left by now.
        if peer.lost().is_some() {
            continue;
        }
        let result = serve_one(engine, bank, &peer, (stop, is_opened));
        engine.remove_peer(&peer);
        if !served(&peer, result) {
            break;
        }
    }
}

/// Answers until the client says goodbye, is lost, or `stop` is raised. Returns descriptions of the rails that carried
/// nothing.
fn serve_one(
    engine: &Engine,
    bank: &Arc<Bank>,
    peer: &Peer,
    (stop, is_opened): (&Interrupt, bool),
) -> Result<Vec<String>, Fault> {
    let link = Link::new(engine, peer.clone(), stop.clone());
    let mut session = Session::new(&link, bank, stop, Idle::new(is_opened));
    while let Some(ask) = session.next_ask()? {
        if !matches!(ask, Ask::StillThere) {
            session.idle.note_question();
        }
        match ask {
            Ask::StillThere => {}
            Ask::Bye { down, unsent } => {
                let silent = silent_rails(&silent(&link), &Silent { down, unsent, one_nic: None });
                session.see_off();
                return Ok(silent);
            }
            Ask::Begin { transfers } => session.sample(transfers)?,
            other => {
                let answer = session.handle(other).unwrap_or_else(Answer::Failed);
                link.answer(&answer)?;
            }
        }
    }
    Ok(Vec::new())
}

/// Returns the rails of this end that carried nothing in a sample. Without a sample, returns the rails that are down
/// now.
fn silent(link: &Link<'_>) -> Silent {
    link.silent().unwrap_or_else(|| Silent {
        down: rails_down(link.engine, &link.engine.stats()),
        ..Silent::default()
    })
}

/// State of the service for one client.
struct Session<'l> {
    link: &'l Link<'l>,
    bank: &'l Arc<Bank>,
    stop: &'l Interrupt,
    idle: Idle,
    prepared: Option<Prepared<'l>>,
    /// Counters at the begin of the sample, and the result of the sample or its error.
    sample: Option<(Snapshot, Result<Option<Ran>, Fault>)>,
    raw: Option<(RawServer, Promise)>,
    /// Counters of the host, while the client samples.
    watch: Option<Watch>,
    /// Use of memory in the last sample.
    used: Option<Use>,
    others: Others,
}

/// Set-up of a size.
struct Prepared<'l> {
    set_up: SetUp,
    buffers: Buffers,
    part: Part<'l>,
    /// Whether both ends are in this process. The client then counts this process's CPU time.
    is_one_process: bool,
    memory: Option<Promise>,
}

/// Other engines for the same client, each with a thread that serves it. They end when this is dropped.
#[derive(Default)]
struct Others {
    done: Interrupt,
    engines: Vec<Weak<Engine>>,
    threads: Vec<JoinHandle<()>>,
}

impl<'l> Session<'l> {
    fn new(link: &'l Link<'l>, bank: &'l Arc<Bank>, stop: &'l Interrupt, idle: Idle) -> Self {
        Self {
            link,
            bank,
            stop,
            idle,
            prepared: None,
            sample: None,
            raw: None,
            watch: None,
            used: None,
            others: Others::default(),
        }
    }

    /// Waits for the next question. Returns `None` when the service is to end.
    fn next_ask(&self) -> Result<Option<Ask>, Fault> {
        let mut heard = Instant::now();
        loop {
            if let Some(bytes) = self.link.next(SLICE) {
                match serde_json::from_slice(&bytes) {
                    Ok(ask) => return Ok(Some(ask)),
                    Err(error) => self.link.answer(&misunderstood(&error))?,
                }
            }
            if self.stop.is_raised() {
                return Ok(None);
            }
            if let Some(why) = self.link.peer.lost() {
                return Err(faults::gone(self.link.peer.name(), why));
            }
            self.check_idle()?;
            if heard.elapsed() > KEEP_ALIVE {
                // Delivery fails if the client is gone.
                self.link.answer(&Answer::StillHere)?;
                heard = Instant::now();
            }
        }
    }

    /// Refuses a client that keeps its turn without need. A round of the baseline has separate limits.
    fn check_idle(&self) -> Result<(), Fault> {
        if self.raw.as_ref().is_some_and(|(raw, _)| raw.is_in_round()) {
            return Ok(());
        }
        let link = self.link;
        self.idle.check(link.is_awaited(), link.engine, &self.others.engines)
    }

    /// Waits until the client has closed its engine. If the peer were removed earlier, the client would try to connect
    /// again.
    fn see_off(&self) {
        let gone = self.link.peer.gone();
        let until = Instant::now() + PARTING;
        while !self.stop.is_raised() && Instant::now() < until && gone.wait(SLICE).is_none() {}
    }

    fn handle(&mut self, ask: Ask) -> Result<Answer, Fault> {
        match ask {
            Ask::Hello { control_version } => self.hello(control_version),
            Ask::OpenRail { rail } => self.open(lone_rail_config(self.link.engine, &rail)?),
            Ask::OpenOther { channels } => self.open(other_config(self.link.engine, channels)?),
            Ask::OpenChanged { change } => self.open(changed_config(self.link.engine, &change)?),
            Ask::SetUp(set_up) => self.set_up(&set_up),
            Ask::Poison => {
                self.prepared()?.buffers.poison()?;
                Ok(Answer::Done)
            }
            Ask::End => self.count(),
            Ask::Verify { mode, slots, round } => {
                match self.prepared()?.buffers.verify(mode, slots, round) {
                    Ok(bytes) => Ok(Answer::Verified { bytes }),
                    Err(Fault { cause: Cause::Mismatch(mismatch), .. }) => {
                        Ok(Answer::Mismatch(mismatch))
                    }
                    Err(error) => Err(error),
                }
            }
            Ask::TearDown => {
                self.prepared = None;
                Ok(Answer::Done)
            }
            Ask::RawOpen(spec) => {
                spec.check()?;
                // Free the old memory first, so that both never exist at once.
                self.raw = None;
                let memory = Promise::of(spec.memory_bytes())?;
                let rails = self.link.engine.rails();
                let rails = rails.into_iter().map(|rail| (rail.name, rail.address.ip()));
                let (raw, _) = self.raw.insert((RawServer::open(spec, rails)?, memory));
                Ok(Answer::RawReady { addresses: raw.addresses()? })
            }
            Ask::RawAccept => {
                let stop = self.stop;
                Ok(Answer::RawAccepted { congestion: self.raw()?.accept(stop)? })
            }
            Ask::RawBegin { pieces } => {
                self.raw()?.begin(pieces)?;
                Ok(Answer::Done)
            }
            Ask::RawEnd => Ok(Answer::RawCounted { cpu_seconds: self.raw()?.end()? }),
            Ask::RawVerify => {
                self.raw()?.verify()?;
                Ok(Answer::Done)
            }
            Ask::RawClose => {
                self.raw = None;
                Ok(Answer::Done)
            }
            Ask::Copies => self.copies(),
            Ask::Threads => Ok(Answer::Threads { threads: threads(self.link.engine, true) }),
            // [`serve_one`] handles these itself.
            Ask::StillThere | Ask::Bye { .. } | Ask::Begin { .. } => Ok(Answer::Done),
        }
    }

    fn hello(&self, theirs: u32) -> Result<Answer, Fault> {
        if theirs != CONTROL_VERSION {
            let text = format!("its bench speaks version {CONTROL_VERSION}, this one {theirs}");
            return Err(Fault::new(exit::PEER, text).with_help(SAME_VERSION));
        }
        Ok(Answer::Hello(Box::new(About {
            control_version: CONTROL_VERSION,
            tool: reports::tool(),
            host: crate::host::describe(),
            config: settings(self.link.engine.config()),
            memory: self.bank.place(),
            line: line(self.link.engine, None).map(|line| line.rails),
        })))
    }

    /// Opens another engine, which serves the same client.
    fn open(&mut self, config: Config) -> Result<Answer, Fault> {
        if self.others.threads.len() >= OTHERS_MAX {
            let allowed = format!("0 to {OTHERS_MAX}");
            return Err(Fault::usage("engines", OTHERS_MAX + 1, "are too many", allowed));
        }
        let engine = Arc::new(Engine::builder().config(config).build()?);
        let Some(&address) = engine.addresses().first() else {
            return Err(faults::protocol("open", "no address".into()));
        };
        let invitation = engine.invitation().to_string();
        let (done, bank) = (self.others.done.clone(), Arc::clone(self.bank));
        let weak = Arc::downgrade(&engine);
        let serve = move || serve_on(&engine, &bank, (&done, true), |_, _| false);
        let thread = thread::Builder::new().spawn(serve);
        let failed = |source| Fault::system("starting the thread of an engine", source);
        self.others.threads.push(thread.map_err(failed)?);
        self.others.engines.push(weak);
        Ok(Answer::Opened { address, invitation })
    }

    fn set_up(&mut self, set_up: &SetUp) -> Result<Answer, Fault> {
        set_up.check()?;
        if set_up.sample && self.watch.is_none() {
            self.watch = Some(Watch::open()?);
        }
        // Free the old memory first, so that both never exist at once.
        let kept = self.prepared.take().filter(|old| set_up.has_memory_of(&old.set_up));
        let (buffers, memory) = match kept {
            Some(Prepared { buffers, memory, .. }) => (buffers, memory),
            None => {
                let bytes = self.bank.is_host().then(|| set_up.memory_bytes(End::Server));
                let memory = bytes.map(Promise::of).transpose()?;
                let needs = needs_of(set_up, End::Server);
                (Buffers::new(self.link.engine, self.bank, set_up.layout, needs)?, memory)
            }
        };
        let regions = regions_of(&buffers);
        let part = Part::new(self.link, &buffers, set_up, &set_up.regions, End::Server)?;
        let is_one_process = set_up.process == process();
        let set_up = set_up.clone();
        self.prepared = Some(Prepared { set_up, buffers, part, is_one_process, memory });
        Ok(Answer::Ready(regions))
    }

    /// Takes part in a sample until the sample is over or the client sends a message.
    ///
    /// An error of the sample is reported when the client asks for the count: until then the client expects no message.
    fn sample(&mut self, transfers: u64) -> Result<(), Fault> {
        let before = Snapshot::begin(self.link.engine, self.watch.as_ref());
        let (link, stop) = (self.link, self.stop);
        // While this end's own part runs, messages of the client are not checked.
        let (idle, others) = (&self.idle, &self.others.engines);
        let is_held = || idle.check(link.is_awaited(), link.engine, others).is_err();
        let is_over = |is_idle: bool| stop.is_raised() || is_idle && (link.has_news() || is_held());
        let result = match self.prepared.as_ref().map(|prepared| &prepared.part) {
            None => return link.answer(&Answer::Failed(not_set_up())),
            Some(Part::Stream(work)) => {
                let started = work.start(transfers);
                link.answer(&Answer::Done)?;
                started.and_then(|started| started.finish(is_over))
            }
            Some(Part::PingPong(game)) => {
                let ready = game.start();
                link.answer(&Answer::Done)?;
                ready.and_then(|ready| ready.play(End::Server, transfers, is_over)).map(Some)
            }
        };
        self.sample = Some((before, result));
        Ok(())
    }

    fn count(&mut self) -> Result<Answer, Fault> {
        let (before, result) = self.sample.take().ok_or_else(not_set_up)?;
        let ran = result?;
        let after = Snapshot::take(self.link.engine, self.watch.as_ref());
        let mut interval =
            before.until(&after, ran.as_ref().map(|ran| Poster::of(self.link.engine, ran)));
        if self.prepared()?.is_one_process {
            (interval.cpu_seconds, interval.load.process_cpus) = (0.0, 0.0);
        }
        self.used = Some(self.memory_use(&interval.load)?);
        self.link.note_silent(&interval.load);
        let (rails, rescues) = (interval.rails, interval.rescues);
        let sample = PeerSample {
            seconds: ran.map_or(interval.seconds, |ran| ran.seconds),
            cpu_seconds: interval.cpu_seconds,
            tx_bytes: rails.iter().map(|rail| rail.tx_bytes).sum(),
            rx_bytes: rails.iter().map(|rail| rail.rx_bytes).sum(),
            rx_bytes_per_rail: rails.iter().map(|rail| rail.rx_bytes).collect(),
        };
        let counted = Counted { sample, load: interval.load, rails, rescues };
        Ok(Answer::Counted(Box::new(counted)))
    }

    /// Returns the use of memory by this end's threads in a sample.
    fn memory_use(&self, load: &Load) -> Result<Use, Fault> {
        let (set_up, config) = (&self.prepared()?.set_up, self.link.engine.config());
        let copies = match [set_up.sends(End::Server), set_up.receives(End::Server)] {
            [true, true] => Copies::OutAndIn,
            [true, false] => Copies::Out,
            [false, _] => Copies::In,
        };
        let region = set_up.layout.region_bytes();
        let staging = config.staging_bytes * self.link.peer.flows().total as u64;
        let footprint = if self.bank.is_host() { region } else { staging.min(region) };
        Ok(Use {
            layout: set_up.layout,
            chunk_bytes: config.chunk_bytes,
            footprint_bytes: [footprint; 2],
            copies,
            movers: load.movers.clone(),
        })
    }

    fn copies(&self) -> Result<Answer, Fault> {
        let used = self.used.as_ref().ok_or_else(not_set_up)?;
        let _memory = Promise::of(used.memory_bytes())?;
        let gb_per_s = match CopyRates::default().of(used, 0.0)? {
            Copied::Rate(rate) => Some(rate.gb_per_s),
            Copied::Starved { .. } => None,
        };
        Ok(Answer::Copied { gb_per_s })
    }

    fn prepared(&self) -> Result<&Prepared<'l>, Fault> {
        self.prepared.as_ref().ok_or_else(not_set_up)
    }

    fn raw(&mut self) -> Result<&mut RawServer, Fault> {
        self.raw.as_mut().map(|(raw, _)| raw).ok_or_else(not_set_up)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.done.raise();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed. Its work is over either way.
            let _ = thread.join();
        }
    }
}

fn misunderstood(error: &serde_json::Error) -> Answer {
    let text = format!("it does not understand the question: {error}");
    Answer::Failed(Fault::new(exit::PEER, text).with_help(SAME_VERSION))
}

fn not_set_up() -> Fault {
    let answer = "nothing is set up that this belongs to".into();
    faults::protocol("a step of the measurement", answer)
}

const SAME_VERSION: &str = "use the same version of polyrail at both ends";
/// Maximum number of engines for one client besides the first: one for each rail, and one for each number of channels.
const OTHERS_MAX: usize = 256;
const SLICE: Duration = Duration::from_millis(200);
/// Time that a client has to close its engine after its goodbye.
const PARTING: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::cmd::bench::options::MemoryKind;

    #[test]
    fn a_client_that_has_said_good_bye_is_known_until_it_is_gone() {
        let engine = || {
            let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
            Engine::builder().config(config).build().unwrap()
        };
        let (server, client) = (engine(), engine());
        let bank = Arc::new(Bank::open(MemoryKind::Host).unwrap());
        let (tell, served) = channel();
        let end = |peer: &Peer, _| tell.send(peer.lost().is_some()).is_err();
        let over = Interrupt::default();
        thread::scope(|scope| {
            scope.spawn(|| serve(&server, &bank, &over, end));
            let peer = client.add_peer(&server.metadata()).unwrap();
            let link = Link::new(&client, peer, Interrupt::default());
            // A client that leaves before it is accepted is not served, so ask first.
            link.ask(&Ask::Hello { control_version: CONTROL_VERSION }).unwrap();
            link.say_good_bye(Silent::default());
            client.close();
            let was_gone = served.recv_timeout(Duration::from_secs(60));
            over.raise();
            assert_eq!(was_gone, Ok(true), "it was taken off the list, and would connect again");
        });
    }

    #[test]
    fn a_client_that_asks_nothing_does_not_keep_others_waiting() {
        let engine = || {
            let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
            Engine::builder().config(config).build().unwrap()
        };
        let (server, silent, client) = (engine(), engine(), engine());
        let bank = Arc::new(Bank::open(MemoryKind::Host).unwrap());
        let (tell, served) = channel();
        let end = |_: &Peer, result: Result<Vec<String>, Fault>| {
            tell.send(result.err().map(|error| error.to_string())).is_ok()
        };
        let over = Interrupt::default();
        thread::scope(|scope| {
            scope.spawn(|| serve(&server, &bank, &over, end));
            silent.add_peer(&server.metadata()).unwrap();
            let why = served.recv_timeout(Duration::from_secs(60));
            let peer = client.add_peer(&server.metadata()).unwrap();
            let link = Link::new(&client, peer, Interrupt::default());
            let answer = link.ask(&Ask::Hello { control_version: CONTROL_VERSION });
            over.raise();
            assert_eq!(why, Ok(Some("it asked nothing for 10 s".to_owned())));
            assert!(matches!(answer, Ok(Answer::Hello(_))));
        });
    }
}
