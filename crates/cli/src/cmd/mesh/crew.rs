//! A worker: a process with an engine that finds the engines of the other workers.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Peer};
use polyrail_config::Origin;
use polyrail_rendezvous::{Group, Membership, RendezvousError, join};
use polyrail_report::exit;

use super::args::{Args, Seat};
use super::direct::{self, Told};
use super::faults;
use super::follow;
use super::meet::meet;
use super::plan::Grid;
use super::talk::{Heard, Inbox, Order, Said, write};
use crate::fault::Fault;
use crate::progress::show_time;
use crate::stdout::{keep, start_log};

/// This worker, and its connections to all others.
pub(crate) struct Crew {
    pub(crate) engine: Engine,
    pub(crate) grid: Grid,
    /// Number of this worker.
    pub(crate) me: usize,
    /// Peers by worker; `None` for this one.
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) inbox: Inbox,
    /// Time limit for everything that moves no payload.
    pub(crate) timeout: Duration,
    /// Leaves the group at the end, if there is one.
    _group: Option<Group>,
}

/// Works until the first worker says goodbye. The first worker prints the results as lines of JSON.
pub(crate) fn work(args: &Args, seat: &Seat) -> Result<u8, Fault> {
    // Workers that their starter introduces read metadata from standard input first.
    if !seat.by_starter() {
        end_with_parent()?;
    }
    keep().map_err(|error| Fault::system("keeping standard output", error))?;
    let config = config(args, seat)?;
    start_log(&config)?;
    match gather_and_work(args, seat, config) {
        // The process that started this one prints the error, so that it does not mix with its progress bar.
        Err(fault) if tells(seat) => {
            let code = fault.code;
            direct::tell(&Told::End(Some(fault)))?;
            Ok(code)
        }
        done => done,
    }
}

fn gather_and_work(args: &Args, seat: &Seat, config: Config) -> Result<u8, Fault> {
    let crew = Crew::gather(args, seat, config)?;
    if crew.me > 0 {
        if tells(seat) {
            say(seat, format!("{} gives the orders", crew.name(0)))?;
        }
        follow::follow(&crew)?;
        return Ok(exit::OK);
    }
    let failed = thread::scope(|scope| {
        let following = thread::Builder::new().spawn_scoped(scope, || follow::follow(&crew));
        let following = match following {
            Ok(thread) => thread,
            Err(source) => {
                return Some(Fault::system("starting the thread that measures", source));
            }
        };
        let failed = direct::direct(&crew, args);
        crew.part();
        // The thread has sent its error as an answer, too.
        let _ = following.join();
        failed
    });
    let code = failed.as_ref().map_or(exit::OK, |failed| failed.code);
    direct::tell(&Told::End(failed))?;
    Ok(code)
}

/// Whether this worker reports the progress of the rendezvous to the process that started it.
fn tells(seat: &Seat) -> bool {
    !seat.by_starter() && seat.index == 0
}

fn say(seat: &Seat, what: String) -> Result<(), Fault> {
    direct::tell(&Told::Doing(format!("layout {}: {what}", seat.layout.name())))
}

/// `node1, node2, node3 and 5 more`.
fn named(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names[..names.len().min(MOST_NAMED)].join(", ") + &more
}

/// Ends this process together with the one that started it. Nothing more is written to standard input, which closes
/// however that process ends.
fn end_with_parent() -> Result<(), Fault> {
    let wait = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(i32::from(exit::INTERRUPTED));
    };
    let failed = |source| Fault::system("starting a thread for standard input", source);
    thread::Builder::new().spawn(wait).map(drop).map_err(failed)
}

/// Settings in effect: in a lab its rails, and path `tcp` unless another path is given.
pub(crate) fn config(args: &Args, seat: &Seat) -> Result<Config, Fault> {
    let given = args.config.builder()?.build()?;
    let mut builder = args.config.builder()?;
    if !seat.by_starter() {
        builder = builder.set("rendezvous", &seat.place)?;
    }
    // Rails that a file or the environment names are on the machine, not in a lab.
    if seat.in_lab && given.origin("rails") != Some(&Origin::Set) {
        builder = builder.set("rails", LAB_RAILS)?;
    }
    let is_given = |name| given.origin(name).is_some_and(Origin::is_explicit);
    if !is_given("path") {
        builder = builder.set("path", "tcp")?;
    }
    Ok(builder.build()?)
}

impl Crew {
    fn gather(args: &Args, seat: &Seat, config: Config) -> Result<Self, Fault> {
        let grid = args.grid(seat.nodes, seat.layout);
        let name =
            seat.node.map(|node| grid.worker_name(node * grid.workers_per_node() + seat.index));
        let mut builder = Engine::builder().config(config);
        if let Some(name) = &name {
            builder = builder.name(name);
        }
        let engine = builder.build()?;
        let here = name.clone().unwrap_or_else(|| "this node".to_owned());
        let inbox = Inbox::start(&engine, here, grid.workers())?;
        let timeout = args.timeout;
        if seat.by_starter() {
            let node = seat.node.unwrap_or_default();
            let me = node * grid.workers_per_node() + seat.index;
            let peers = meet(&engine, me, grid.workers())?;
            end_with_parent()?;
            return Ok(Self { engine, grid, me, peers, inbox, timeout, _group: None });
        }
        let group_name = format!("{}-{}", args.group, grid.layout.name());
        let mut membership =
            Membership::new(&group_name).map_err(RendezvousError::from)?.timeout(args.timeout);
        if let Some(name) = &name {
            membership = membership.name(name).map_err(RendezvousError::from)?;
        }
        let at_most = show_time(args.timeout);
        if tells(seat) {
            say(seat, format!("waiting for the other nodes, at most {at_most}"))?;
        }
        let group = join(&engine, &membership)?;
        let names: Vec<String> = (0..grid.workers())
            .map(|worker| match name {
                Some(_) => grid.worker_name(worker),
                None => format!("rank-{worker}"),
            })
            .collect();
        let number = |name: &str| names.iter().position(|known| known == name);
        let me = number(group.name()).ok_or_else(|| outside(group.name(), &grid))?;
        let until = Instant::now() + args.timeout;
        let mut told = Vec::new();
        let found = loop {
            // Skip a member with another name: it belongs to another group of the same name, or to a mesh of more
            // nodes.
            let members = group.members();
            let known = members.into_iter().filter_map(|it| Some((number(it.name())?, it)));
            let known: Vec<_> = known.collect();
            if known.len() + 1 == grid.workers() {
                break known;
            }
            let is_there =
                |worker: &usize| *worker == me || known.iter().any(|(number, _)| number == worker);
            let missing = (0..grid.workers()).filter(|worker| !is_there(worker));
            let missing: Vec<&str> = missing.map(|worker| &*names[worker]).collect();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!(
                    "{} of {} processes of this mesh are there after {} s; missing: {}; this node has \
                     --rendezvous {} --nodes {} --layout {} --group {}",
                    known.len() + 1,
                    grid.workers(),
                    args.timeout.as_secs(),
                    named(&missing),
                    seat.place,
                    seat.nodes,
                    seat.layout.name(),
                    args.group
                );
                let help = "start `polyrail mesh` with these options on each node, or give a longer --timeout";
                return Err(Fault::new(exit::PEER, text).with_help(help));
            }
            if told != missing && tells(seat) {
                say(seat, format!("waiting for {}, at most {at_most}", named(&missing)))?;
                told = missing;
            }
            // Returns at the first event.
            let _ = group.next_event(left.min(LOOK));
        };
        let mut peers = vec![None; grid.workers()];
        for (worker, member) in found {
            peers[worker] = Some(group.peer(&member)?);
        }
        Ok(Self { engine, grid, me, peers, inbox, timeout, _group: Some(group) })
    }

    /// Sends a message to a worker, which may be this one.
    pub(crate) fn say(&self, to: usize, said: Said) -> Result<(), Fault> {
        let Some(peer) = &self.peers[to] else {
            self.inbox.change(|heard| match said {
                Said::Order(order) => heard.orders.push_back(order),
                Said::Answer(answer) => heard.answers.push_back((self.me, answer)),
                Said::Region { pair, key } => drop(heard.regions.insert(pair, key)),
            });
            return Ok(());
        };
        let posted = self.engine.notify(peer, &write(self.me, &said));
        match posted {
            Ok(transfer) => transfer.detach(),
            Err(source) => {
                let to = self.name(to);
                return Err(match peer.lost() {
                    Some(why) => faults::gone(&to, &why),
                    None => faults::post(&format!("{} to {to}", self.name(self.me)), &source),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn name(&self, worker: usize) -> String {
        self.grid.worker_name(worker)
    }

    /// Returns an error for the first of these workers that is gone.
    pub(crate) fn check(&self, workers: impl IntoIterator<Item = usize>) -> Result<(), Fault> {
        for worker in workers {
            if let Some(why) = self.peers[worker].as_ref().and_then(Peer::lost) {
                return Err(faults::gone(&self.name(worker), &why));
            }
        }
        Ok(())
    }

    /// Whether the first worker has ended the run, or is gone.
    pub(crate) fn is_over(&self) -> bool {
        let is_bye = |heard: &mut Heard| {
            heard.orders.iter().any(|order| matches!(order, Order::Bye)).then_some(())
        };
        self.inbox.wait(Instant::now(), is_bye).is_some() || self.check([0]).is_err()
    }

    /// Sends goodbye to all workers, and waits up to [`PARTING`] for each of the others to receive it.
    fn part(&self) {
        let bye = write(self.me, &Said::Order(Order::Bye));
        let said: Vec<_> =
            self.peers.iter().flatten().map(|peer| self.engine.notify(peer, &bye)).collect();
        for transfer in said.into_iter().flatten() {
            let _ = transfer.wait(PARTING);
        }
        let _ = self.say(self.me, Said::Order(Order::Bye));
    }
}

fn outside(name: &str, grid: &Grid) -> Fault {
    let last = grid.nodes - 1;
    let help = "give --nodes as many as the launcher starts";
    Fault::usage(
        "--nodes",
        grid.nodes,
        format!("leaves no place for {name}"),
        format!("rank-0 to rank-{last}"),
    )
    .with_help(help)
}

/// Maximum number of nodes that a line names.
const MOST_NAMED: usize = 3;
/// Prefix that selects every rail of a lab.
const LAB_RAILS: &str = "rail";
/// Interval between looks for members that no event announces.
const LOOK: Duration = Duration::from_millis(200);
const PARTING: Duration = Duration::from_secs(2);
