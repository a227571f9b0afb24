//! A peer: implements writes, reads, sends, receives, messages and cancels.
//!
//! A peer has two sides, and each call takes one of them. A driver with several threads keeps each side behind one
//! lock, never takes both, and holds none of them during a system call.
//!
//! | side | its state |
//! |---|---|
//! | [`Outbound`] | the [`Sender`](crate::Sender) with the purpose of each transfer ([`Purpose`]); the [`Matcher`](crate::matching::Matcher); reads of the peer that are served; messages that the driver copies itself |
//! | [`Inbound`] | the [`Receiver`](crate::Receiver); reads and receives that wait for data; ends of these that wait until no thread lands anything for them; arrivals on their way to the user |
//!
//! **In.** Operations enter by plain verbs: [`Outbound::write`], [`Outbound::send`], [`Inbound::begin_read`],
//! [`Inbound::begin_receive`]. They end early by [`Outbound::cancel`] or [`Inbound::end`], by their deadline in
//! `handle_timeout` of both sides, and all at once by [`Outbound::lose`]. Facts enter by `handle_*` of the sides, of
//! [`Outbound::sender`] and of [`Inbound::receiver`].
//!
//! **Out.** [`Outbound::poll_end`] returns the results of operations and the driver's next actions ([`End`]).
//! [`Inbound::take`] fills a [`Delivery`] with arrivals. The driver acts on both when it holds no lock.
//!
//! **Between the sides** the driver passes messages, holding one lock and then the other:
//!
//! | from | what | to |
//! |---|---|---|
//! | [`Inbound::begin_read`], [`Inbound::begin_receive`] | [`AwaitedNews`]: the request, the announcement | [`Outbound::announce`] |
//! | [`Inbound::end`], [`Inbound::handle_timeout`], until [`Inbound::has_left`] | [`Leaving`]: a read or receive that is over here | [`Outbound::let_go`] |
//! | [`Delivered::Message`] | a message of the peer, for the side that [`Message::half`](crate::message::Message::half) names | `handle_message` of that side |
//! | [`End::Unannounced`] | a read or receive that could not be announced | [`Inbound::forget`] |
//! | [`Quotas`] | resources that the peer's messages take up, counted by `Outbound` | `Inbound`, which admits the next ones |
//!
//! **The driver's part.** Sockets, threads, memory: it decides whether a chunk may land in a region (the `memory` of
//! [`Inbound::handle_chunk`]), cuts memory into transfers ([`SendHost::source`]) and chooses the path of a message
//! ([`SendHost::path`]). It checks a read request against memory before [`Outbound::serve_read`]. Messages about
//! regions, shared memory and plugins ([`Half::Driver`](crate::message::Half::Driver)) concern only the driver;
//! [`imports`] and [`carriers`] hold its knowledge of the peer's regions and plugins. A read of many parts is one
//! operation that counts its parts.

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

/// The driver's handle of an operation. Clones are the same operation, and equal.
pub trait Operation: Clone + PartialEq {
    /// Memory and message of its transfers.
    type Source: Source;
    /// A copy of a message that the driver makes itself.
    type Copying;
    /// The driver's data for its own message ([`Outbound::tell_own`]), kept until that is over.
    type Own;

    /// Returns its payload: the whole transfer of a write, the local segments in order of other operations.
    fn plan(&self) -> &Plan;
    /// Returns its deadline.
    fn deadline(&self) -> Option<Time>;
    /// Returns whether it may still begin: it is not over, and was not withdrawn.
    fn may_begin(&self) -> bool;
    /// Marks it as withdrawn: its end is on its way to the user, so it may not begin.
    fn withdraw(&self);
    /// Returns the transfer that carries its payload, once there is one.
    fn transfer(&self) -> Option<TransferId>;
    /// Sets that transfer.
    fn set_transfer(&self, transfer: TransferId);
    /// Returns a transfer without payload, caused by `operation`.
    fn message(operation: Option<&Self>, meta: Vec<u8>) -> Self::Source;
}
