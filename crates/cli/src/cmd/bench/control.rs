//! What the two ends say to each other: questions and answers as JSON, in notifications of the
//! engine that is measured. No second connection is needed, and none can disturb the first.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polyrail::{Engine, Notification, Peer, Transfer};
use polyrail_report::{Host, MemoryPlace, PeerSample, PlacedThread, Setting, Tool, exit};
use serde::{Deserialize, Serialize};

use super::buffers::{Mismatch, Verify};
use super::error::BenchError;
use super::layout::Layout;
use super::plan::Op;

/// Raised whenever a message changes; ends of different versions refuse each other.
pub(super) const CONTROL_VERSION: u32 = 4;

/// What the measuring end asks the serving end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(super) enum Ask {
    Hello {
        control_version: u32,
    },
    /// Sent while waiting for a long answer, to notice a peer that died. Gets no answer.
    StillThere,
    /// Make another engine, on this rail alone, for the same client.
    OpenRail {
        rail: usize,
    },
    /// Make another engine, like the first but for the number of channels, for the same client.
    OpenOther {
        channels: Option<u32>,
    },
    SetUp(SetUp),
    Poison,
    /// Take part in a sample of this many transfers.
    Begin {
        transfers: u64,
    },
    End,
    Verify {
        mode: Verify,
        slots: u64,
        round: u64,
    },
    TearDown,
    RawOpen(RawSpec),
    /// All connections are made; accept them.
    RawAccept,
    RawBegin {
        pieces: u64,
    },
    RawEnd,
    RawVerify,
    RawClose,
    /// Where the progress threads run.
    Threads,
    Bye,
}

/// One size's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SetUp {
    pub(super) op: Op,
    pub(super) layout: Layout,
    pub(super) depth: u64,
    pub(super) bidir: bool,
    pub(super) latency: bool,
    /// Of the data that the asking end sends; the other end's is one more.
    pub(super) seed: u64,
    /// Of the asking end, as [`process`] gives it.
    pub(super) process: u64,
    /// Look at CPUs and threads one by one.
    #[serde(default)]
    pub(super) sample: bool,
    pub(super) regions: Regions,
}

/// Descriptions of regions, in hexadecimal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Regions {
    pub(super) source: Option<String>,
    pub(super) dest: Option<String>,
}

/// A baseline of plain sockets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RawSpec {
    /// Connections in each direction in use.
    pub(super) flows: usize,
    /// Bytes of each write and read call.
    pub(super) piece: u64,
    /// Memory that each flow walks through, in bytes; a multiple of `piece`.
    pub(super) area: u64,
    pub(super) to_peer: bool,
    pub(super) to_us: bool,
    /// Bounce one piece to and fro instead of streaming.
    pub(super) ping_pong: bool,
    /// Empty leaves the system's choice.
    pub(super) congestion: String,
    pub(super) send_buffer: u64,
    pub(super) recv_buffer: u64,
    pub(super) seed: u64,
}

/// What the serving end answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(super) enum Answer {
    /// Sent while nothing is asked for long, to notice a client that died. Answers nothing.
    StillHere,
    Hello(Box<About>),
    Opened {
        address: SocketAddr,
    },
    Ready(Regions),
    Done,
    Counted(Box<Counted>),
    Verified {
        bytes: u64,
    },
    Mismatch(Mismatch),
    RawReady {
        addresses: Vec<SocketAddr>,
    },
    RawAccepted {
        congestion: String,
    },
    RawCounted {
        cpu_seconds: f64,
    },
    Threads {
        threads: Vec<PlacedThread>,
    },
    Failed {
        message: String,
        help: Option<String>,
        code: u8,
    },
}

/// What the serving end says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) control_version: u32,
    pub(super) tool: Tool,
    pub(super) host: Host,
    pub(super) config: BTreeMap<String, Setting>,
    pub(super) memory: MemoryPlace,
}

/// What the serving end saw of a sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) sample: PeerSample,
    /// The rest of what the verdict needs.
    pub(super) load: super::observe::Load,
    /// By rail, what it sent and how that went.
    pub(super) rails: Vec<super::observe::RailDelta>,
    /// How often only its engine's periodic look brought transfers on.
    pub(super) rescues: Option<u64>,
}

/// One end of the conversation.
pub(super) struct Link<'a> {
    pub(super) engine: &'a Engine,
    pub(super) peer: Peer,
    /// Notifications that came while something else was awaited.
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl<'a> Link<'a> {
    pub(super) fn new(engine: &'a Engine, peer: Peer) -> Self {
        Self { engine, peer, waiting: Mutex::default() }
    }

    /// Asks and waits for the answer. A failure at the other end becomes an error here.
    pub(super) fn ask(&self, ask: &Ask) -> Result<Answer, BenchError> {
        self.say(ask)?;
        let name = ask.name();
        let started = Instant::now();
        loop {
            if let Some(bytes) = self.next(KEEP_ALIVE) {
                return match decode(&bytes, name)? {
                    Answer::StillHere => continue,
                    Answer::Failed { message, help, code } => {
                        Err(BenchError::Remote { message, help, code })
                    }
                    Answer::Mismatch(mismatch) => Err(BenchError::Mismatch(mismatch)),
                    answer => Ok(answer),
                };
            }
            let waited = started.elapsed();
            if waited > SILENCE_MAX {
                return Err(BenchError::Silent { ask: name, waited });
            }
            // Its delivery fails when the peer is gone.
            self.say(&Ask::StillThere)?;
        }
    }

    /// As [`Link::ask`], where nothing but [`Answer::Done`] is expected.
    pub(super) fn tell(&self, ask: &Ask) -> Result<(), BenchError> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(ask, &other)),
        }
    }

    pub(super) fn answer(&self, answer: &Answer) -> Result<(), BenchError> {
        self.say(answer)
    }

    /// Lets the server go on to its next client. It closes at once, so that it may be gone before
    /// it could say that it has heard.
    pub(super) fn say_good_bye(&self) {
        let _ = self.say(&Ask::Bye);
    }

    /// The next notification of this peer, or `None` after `timeout`.
    pub(super) fn next(&self, timeout: Duration) -> Option<Vec<u8>> {
        if let Some(bytes) = self.waiting().pop_front() {
            return Some(bytes);
        }
        let started = Instant::now();
        loop {
            let left = timeout.checked_sub(started.elapsed())?;
            let notification = self.engine.wait_notification(left)?;
            if self.put_back(notification) {
                return self.waiting().pop_front();
            }
        }
    }

    /// Keeps a notification for [`Link::next`]; one of a stranger is answered and not kept.
    pub(super) fn put_back(&self, notification: Notification) -> bool {
        let Notification { peer, data, .. } = notification;
        let is_ours = peer == self.peer;
        if is_ours {
            self.waiting().push_back(data);
        } else {
            refuse_second(self.engine, &peer);
        }
        is_ours
    }

    /// Whether the peer said something that nobody has heard yet.
    pub(super) fn has_news(&self) -> bool {
        for notification in self.engine.take_notifications() {
            self.put_back(notification);
        }
        !self.waiting().is_empty()
    }

    /// Each change of the queue is whole, so that a panic elsewhere leaves it usable.
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message; an error when the peer can't be reached any more.
    fn say(&self, message: &impl Serialize) -> Result<(), BenchError> {
        let bytes = serde_json::to_vec(message)
            .map_err(|error| BenchError::system("writing a control message", error.into()))?;
        let transfer = self.engine.notify(&self.peer, &bytes)?;
        wait_patiently(&transfer)
    }
}

/// Waits for a small transfer; the engine's own deadlines end it when the peer is gone.
fn wait_patiently(transfer: &Transfer) -> Result<(), BenchError> {
    match transfer.wait(SILENCE_MAX) {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error.into()),
        None => Err(BenchError::Silent { ask: "a control message", waited: SILENCE_MAX }),
    }
}

/// A server serves one client at a time; another one is told so at once.
pub(super) fn refuse_second(engine: &Engine, peer: &Peer) {
    let busy = Answer::Failed {
        message: "another client is being served".into(),
        help: Some("try again when it is done".into()),
        code: exit::PEER,
    };
    // Whether the stranger hears it is its own concern.
    if let Ok(bytes) = serde_json::to_vec(&busy)
        && let Ok(transfer) = engine.notify(peer, &bytes)
    {
        transfer.detach();
    }
}

/// Reads an answer.
fn decode(bytes: &[u8], ask: &'static str) -> Result<Answer, BenchError> {
    serde_json::from_slice(bytes).map_err(|_| {
        let answer =
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).escape_debug().to_string();
        BenchError::Protocol { ask, answer }
    })
}

pub(super) fn unexpected(ask: &Ask, answer: &Answer) -> BenchError {
    let answer = serde_json::to_string(answer).unwrap_or_default();
    BenchError::Protocol { ask: ask.name(), answer: answer.chars().take(80).collect() }
}

impl Ask {
    /// As in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::StillThere => "still_there",
            Self::OpenRail { .. } => "open_rail",
            Self::OpenOther { .. } => "open_other",
            Self::SetUp(_) => "set_up",
            Self::Poison => "poison",
            Self::Begin { .. } => "begin",
            Self::End => "end",
            Self::Verify { .. } => "verify",
            Self::TearDown => "tear_down",
            Self::RawOpen(_) => "raw_open",
            Self::RawAccept => "raw_accept",
            Self::RawBegin { .. } => "raw_begin",
            Self::RawEnd => "raw_end",
            Self::RawVerify => "raw_verify",
            Self::RawClose => "raw_close",
            Self::Threads => "threads",
            Self::Bye => "bye",
        }
    }
}

/// A number that no other process has, not even one in another container of this machine.
pub(super) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40
    })
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}

/// How long to wait for an answer before asking whether the peer is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How long a peer that is there may take for an answer. Verifying is slowest: 100 GB take about
/// half a minute.
const SILENCE_MAX: Duration = Duration::from_secs(120);
