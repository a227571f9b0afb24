//! Direct copies of messages by peers of this host: whether a peer may copy into memory here, and where the peer's
//! memory is.

use std::borrow::Cow;
use std::sync::Arc;

use polyrail_proto::RegionKey;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::message::CopyLeave;
use polyrail_proto::path::is_message_worth_a_copy;

use crate::engine::local_engines::engine_here;
use crate::engine::peer::{PeerShared, Prepared};
use crate::engine::state::{EngineShared, MessagePaths};
use crate::memory::region_core::{RegionCore, Touch};
use crate::path::export::is_offered;
use crate::path::import::import_known;
use crate::path::try_shared;

/// The paths between the processes of this host, and inside this one.
pub(crate) struct HostPaths;

impl MessagePaths for HostPaths {
    fn leave(
        &self,
        engine: &EngineShared,
        peer: &Arc<PeerShared>,
        receive: &Prepared,
    ) -> CopyLeave {
        if receive.touches_device {
            let knows = peer.card.capabilities.contains(Capabilities::SHARED_RECEIVES);
            let shares = knows && peer.beside.process.obstacle().is_none();
            return if shares { CopyLeave::Share } else { CopyLeave::No };
        }
        let knows = peer.card.capabilities.contains(Capabilities::COPIED_MESSAGES);
        let is_short =
            !is_message_worth_a_copy(receive.plan.bytes(), receive.plan.segments().len());
        if !peer.says_same_host || !knows || is_short {
            return CopyLeave::No;
        }
        if engine_here(peer.instance()).is_some() {
            let may = engine.settings.single_copy;
            return if may { CopyLeave::Yes } else { CopyLeave::No };
        }
        match receive.regions.iter().all(|region| is_offered(region, peer)) {
            true => CopyLeave::Yes,
            // The peer's request is answered with the reason.
            false => CopyLeave::Ask,
        }
    }

    fn region(
        &self,
        engine: &Arc<EngineShared>,
        peer: &Arc<PeerShared>,
        key: RegionKey,
    ) -> Result<Option<Arc<RegionCore>>, Cow<'static, str>> {
        let Some(other) = engine_here(peer.instance()) else {
            return import_known(engine, peer, key);
        };
        if !other.settings.single_copy {
            return Err("the peer's settings forbid it".into());
        }
        let Some(region) = other.registry.region(key) else { return Ok(None) };
        match region.allows(Touch::Write(engine.card.instance)) {
            true => Ok(Some(region)),
            false => Err("the peer may not write it".into()),
        }
    }

    fn ask_to_share(&self, engine: &Arc<EngineShared>, peer: &Arc<PeerShared>) {
        // If it can't, the peer's part of the state dump has the reason.
        let _ = try_shared::find_out(engine, peer);
    }
}
