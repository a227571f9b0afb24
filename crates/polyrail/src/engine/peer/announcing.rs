//! Work for the proxies that send to a peer: who is asked, and who has asked some and not yet all.

use std::sync::atomic::Ordering;

use polyrail_proto::Time;

use super::{PeerShared, TxSide};
use crate::engine::pass::Pass;
use crate::wake::tx_proxies::AskedProxies;

impl PeerShared {
    /// Says that there is something to send, enough for so many proxies. If a flow is down, all are
    /// asked: the first ones may have none.
    pub(crate) fn want_tx(&self, proxies: usize) -> AskedProxies<'_> {
        let some_down = self.flows_up() < self.flows.len();
        self.tx_proxies.want(if some_down { usize::MAX } else { proxies })
    }

    /// Has the flows pull that the sender core wants to: chunks were left to them, or denied to them
    /// until now.
    pub(crate) fn wake_wanted(&self, tx: &mut TxSide, pass: &Pass<'_>) {
        for flow in tx.sender.wakes(Time(pass.now)) {
            pass.engine.ask(self, self.flows[flow.0 as usize].proxy);
        }
    }
}

/// While it lives, a thread makes work for the proxies of a peer and has not told all of them. It
/// may lose its CPU there for long.
pub(crate) struct Announcing<'a> {
    peer: &'a PeerShared,
    /// Nobody else did when it began.
    pub(crate) is_alone: bool,
}

impl<'a> Announcing<'a> {
    pub(crate) fn begin(peer: &'a PeerShared) -> Self {
        let is_alone = peer.announcing.fetch_add(1, Ordering::AcqRel) == 0;
        Self { peer, is_alone }
    }
}

impl Drop for Announcing<'_> {
    fn drop(&mut self) {
        self.peer.announcing.fetch_sub(1, Ordering::AcqRel);
    }
}
