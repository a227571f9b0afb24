//! The process in which a foreign plugin is tried. It tells what it does and finds in lines of JSON.
//!
//! They go over a socket that is its standard input: plugins write to the other two.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_nccl_abi::{
    Call, HostMemory, Library, Listener, Net, NetError, Part, Properties, RecvComm, SendComm,
    log_to,
};
use polyrail_sys::process::signal_handlers;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::carried::{self, Place};
use super::findings::{DeviceFound, Left, TableFound, Thread, Transfer};

/// What is to be tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) library: String,
    pub(super) version: Option<u32>,
    /// All if it is empty.
    pub(super) devices: Vec<usize>,
    /// For each step.
    pub(super) timeout_ms: u64,
}

/// A line of the canary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// This function is called now. Calls of the same one in a row are told once.
    Call(String),
    Tables(Vec<TableFound>),
    Opened(u32),
    Devices(Vec<DeviceFound>),
    Transfer(Transfer),
    NotTried(String),
    /// This device does not tell the lengths of what it has received.
    Untold(usize),
    Left(Left),
    Log {
        is_warning: bool,
        text: String,
    },
    Failed(Failure),
    Done,
}

/// Why it can't go on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failure {
    /// It is no plugin.
    Load(String),
    Call(String),
    Data(String),
}

/// Message sizes: nothing, odd ones, and more than a plugin sends in one piece.
const SIZES: [usize; 8] = [0, 1, 13, 4096, 65_537, 524_288, 1_048_577, 4_194_304];
/// Of messages of which as many as possible are under way at a time.
const BURST_BYTES: usize = 10_007;
/// Room behind a message, which the plugin must leave alone.
const GUARD: usize = 4096;
pub(super) const POISON: u8 = 0xee;
pub(super) const PAUSE: Duration = Duration::from_micros(50);

type Talk = Arc<Mutex<(UnixStream, &'static str)>>;

/// Tries the plugin, and tells everything over standard input.
pub(super) fn work(task: &Task) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let talk: Talk = Arc::new(Mutex::new((socket, "")));
    let logs = Arc::clone(&talk);
    log_to(Box::new(move |level, _, text| {
        let is_warning = level == polyrail_nccl_abi::LogLevel::Warn as i32;
        say(&logs, &Event::Log { is_warning, text: text.to_owned() });
    }));
    let before = State::read();
    let done = examine(task, &talk, &before);
    say(&talk, &Event::Left(before.left_until_now()));
    say(&talk, &done.map_or_else(Event::Failed, |()| Event::Done));
    Ok(())
}

fn say(talk: &Talk, event: &Event) {
    let Ok(mut line) = serde_json::to_vec(event) else { return };
    line.push(b'\n');
    // Whoever reads this is gone if it fails, and ends this process.
    let _ = talk.lock().0.write_all(&line);
}

fn examine(task: &Task, talk: &Talk, before: &State) -> Result<(), Failure> {
    say(talk, &Event::Call("dlopen".to_owned()));
    let library = Library::open(&task.library).map_err(|error| Failure::Load(error.to_string()))?;
    let tables = library.tables().into_iter();
    say(talk, &Event::Tables(tables.map(|(version, name)| TableFound { version, name }).collect()));

    let observed = Arc::clone(talk);
    let observer = move |call| {
        let Call::Begins(name) = call else { return };
        let is_new = std::mem::replace(&mut observed.lock().1, name) != name;
        if is_new {
            say(&observed, &Event::Call(name.to_owned()));
        }
    };
    let net = Net::open(&library, task.version, Some(Arc::new(observer)))?;
    say(talk, &Event::Opened(net.version()));
    let count = net.devices()?;
    let all: Result<Vec<Properties>, NetError> =
        (0..count).map(|device| net.properties(device)).collect();
    let all = all?;
    say(talk, &Event::Devices(all.iter().map(DeviceFound::new).collect()));
    say(talk, &Event::Left(before.left_until_now()));

    if let Some(missing) = task.devices.iter().find(|device| **device >= count) {
        let text = format!("there is no device {missing}; the plugin has {count}");
        return Err(Failure::Call(text));
    }
    let timeout = Duration::from_millis(task.timeout_ms);
    for (device, props) in all.iter().enumerate() {
        if task.devices.is_empty() || task.devices.contains(&device) {
            try_device(&net, device, props, timeout, talk)?;
        }
    }
    Ok(())
}

fn try_device(
    net: &Net,
    device: usize,
    props: &Properties,
    timeout: Duration,
    talk: &Talk,
) -> Result<(), Failure> {
    let (mut sender, mut receiver) = connect(net, device, timeout)?;
    let not_tried = |what: String| say(talk, &Event::NotTried(what));
    if !props.takes_host() {
        not_tried(format!("memory of the host on device {device}, which takes none"));
    } else if props.is_host() {
        let mut pair = Pair::new(&mut sender, &mut receiver, timeout)?;
        for bytes in SIZES.into_iter().filter(|bytes| *bytes <= props.max_p2p_bytes) {
            say(talk, &Event::Transfer(pair.transfer(device, bytes, 1)?));
        }
        say(talk, &Event::Transfer(pair.transfer(device, BURST_BYTES, net.max_requests())?));
        // NCCL flushes only receives into memory of a GPU, unless the device asks for it.
        if props.force_flush {
            pair.flush()?;
        }
        let is_told = pair.is_told;
        pair.deregister()?;
        if !is_told {
            say(talk, &Event::Untold(device));
        }
    }
    sender.close()?;
    receiver.close()?;
    let carried = |place: &Place| {
        let ends = connect(net, device, timeout)?;
        let tell = |transfer| say(talk, &Event::Transfer(transfer));
        carried::transfers(device, ends, place, props.max_p2p_bytes, timeout, tell)
    };
    let of_gpu = format!("memory of a GPU on device {device}");
    if !(props.is_host() || props.is_unpack()) {
        let text = "which needs a kernel on the GPU to finish receives";
        not_tried(format!("transfers on device {device}, {text}"));
    } else {
        if props.takes_host() {
            carried(&Place::Host)?;
        }
        match props.takes_cuda().then(Place::on_gpu) {
            Some(Ok(gpu)) => carried(&gpu)?,
            Some(Err(why)) => not_tried(format!("{of_gpu}: there is none ({why})")),
            None if props.takes_dma_buf() => {
                not_tried(format!("{of_gpu}, which takes it by DMA-BUF alone"));
            }
            None => {}
        }
    }
    // What one connection leaves behind shows in the next.
    let (sender, receiver) = connect(net, device, timeout)?;
    receiver.close()?;
    sender.close()?;
    Ok(())
}

/// Connects a device to itself.
fn connect(net: &Net, device: usize, timeout: Duration) -> Result<(SendComm, RecvComm), Failure> {
    let until = Instant::now() + timeout;
    let mut listener: Listener = net.listen(device)?;
    let mut connector = net.connect(device, *listener.handle())?;
    let (mut sender, mut receiver) = (None, None);
    loop {
        if sender.is_none() {
            sender = connector.poll()?;
        }
        if receiver.is_none() {
            receiver = listener.accept()?;
        }
        let missing = match (&sender, &receiver) {
            (Some(_), Some(_)) => break,
            (None, _) => "connect",
            (_, None) => "accept",
        };
        if Instant::now() > until {
            let text =
                format!("{missing} gave no connection of device {device} to itself in {timeout:?}");
            return Err(Failure::Call(text));
        }
        sleep(PAUSE);
    }
    // Both are there, as the loop has ended.
    sender.zip(receiver).ok_or_else(|| Failure::Call("there is no connection".to_owned()))
}

/// A connection with memory at both ends.
struct Pair<'c> {
    sender: &'c mut SendComm,
    receiver: &'c mut RecvComm,
    from: Arc<HostMemory>,
    to: Arc<HostMemory>,
    out: polyrail_nccl_abi::Region,
    into: polyrail_nccl_abi::Region,
    timeout: Duration,
    seed: u64,
    is_told: bool,
}

impl<'c> Pair<'c> {
    fn new(
        sender: &'c mut SendComm,
        receiver: &'c mut RecvComm,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let most = SIZES.into_iter().max().unwrap_or_default() + GUARD;
        let memory = || {
            let memory = HostMemory::new(most).map(Arc::new);
            memory.ok_or_else(|| Failure::Call(format!("there are no {most} bytes of memory")))
        };
        let (from, to) = (memory()?, memory()?);
        let out = sender.register(from.clone())?;
        let into = receiver.register(to.clone())?;
        Ok(Self { sender, receiver, from, to, out, into, timeout, seed: 1, is_told: true })
    }

    /// Sends so many messages of a size, and compares what arrives and what lies behind it.
    fn transfer(
        &mut self,
        device: usize,
        bytes: usize,
        messages: usize,
    ) -> Result<Transfer, Failure> {
        let room = bytes + GUARD / 2;
        let stride = room + GUARD / 2;
        let expected: Vec<Vec<u8>> = (0..messages).map(|_| self.pattern(bytes)).collect();
        for (number, content) in expected.iter().enumerate() {
            self.from.write(number * stride, content);
            self.to.write(number * stride, &vec![POISON; room]);
        }
        let begun = Instant::now();
        self.exchange(bytes, room, stride, messages)?;
        let seconds = begun.elapsed().as_secs_f64();
        for (number, content) in expected.iter().enumerate() {
            let mut got = vec![0; room];
            self.to.read(number * stride, &mut got);
            let (message, behind) = got.split_at(bytes);
            let what = if message != content {
                let at = message.iter().zip(content).take_while(|(got, sent)| got == sent).count();
                format!("byte {at} of a message of {bytes} bytes is wrong")
            } else if behind != vec![POISON; behind.len()] {
                let at = behind.iter().take_while(|byte| **byte == POISON).count();
                format!("byte {at} behind a message of {bytes} bytes was written")
            } else {
                continue;
            };
            return Err(Failure::Data(format!("device {device}: {what}")));
        }
        Ok(Transfer { device, memory: "host".to_owned(), bytes, messages, seconds })
    }

    /// Posts all, receives first, and tests the oldest of each side, as NCCL does.
    fn exchange(
        &mut self,
        bytes: usize,
        room: usize,
        stride: usize,
        messages: usize,
    ) -> Result<(), Failure> {
        let until = Instant::now() + self.timeout;
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        let (mut received, mut sent) = (0, 0);
        while received < messages || sent < messages {
            let offset = receives.len() * stride;
            let part = Part { region: self.into, offset, bytes: room, tag: 0 };
            if receives.len() < messages
                && let Some(request) = self.receiver.irecv(&[part])?
            {
                receives.push(Some(request));
            }
            let part = Part { region: self.out, offset: sends.len() * stride, bytes, tag: 0 };
            if sends.len() < messages.min(receives.len())
                && let Some(request) = self.sender.isend(part)?
            {
                sends.push(request);
            }
            if let Some(request) = sends.get_mut(sent)
                && self.sender.test(request)?.is_some()
            {
                sent += 1;
            }
            if let Some(Some(request)) = receives.get_mut(received)
                && let Some(sizes) = self.receiver.test(request)?
            {
                self.is_told &= sizes.is_told();
                if sizes.is_told() && sizes.first() != bytes {
                    let got = sizes.first();
                    let text = format!("test tells {got} bytes for a message of {bytes}");
                    return Err(Failure::Data(text));
                }
                if let Some(request) = receives[received].take() {
                    self.receiver.consume(request)?;
                }
                received += 1;
            }
            if Instant::now() > until {
                let (what, count) = match (receives.len(), sends.len()) {
                    (posted, _) if posted < messages => ("irecv took no more than", posted),
                    (_, posted) if posted < messages => ("isend took no more than", posted),
                    _ if sent < messages => ("test finished no more sends than", sent),
                    _ => ("test finished no more receives than", received),
                };
                let of = format!("{messages} messages of {bytes} bytes");
                let text = format!("{what} {count} of {of} in {:?}", self.timeout);
                return Err(Failure::Call(text));
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + self.timeout;
        let part = Part { region: self.into, offset: 0, bytes: 1, tag: 0 };
        let Some(mut request) = self.receiver.iflush(&[part])? else { return Ok(()) };
        while self.receiver.test(&mut request)?.is_none() {
            if Instant::now() > until {
                return Err(Failure::Call(format!("a flush did not end in {:?}", self.timeout)));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    fn deregister(self) -> Result<(), Failure> {
        self.sender.deregister(self.out)?;
        self.receiver.deregister(self.into)?;
        Ok(())
    }

    /// Other bytes each time, so that what an earlier message left is noticed.
    fn pattern(&mut self, bytes: usize) -> Vec<u8> {
        self.seed += 1;
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..bytes.div_ceil(8)).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let mut all: Vec<u8> = words.collect();
        all.truncate(bytes);
        all
    }
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Answer { function: "test", .. } => Self::Data(error.to_string()),
            _ => Self::Call(error.to_string()),
        }
    }
}

/// What a plugin may change in its process.
struct State {
    threads: BTreeMap<OsString, Thread>,
    descriptors: BTreeMap<OsString, String>,
    environment: BTreeMap<OsString, OsString>,
    signals: BTreeMap<i32, usize>,
    cpus: String,
}

impl State {
    fn read() -> Self {
        let names = |folder: &str| -> Vec<OsString> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        };
        let thread = |id: OsString| {
            let of = format!("/proc/self/task/{}", id.display());
            let name = fs::read_to_string(format!("{of}/comm")).ok()?.trim_end().to_owned();
            Some((id, Thread { name, cpus: cpus(&format!("{of}/status"))? }))
        };
        let file = |number: OsString| {
            let target = fs::read_link(format!("/proc/self/fd/{}", number.display())).ok()?;
            Some((number, target.display().to_string()))
        };
        Self {
            threads: names("/proc/self/task").into_iter().filter_map(thread).collect(),
            descriptors: names("/proc/self/fd").into_iter().filter_map(file).collect(),
            environment: std::env::vars_os().collect(),
            signals: signal_handlers().into_iter().collect(),
            cpus: cpus("/proc/thread-self/status").unwrap_or_default(),
        }
    }

    fn left_until_now(&self) -> Left {
        let now = Self::read();
        let threads = now.threads.iter().filter(|(id, _)| !self.threads.contains_key(*id));
        let files = now.descriptors.iter();
        // The folder that is being read is open, too.
        let files = files.filter(|(number, target)| {
            self.descriptors.get(*number) != Some(*target) && !target.ends_with("/fd")
        });
        let mut environment = Vec::new();
        for (name, value) in &now.environment {
            match self.environment.get(name) {
                None => environment.push(format!("{} is set", name.display())),
                Some(old) if old != value => {
                    environment.push(format!("{} has another value", name.display()));
                }
                Some(_) => {}
            }
        }
        let gone = self.environment.keys().filter(|name| !now.environment.contains_key(*name));
        environment.extend(gone.map(|name| format!("{} is gone", name.display())));
        let changed =
            now.signals.iter().filter(|(signal, then)| self.signals.get(*signal) != Some(*then));
        let signals = changed.map(|(signal, then)| match then {
            0 => format!("signal {signal}: the default"),
            1 => format!("signal {signal}: it is ignored"),
            _ => format!("signal {signal}: a function is called"),
        });
        Left {
            threads: threads.map(|(_, thread)| thread.clone()).collect(),
            descriptors: files.map(|(_, target)| target.clone()).collect(),
            environment,
            signal_handlers: signals.collect(),
            caller_cpus: Some(now.cpus).filter(|cpus| *cpus != self.cpus),
        }
    }
}

fn cpus(status: &str) -> Option<String> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}
