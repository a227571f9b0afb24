//! The process in which a foreign plugin is tried. It reports its calls and findings as lines of JSON.
//!
//! The lines go over a socket that is its standard input: plugins write to the other two.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polyrail_carrier::DEVICES_MAX;
use polyrail_nccl_abi::{
    Call, Library, Listener, LoadError, Net, NetError, Properties, RecvComm, SendComm, log_to,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::carried::{self, Place};
use super::findings::{CloseFault, DeviceFound, Left, TableFound, Transfer};
use super::left::State;
use super::pair::{Pair, SIZES};
use super::watch::Watch;

/// The plugin to try, and the extent of the trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) library: String,
    pub(super) version: Option<u32>,
    /// Devices to try; all if this is empty.
    pub(super) devices: Vec<usize>,
    /// Time limit of each call, connection and round of messages.
    pub(super) timeout_ms: u64,
    /// Whether only to load the plugin and ask for its devices.
    pub(super) is_look: bool,
}

/// A line of the canary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// The function that is called now. Calls of it in a row are reported at most once a second.
    Call(String),
    Tables(Vec<TableFound>),
    Opened(u32),
    Devices(Vec<DeviceFound>),
    Transfer(Transfer),
    NotTried(String),
    /// This device does not report the lengths of received messages.
    Untold(usize),
    Left(Left),
    /// A call that was to end something, and failed.
    NotClosed(CloseFault),
    Log {
        is_warning: bool,
        text: String,
    },
    Failed(Failure),
    Done,
}

/// Reason why the canary can't go on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failure {
    /// The library is missing: the error, and its fix.
    Missing(String, String),
    /// The library is not a plugin: the error, and its fix.
    Load(String, String),
    Call(String),
    Data(String),
}

/// Size of messages of which as many as possible are under way at a time.
const BURST_BYTES: usize = 10_007;
pub(super) const POISON: u8 = 0xee;
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Tries the plugin, and reports everything over standard input.
pub(super) fn work(task: &Task) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let watch = Watch::start(socket, Duration::from_millis(task.timeout_ms))?;
    let logs = Arc::clone(&watch);
    log_to(Box::new(move |level, _, text| {
        let is_warning = level == polyrail_nccl_abi::LogLevel::Warn as i32;
        logs.say(&Event::Log { is_warning, text: text.to_owned() });
    }));
    let before = State::read();
    let done = examine(task, &watch, &before);
    watch.say(&Event::Left(before.left_until_now()));
    watch.close_faults().into_iter().for_each(|fault| watch.say(&Event::NotClosed(fault)));
    watch.say(&done.map_or_else(Event::Failed, |()| Event::Done));
    Ok(())
}

fn examine(task: &Task, watch: &Arc<Watch>, before: &State) -> Result<(), Failure> {
    watch.hear(Call::Begins("dlopen"));
    let library = Library::open(&task.library)?;
    watch.hear(Call::Ends("dlopen", Some(0)));
    let tables = library.tables().into_iter();
    watch.say(&Event::Tables(tables.map(|(version, name)| TableFound { version, name }).collect()));

    let observed = Arc::clone(watch);
    let net = Net::open(&library, task.version, Some(Arc::new(move |call| observed.hear(call))))?;
    watch.say(&Event::Opened(net.version()));
    let count = net.devices()?;
    // A look makes no engine, so it asks for only as many devices as an engine takes.
    let asked = if task.is_look { count.min(DEVICES_MAX) } else { count };
    if task.devices.is_empty() && asked > DEVICES_MAX {
        return Err(Failure::Call(format!(
            "the plugin has {count} devices; an engine takes 1 to {DEVICES_MAX}: name some with --device"
        )));
    }
    let all: Result<Vec<Properties>, NetError> =
        (0..asked).map(|device| net.properties(device)).collect();
    let all = all?;
    watch.say(&Event::Devices(all.iter().map(DeviceFound::new).collect()));
    watch.say(&Event::Left(before.left_until_now()));
    if task.is_look {
        return Ok(());
    }
    if let Some(missing) = task.devices.iter().find(|device| **device >= count) {
        let text = format!("there is no device {missing}; the plugin has {count}");
        return Err(Failure::Call(text));
    }
    let timeout = Duration::from_millis(task.timeout_ms);
    for (device, props) in all.iter().enumerate() {
        if task.devices.is_empty() || task.devices.contains(&device) {
            try_device(&net, device, props, timeout, watch)?;
        }
    }
    Ok(())
}

fn try_device(
    net: &Net,
    device: usize,
    props: &Properties,
    timeout: Duration,
    watch: &Watch,
) -> Result<(), Failure> {
    let (mut sender, mut receiver) = connect(net, device, timeout)?;
    let not_tried = |what: String| watch.say(&Event::NotTried(what));
    if !props.takes_host() {
        not_tried(format!("memory of the host on device {device}, which takes none"));
    } else if props.is_host() {
        let mut pair = Pair::new(&mut sender, &mut receiver, timeout)?;
        for bytes in SIZES.into_iter().filter(|bytes| *bytes <= props.max_p2p_bytes) {
            watch.say(&Event::Transfer(pair.transfer(device, bytes, 1)?));
        }
        watch.say(&Event::Transfer(pair.transfer(device, BURST_BYTES, net.max_requests())?));
        // NCCL flushes only receives into memory of a GPU, unless the device asks for it.
        if props.force_flush {
            pair.flush()?;
        }
        let is_told = pair.is_told;
        pair.deregister()?;
        if !is_told {
            watch.say(&Event::Untold(device));
        }
    }
    ended(sender.close())?;
    ended(receiver.close())?;
    let carried = |place: &Place| {
        let ends = connect(net, device, timeout)?;
        let tell = |transfer| watch.say(&Event::Transfer(transfer));
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
    // Another connection shows what the earlier ones left behind.
    let (sender, receiver) = connect(net, device, timeout)?;
    ended(receiver.close())?;
    ended(sender.close())
}

/// Ignores a failed call that was to end something. The watch reports it, and the trial goes on.
pub(super) fn ended(done: Result<(), NetError>) -> Result<(), Failure> {
    match done {
        Err(NetError::Failed { .. }) => Ok(()),
        done => Ok(done?),
    }
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
    // Both exist, as the loop has ended.
    sender.zip(receiver).ok_or_else(|| Failure::Call("there is no connection".to_owned()))
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        let (text, help) = (error.to_string(), error.help());
        match error {
            LoadError::Missing { .. } => Self::Missing(text, help),
            _ => Self::Load(text, help),
        }
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
