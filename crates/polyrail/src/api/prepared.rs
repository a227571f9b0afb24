//! A request that is posted again and again.

use std::fmt;
use std::sync::Arc;

use crate::api::engine::Engine;
use crate::api::error::PostError;
use crate::api::transfer::Transfer;
use crate::engine::path::TransferPath;
use crate::engine::prepared::Prepared;

/// A request that is checked and cut into chunks: post it as often as you like, also while an
/// earlier post of it is under way.
#[derive(Clone)]
pub struct PreparedTransfer {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) engine: Engine,
}

impl PreparedTransfer {
    /// Posts it. [`PostError::is_busy`] means: again, once an older transfer is over.
    pub fn post(&self) -> Result<Transfer, PostError> {
        let shared = self.engine.shared();
        Ok(Transfer::new(shared.post(&self.prepared)?, shared.clone()))
    }

    /// Payload bytes of each post.
    pub fn bytes(&self) -> u64 {
        self.prepared.plan.bytes()
    }

    /// How its bytes travel, and why so.
    pub fn path(&self) -> &TransferPath {
        &self.prepared.path
    }

    /// Segments after merging.
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
