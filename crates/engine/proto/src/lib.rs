//! Polyrail's protocol as a state machine: no socket, no clock, no thread, no payload.
//!
//! Each of two connected engines represents the other as a [`peer`] with two sides. Each side has the core of a
//! direction: a [`Sender`], a [`Receiver`]. Drivers (the engine over TCP, the tests over a simulated network) follow
//! one contract:
//!
//! * commands go in by plain verbs (`submit`, `cancel`), facts by `handle_*`, each with the time;
//! * the driver's next actions come out of `pull` (the next chunk for a flow) and `poll_*`;
//! * payload never enters, except the bytes that a [`Framer`] copies or seals: a chunk names places in memory, the
//!   driver moves the bytes.
//!
//! A **flow** is one byte stream (a TCP connection). Data travels one way on it, acknowledgements the other. [`wire`]
//! defines how both are framed, a [`Framer`] makes records from chunks, and [`FrameReader`] turns a byte stream back
//! into chunks without copying payload. [`hello`] defines the messages before the first frame.
//!
//! Policies are here, too, as functions of settings, facts and the time: which interfaces are rails ([`rails`]) and
//! which rails are paired ([`pairing`]), which path a request takes ([`path`]), how a connection begins ([`exchange`]),
//! when acknowledgements leave ([`AckQueue`]), when flows stall, rest and reconnect ([`liveness`]), how a peer comes
//! and goes ([`life`]), how much each peer may use ([`budget`], [`quotas`]) and leave in the [`inbox`], which region a
//! key finds ([`regions`]), which bytes of a bounce buffer are in use ([`ring`]), the progress of a copy within the
//! host ([`copying`]), whether two processes share memory ([`sharing`]), how long a progress thread stays with a flow,
//! polls and sleeps ([`progress`]), the counts of transfers ([`tally`]), how often to log a line that peers can trigger
//! ([`seldom`]), and defaults that follow from the machine ([`defaults`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acks;
pub mod budget;
mod codec;
pub mod copying;
mod deadlines;
pub mod defaults;
pub mod error;
pub mod exchange;
mod framer;
pub mod hello;
mod id;
pub mod inbox;
pub mod invitation;
pub mod life;
mod limits;
pub mod liveness;
pub mod matching;
pub mod message;
pub mod near;
pub mod pairing;
pub mod path;
pub mod peer;
pub mod placement;
mod plan;
pub mod progress;
mod proof;
pub mod published;
mod quota;
pub mod quotas;
pub mod rails;
mod range_set;
mod reader;
pub mod reason;
mod receiver;
pub mod regions;
pub mod ring;
pub mod seldom;
mod sender;
pub mod sharing;
pub mod tally;
pub mod wire;

pub use acks::{AckHold, AckPolicy, AckQueue, Burst};
pub use framer::{Framed, Framer, PayloadSource, Protection, Sink};
pub use id::{FlowIndex, InstanceId, RegionKey, Time, TransferId};
pub use limits::RequestLimits;
pub use plan::{MAX_CHUNK_BYTES, MAX_CHUNK_PIECES, MAX_CHUNKS, Piece, Plan, PlanError, Segment};
pub use quota::QuotaExceeded;
pub use range_set::RangeSet;
pub use reader::{FrameReader, Need, ReaderEvent};
pub use receiver::{
    DeliveryId, Landed, LandingId, Landings, Permission, Receiver, ReceiverLimits, ReceiverUsage,
    Settled, Verdict,
};
pub use sender::{Chunk, Failure, NewTransfer, Sender, SenderConfig, Source, TxEvent};
