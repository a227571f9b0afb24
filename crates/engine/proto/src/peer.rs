//! A peer: what writes, reads, sends, receives, messages and cancels do.
//!
//! A peer has two halves, and each call takes one of them. A driver with several threads keeps each half
//! behind one lock, never takes both, and holds none of them during a system call.
//!
//! | half | its state |
//! |---|---|
//! | [`Outbound`] | the [`Sender`](crate::Sender) with what each of its transfers is for ([`Purpose`]); the [`Matcher`](crate::matching::Matcher); reads of the peer that are served; messages that the driver copies itself |
//! | [`Inbound`] | the [`Receiver`](crate::Receiver); reads and receives that wait for data; ends of these that wait until no thread lands anything for them; arrivals on their way to the user |
//!
//! **In.** Operations enter by plain verbs: [`Outbound::write`], [`Outbound::send`],
//! [`Inbound::begin_read`], [`Inbound::begin_receive`]. They end early by [`Outbound::cancel`] or
//! [`Inbound::end`], by their deadline in `handle_timeout` of both halves, and all at once by
//! [`Outbound::lose`]. Facts enter by `handle_*` of the halves, of [`Outbound::sender`] and of [`Inbound::receiver`].
//!
//! **Out.** [`Outbound::poll_end`] returns what became of operations and what the driver is to do ([`End`]).
//! [`Inbound::take`] fills a [`Delivery`] with what arrived. Both are acted on when no lock is held.
//!
//! **Between the halves** go messages, by the hand of the driver, which holds one lock and then the other:
//!
//! | from | what | to |
//! |---|---|---|
//! | [`Inbound::begin_read`], [`Inbound::begin_receive`] | [`AwaitedNews`]: the request, the announcement | [`Outbound::announce`] |
//! | [`Inbound::end`], [`Inbound::handle_timeout`], until [`Inbound::has_left`] | [`Leaving`]: a read or receive that is over here | [`Outbound::let_go`] |
//! | [`Delivered::Message`] | a message of the peer, for the half that [`Message::half`](crate::message::Message::half) names | `handle_message` of that half |
//! | [`End::Unannounced`] | a read or receive of which the peer does not hear | [`Inbound::forget`] |
//! | [`Quotas`] | what the peer's messages take up, which `Outbound` counts | `Inbound`, which admits the next ones |
//!
//! **What the driver keeps.** Sockets, threads, memory: it decides whether a chunk may land in a region
//! (the `memory` of [`Inbound::handle_chunk`]), cuts memory into transfers ([`SendHost::source`]) and
//! chooses the way of a message ([`SendHost::path`]). A request to read is checked against memory
//! before [`Outbound::serve_read`] sees it. Messages about regions, shared memory and plugins
//! ([`Half::Driver`](crate::message::Half::Driver)) are the driver's alone; [`imports`] and [`carriers`] are what it knows of
//! the peer's regions and plugins. A read of many parts is one operation that counts its parts.

pub mod carriers;
pub mod imports;
mod inbound;
mod operation;
mod outbound;
mod places;
mod quotas;

pub use inbound::{
    Arrival, AskedBy, Awaited, AwaitedFailure, AwaitedNews, Delivered, Delivery, Inbound, Leaving,
    NewReceive, ReadQuestion, WaitingReceive,
};
pub use operation::OpKind;
pub use outbound::{End, Outbound, Purpose, ReadBreach, SendHost, SendPath};
pub use places::{covers, pair_places};
pub use quotas::Quotas;

use crate::id::{Time, TransferId};
use crate::plan::Plan;
use crate::sender::Source;

/// The driver's handle on an operation. Clones are the same operation, and equal.
pub trait Operation: Clone + PartialEq {
    /// Memory and message of its transfers.
    type Source: Source;
    /// A copy of a message that the driver makes itself.
    type Copying;
    /// What the driver keeps with a message of its own ([`Outbound::tell_own`]) until that is over.
    type Own;

    /// Its payload: the whole transfer of a write, the local segments in order of other operations.
    fn plan(&self) -> &Plan;
    /// Its deadline.
    fn deadline(&self) -> Option<Time>;
    /// Whether it may still begin: it is not over, and was not withdrawn.
    fn may_begin(&self) -> bool;
    /// Its end is on its way to the user: it may not begin any more.
    fn withdraw(&self);
    /// The transfer that carries its payload, once there is one.
    fn transfer(&self) -> Option<TransferId>;
    /// Notes that transfer.
    fn set_transfer(&self, transfer: TransferId);
    /// A transfer without payload, which `operation` is the cause of.
    fn message(operation: Option<&Self>, meta: Vec<u8>) -> Self::Source;
}
