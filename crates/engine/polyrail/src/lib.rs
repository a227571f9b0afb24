//! Move memory between processes and machines over many TCP rails at once.
//!
//! An [`Engine`] is what one process runs. It finds a [`Peer`] by metadata or address, registers
//! memory as [`Region`]s, and moves bytes between them: one-sided [`Engine::write`] and
//! [`Engine::read`], two-sided [`Engine::send`] and [`Engine::receive`] by tag, and notifications.
//! Each transfer is cut into chunks that every rail pulls as fast as it can carry them.
//!
//! ```
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! # Waiting
//!
//! Calls that take time return a handle: a [`Transfer`], a [`Connecting`], the end of a peer ([`Gone`]).
//! `wait(timeout)` returns `None` if the handle is not done, which is not a failure; `join()` waits for the end;
//! `try_wait()` only looks; and `.await` needs no particular runtime. A timeout of zero only looks, too, here and
//! everywhere else: it does not block, and may find a result. [`Engine::next_notification`] and [`Engine::accept`] are
//! the futures for [`Engine::wait_notification`] and [`Engine::accept_peer`]. Other event loops poll [`Events`]. All
//! types may be sent to other threads and used by several at a time, except futures that are polled.
//!
//! The thread that ends a wait wakes it; no timer does. With `progress = caller` data moves only while the program
//! calls: each poll of a future moves some and asks to be polled again at once, so the task is busy until it is ready;
//! and a loop has to call [`Engine::progress`].
//!
//! # The program's own code
//!
//! An [`Observer`], a [`Mailbox`], the closure of [`Request::on_end`], the hook of
//! [`EngineBuilder::admit`] and the wakers of futures are called by the engine.
//!
//! * They run on the thread where the thing happens: a thread of the engine (`pr-tx…`, `pr-rx…`,
//!   `pr-control`), or one of the program's that posts, cancels, waits or polls. Several may run at
//!   a time. The hook has threads of its own.
//! * They may post, cancel, and remove peers. Ends that this causes are reported after they have returned. They should
//!   not wait: nothing else moves on that thread meanwhile, so a wait for something that it would move ends by its
//!   timeout or deadline. [`Mailbox::place`] is called with a lock held, and must not post either.
//! * They return no error: a mailbox refuses with `None`, a hook with a reason. The result of the
//!   transfer is that of the bytes, whatever a listener does.
//! * A panic is caught, logged, and counted in [`Stats::callback_panics`]. The transfer ends as if it had not been; a
//!   mailbox refuses, the hook refuses. The values that a closure holds may panic when they are dropped, too. With
//!   `panic = "abort"` panics can't be caught.
//!
//! # After the end
//!
//! [`Engine::close`], or dropping the last clone, ends all transfers with
//! [`TransferError::PeerLost`] and [`LostReason::EngineClosed`]. From then on requests are refused with
//! [`PostError::Closed`], peers with [`PeerError::Closed`], and memory with [`RegionError::Closed`]; futures and waits for notifications
//! and peers return `None` once what had come is taken. [`Transfer`], [`Peer`], [`Region`] and
//! [`PreparedTransfer`] stay valid and say how things ended; regions keep their bytes.
//! After [`Region::end`], or when all its clones are dropped, its slices fail with
//! [`PostError::RegionDropped`]. In a process that was forked everything is refused with `Forked` or
//! returns nothing, at once, and dropping does nothing.
//!
//! # Errors
//!
//! Each family of calls has an error type; [`Explain`] gives its help and its exit code. [`exit`] prints both at the
//! end of a program, and `{:?}` prints the text and the help. Reasons
//! are types ([`LostReason`], [`ConnectReason`], [`RefusalCode`], [`RefusedCode`]); their texts are
//! for people and may change. An error changes nothing: what was refused has not begun.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Folders use those below them, and never one above: `crates/test/testkit/tests/modules` refuses a
// circle.
//
//     api        what users hold
//     control    starts the engine; the control thread
//     diag       what an engine tells about itself
//     proxy      drives flows
//     sender     the sending end of a flow
//     receiver   the receiving end of a flow
//     path       finds ways that are better than the rails
//     engine     its state, peers and operations; handles of proxies and the control thread
//     device     staging, peer copies, shared memory
//     memory     regions
//     wake       who is asked, who is woken, who may sleep
//     base       errors, calls of the user's code, ways to wait
mod api;
mod base;
mod control;
mod device;
mod diag;
mod engine;
mod memory;
mod path;
mod proxy;
mod receiver;
mod sender;
mod sync;
mod wake;

pub use api::builder::EngineBuilder;
pub use api::connecting::Connecting;
pub use api::engine::Engine;
pub use api::exit::exit;
pub use api::gone::Gone;
pub use api::prepared::PreparedTransfer;
pub use api::publish::{PublishedEngine, read_published, read_published_file};
pub use api::rails::{RailInfo, left_out, rails};
pub use api::register::{Registrable, WithAccess};
pub use api::request::Request;
pub use api::tasks::{Accept, Events, NextNotification};
pub use api::transfer::Transfer;
pub use base::certificate_files::CertificatesError;
pub use base::error::{EngineError, Explain, RegionError};
pub use base::secret_file::SecretFileError;
pub use diag::stats::{
    FlowSnapshot, PathStats, PeerStats, ProxyStats, RailStats, Stats, UnusedRail,
};
pub use engine::inbox::Notification;
pub use engine::joining::{Admission, Incoming};
pub use engine::observer::{Observer, Watch};
pub use engine::outcome::{OnEnd, Outcome};
pub use engine::peer_handle::Peer;
pub use engine::totals::Totals;
pub use memory::access::Access;
pub use memory::region::Region;
pub use memory::region_core::RegionSlice;
pub use memory::registry::{Mailbox, OpenMailbox};
pub use memory::remote_region::{RemoteRegion, RemoteSlice};
pub use polyrail_config::{Config, Progress};
pub use polyrail_gpu::cuda::Cuda;
pub use polyrail_gpu::{DeviceMemory, GpuError};
pub use polyrail_proto::InstanceId;
pub use polyrail_proto::error::{PeerError, PostError, TransferError};
pub use polyrail_proto::hello::RefusedCode;
pub use polyrail_proto::invitation::{Invitation, InvitationError};
pub use polyrail_proto::path::{OnlyPath, PathKind, PathObstacle, PathReason, TransferPath};
pub use polyrail_proto::rails::LeftOut;
pub use polyrail_proto::reason::{
    ConnectReason, Flows, LostReason, MessageHalf, Refusal, TransferProgress, Whose,
};
pub use polyrail_proto::wire::RefusalCode;
pub use polyrail_secure::{
    CertificateError, CertificateFileError, HandshakeError, Proof, Role, SecretsError, UnixSeconds,
    new_secret,
};
pub use polyrail_sys::Memory;

/// Operations in the type of a [`Request`].
pub mod operation {
    pub use crate::api::request::{OneSided, Operation, Read, Receive, Send, TwoSided, Write};
}
