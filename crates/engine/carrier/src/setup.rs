//! A host's threads that listen, accept and connect, one each. Plugins may take long for these calls, and some return
//! from an accept only when the other end has connected. If that end were waiting in its own accept first, both would
//! wait. And a peer that asks for a listening handle must not wait for other connections.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_nccl_abi::{Connector, Handle, Listener, Net, RecvComm, SendComm};

use crate::calls;
use crate::closing::Closer;
use crate::gatherer::Gatherers;
use crate::lane::Lane;
use crate::tcpx::Wishes;
use crate::threads;
use crate::unpack::Unpack;
use crate::way::Way;

/// Callbacks of a requested connection.
pub(crate) struct Told {
    /// True while the connection is still wanted.
    pub(crate) is_wanted: Box<dyn Fn() -> bool + Send>,
    pub(crate) came: Box<dyn FnOnce(Result<Lane, String>) + Send>,
}

/// Request to a thread.
pub(crate) enum Job {
    Accept {
        device: usize,
        limit: Duration,
        listening: Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>,
        told: Told,
    },
    Connect {
        device: usize,
        handle: Vec<u8>,
        limit: Duration,
        told: Told,
    },
    /// The plugin listens. The remaining steps are polled.
    Await(Pending),
    Stop,
}

/// The threads and the channels to them, including those of the closing thread.
pub(crate) struct Setup {
    /// Name that the plugin reports.
    plugin: String,
    listens: Sender<Job>,
    connects: Sender<Job>,
    closer: Closer,
    threads: Vec<JoinHandle<()>>,
    /// Process that has the threads. A forked copy has none.
    process: u32,
}

/// A connection that is being set up.
pub(crate) struct Pending {
    step: Step,
    /// Remaining time. The plugin serves connections one after another, and time spent on others does not count.
    left: Duration,
    told: Told,
}

enum Step {
    Accept(Listener),
    Connect(Connector),
}

/// Shortest and longest pause between polls, as the interface has no event for new connections. The pause grows while
/// nothing happens.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time that dropping a host waits for a plugin call to return.
const STOP_LIMIT: Duration = Duration::from_secs(2);

impl Setup {
    pub(crate) fn start(net: Net, wishes: Arc<Wishes>) -> std::io::Result<Self> {
        let (closer, closing) = Closer::start()?;
        let plugin = net.name();
        let (net, mut threads) = (Arc::new(net), vec![closing]);
        let mut spawn = |run: Box<dyn FnOnce() + Send>| {
            threads.push(Builder::new().name(threads::NAME.to_owned()).spawn(run)?);
            Ok::<_, std::io::Error>(())
        };
        let [(listens, to_listen), (accepts, to_accept), (connects, to_connect)] =
            std::array::from_fn(|_| channel());
        let begun = [to_accept, to_connect].into_iter().try_for_each(|inbox| {
            let (net, closer, wishes) = (net.clone(), closer.clone(), wishes.clone());
            spawn(Box::new(move || run(&net, &inbox, &closer, &wishes)))
        });
        let begun =
            begun.and_then(|()| spawn(Box::new(move || listen(&net, &to_listen, &accepts))));
        match begun {
            Ok(()) => {
                Ok(Self { plugin, listens, connects, closer, threads, process: std::process::id() })
            }
            // Threads started so far end with their channels.
            Err(error) => {
                closer.stop();
                Err(error)
            }
        }
    }

    pub(crate) fn give(&self, job: Job) {
        // Succeeds: the threads run as long as `self` exists.
        let _ = match job {
            Job::Accept { .. } => self.listens.send(job),
            _ => self.connects.send(job),
        };
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let mut threads = std::mem::take(&mut self.threads);
        if std::process::id() != self.process {
            return std::mem::forget(threads);
        }
        for jobs in [&self.listens, &self.connects] {
            let _ = jobs.send(Job::Stop);
        }
        self.closer.stop();
        // One of these threads may drop the last reference to the engine.
        threads.retain(|thread| thread.thread().id() != std::thread::current().id());
        let until = Instant::now() + STOP_LIMIT;
        let is_left =
            |threads: &[JoinHandle<()>]| threads.iter().any(|thread| !thread.is_finished());
        while is_left(&threads) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_left(&threads) {
            let functions = calls::under_way();
            tracing::error!(target: "polyrail::carrier", plugin = self.plugin, ?functions,
                "the plugin does not return from a call, and is left alone");
        }
    }
}

/// Listens for each request, and passes the listeners on to be accepted. The thread ends with its channel.
fn listen(net: &Net, inbox: &Receiver<Job>, accepts: &Sender<Job>) {
    let _own = threads::Own::here();
    while let Ok(Job::Accept { device, limit, listening, told }) = inbox.recv() {
        if !(told.is_wanted)() {
            continue;
        }
        match net.listen(device) {
            Ok(listener) => {
                listening(Ok(listener.handle().to_vec()));
                let step = Step::Accept(listener);
                // Succeeds: the other thread runs as long as this one.
                let _ = accepts.send(Job::Await(Pending { step, left: limit, told }));
            }
            Err(error) => listening(Err(error.to_string())),
        }
    }
}

fn run(net: &Net, inbox: &Receiver<Job>, closer: &Closer, wishes: &Wishes) {
    let _own = threads::Own::here();
    let mut gatherers = Gatherers::default();
    let mut pending: Vec<Pending> = Vec::new();
    let mut pause = SHORTEST_PAUSE;
    loop {
        let idle = Instant::now();
        let job = match pending.is_empty() {
            true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => inbox.recv_timeout(pause),
        };
        for one in &mut pending {
            one.left = one.left.saturating_sub(idle.elapsed());
        }
        match job {
            Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(job) => {
                pending.extend(begin(net, job));
                pause = SHORTEST_PAUSE;
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
        let mut index = 0;
        while index < pending.len() {
            if !(pending[index].told.is_wanted)() {
                pending.remove(index);
                continue;
            }
            match pending[index].step(closer, &mut gatherers) {
                Some(result) => {
                    (pending.remove(index).told.came)(result);
                    warn_of_threads(wishes);
                }
                None => index += 1,
            }
        }
    }
    for left in pending {
        (left.told.came)(Err("the engine closes".to_owned()));
    }
}

/// Warns once about each plugin thread that runs on other CPUs than requested.
fn warn_of_threads(wishes: &Wishes) {
    static WARNED: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    if !wishes.bind() {
        return;
    }
    let mut warned = WARNED.lock();
    for thread in threads::of_plugins(wishes) {
        if !thread.is_as_asked && !warned.contains(&thread.id) {
            warned.push(thread.id);
            tracing::warn!(target: "polyrail::carrier", thread = thread.id, cpus = thread.cpus,
                "a thread of the plugin may run on other CPUs than tx_bindings and rx_bindings name");
        }
    }
}

fn begin(net: &Net, job: Job) -> Option<Pending> {
    let (device, handle, limit, told) = match job {
        Job::Connect { device, handle, limit, told } => (device, handle, limit, told),
        Job::Await(pending) => return Some(pending),
        Job::Accept { .. } | Job::Stop => return None,
    };
    let handle = Handle::try_from(handle.as_slice());
    let connector = handle
        .map_err(|_| "the peer's plugin gives a handle of another length".to_owned())
        .and_then(|handle| net.connect(device, handle).map_err(|error| error.to_string()));
    match connector {
        Ok(connector) => Some(Pending { step: Step::Connect(connector), left: limit, told }),
        Err(why) => {
            (told.came)(Err(why));
            None
        }
    }
}

impl Pending {
    /// Polls once. Returns the connection or the failure when it is decided.
    fn step(&mut self, closer: &Closer, gatherers: &mut Gatherers) -> Option<Result<Lane, String>> {
        let lane = |way, unpack| Lane::new(way, unpack, closer.clone());
        let begun = Instant::now();
        let stepped = match &mut self.step {
            Step::Accept(listener) => {
                let accepted: Result<Option<RecvComm>, _> = listener.accept();
                let came = accepted.map(|comm| {
                    let comm = comm?;
                    let unpack = comm.device_handle();
                    let unpack = unpack.map(|handle| Unpack::open(&handle, gatherers));
                    Some(unpack.transpose().map(|unpack| lane(Way::Receives(comm), unpack)))
                });
                match came {
                    Ok(Some(Err(why))) => return Some(Err(why)),
                    came => came.map(|came| came.and_then(Result::ok)),
                }
            }
            Step::Connect(connector) => {
                let connected: Result<Option<SendComm>, _> = connector.poll();
                connected.map(|comm| Some(lane(Way::Sends(comm?), None)))
            }
        };
        self.left = self.left.saturating_sub(begun.elapsed());
        match stepped {
            Ok(Some(lane)) => Some(Ok(lane)),
            Ok(None) if !self.left.is_zero() => None,
            Ok(None) => Some(Err("the plugin's connection did not come in time".to_owned())),
            Err(error) => Some(Err(error.to_string())),
        }
    }
}
