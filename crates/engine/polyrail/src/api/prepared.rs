//! A request that is posted repeatedly.

use std::fmt;
use std::sync::Arc;

use polyrail_proto::error::PostError;
use polyrail_proto::near::numbers;
use polyrail_proto::path::TransferPath;

use crate::api::engine::Engine;
use crate::api::transfer::Transfer;
use crate::engine::peer::{OpKind, Prepared};

/// A request that is checked and cut into chunks, made by [`Engine::prepare`]: post it as often as you like, also while
/// an earlier post of it is under way.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// let halves = [(0, 2048), (2048, 2048)].map(|(at, len)| Ok((local.slice(at, len)?, remote.slice(at, len)?)));
/// let halves = halves.into_iter().collect::<Result<Vec<_>, polyrail::RegionError>>()?;
/// let prepared = engine.prepare(Request::write(&peer).segments(halves))?;
/// assert_eq!((prepared.bytes(), prepared.segments()), (4096, 1), "they continue each other");
/// println!("it goes by {}", prepared.path());
/// let transfers = [prepared.post()?, prepared.post()?];
/// for transfer in transfers {
///     transfer.join()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PreparedTransfer {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) engine: Engine,
}

impl PreparedTransfer {
    /// Posts the transfer. If the error's [`PostError::is_busy`] is true, post again once an older transfer is over.
    pub fn post(&self) -> Result<Transfer, PostError> {
        let shared = self.engine.shared();
        Ok(Transfer::new(shared.post(&self.prepared, None)?, shared.clone()))
    }

    /// Posts the transfer with this notification, instead of the request's own or none, for this post only. Nothing is
    /// prepared again. For writes only ([`PostError::NoNotification`]), with at most 64 KiB.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let prepared = engine.prepare(Request::write(&peer).segment(local.all(), remote.all()))?;
    /// for step in 0..3u64 {
    ///     local.write_at(0, &step.to_le_bytes())?;
    ///     prepared.post_with(step.to_le_bytes().to_vec())?.join()?;
    ///     let notification = other.wait_notification(soon).expect("it comes");
    ///     assert_eq!(notification.data, step.to_le_bytes());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post_with(&self, notification: Vec<u8>) -> Result<Transfer, PostError> {
        let shared = self.engine.shared();
        let kind = self.prepared.kind;
        if kind != OpKind::Write {
            return Err(PostError::NoNotification { kind: kind.name() });
        }
        shared.settings.request_limits().check_notification(&notification)?;
        Ok(Transfer::new(shared.post(&self.prepared, Some(notification))?, shared.clone()))
    }

    /// Payload bytes of each post.
    pub fn bytes(&self) -> u64 {
        self.prepared.plan.bytes()
    }

    /// Returns the path of the transfer's bytes, with its reason.
    pub fn path(&self) -> &TransferPath {
        &self.prepared.path
    }

    /// Returns the names of the rails here that are near the GPU whose memory is sent: they take its payload first, the
    /// others when these are busy. Empty where no rail is nearer than the others, or the peer sends. See
    /// docs/hosted-rails.md, and [`Engine::prepare`] for where it comes from.
    pub fn near_rails(&self) -> Vec<String> {
        if !self.prepared.kind.sends() {
            return Vec::new();
        }
        let (shared, pairs) = (self.engine.shared(), &self.prepared.peer.layout.pairs);
        numbers(self.prepared.near)
            .map(|pair| shared.rails[pairs.at(pair).0].name.clone())
            .collect()
    }

    /// Returns the number of segments after merging.
    pub fn segments(&self) -> usize {
        self.prepared.plan.segments().len()
    }
}

impl fmt::Debug for PreparedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bytes) = (self.prepared.kind.name(), self.bytes());
        write!(f, "PreparedTransfer({kind}, {bytes} bytes, {} segments)", self.segments())
    }
}
