//! Peers of an engine: adding, accepting, finding, watching and removing them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use polyrail_proto::InstanceId;
use polyrail_proto::error::PeerError;
use polyrail_proto::invitation::Invitation;

use crate::api::connecting::Connecting;
use crate::api::engine::Engine;
use crate::api::observer::Watch;
use crate::api::publish;
use crate::api::tasks::Accept;
use crate::engine::peer_handle::Peer;

impl Engine {
    /// Adds a peer by its metadata. Flows are connected in the background; transfers may be posted at once and wait for
    /// them, at most `peer_timeout_ms`.
    pub fn add_peer(&self, metadata: &[u8]) -> Result<Peer, PeerError> {
        let metadata = publish::decode_metadata(metadata)?;
        Ok(Peer { shared: self.shared().add_peer(metadata)? })
    }

    /// Adds the peer that listens on `address`, any of its rails, once it has answered.
    ///
    /// An address proves nothing. So both ends must have the same secret (setting `secret_file`), or be processes of
    /// one user on one host, or both be set to `auth=none`; otherwise the peer refuses
    /// ([`crate::RefusedCode::Unproven`]).
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let address = other.addresses()[0];
    /// assert_eq!(engine.connect(address).join()?, peer, "it is known already");
    /// engine.remove_peer(&peer);
    /// assert!(peer.lost().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(&self, address: SocketAddr) -> Connecting {
        Connecting::new(self.clone(), address, self.shared().introduce(vec![address], None))
    }

    /// Adds the peer that listens on `address` and gave this invitation, once it has answered; no other engine can
    /// answer for it.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let wrong = engine.invitation();
    /// let address = other.addresses()[0];
    /// assert!(other.connect_by(engine.addresses()[0], &other.invitation()).join().is_err());
    /// assert!(engine.connect_by(address, &wrong).join().is_err());
    /// assert_eq!(engine.connect_by(address, &other.invitation()).join()?, peer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_by(&self, address: SocketAddr, invitation: &Invitation) -> Connecting {
        let asked = self.shared().introduce(vec![address], Some(invitation.clone()));
        Connecting::new(self.clone(), address, asked)
    }

    /// Adds the peer that listens on any of these addresses, as [`Engine::connect`] does, or as [`Engine::connect_by`]
    /// with an invitation. The addresses are tried one after the other, 200 ms apart or as soon as one fails, and the
    /// first answer counts: so one address that can be reached from here is enough.
    ///
    /// # Errors
    /// The most specific error of all addresses: an engine's refusal before an error of the system.
    /// [`PeerError::Connect`] with [`crate::ConnectReason::NoAnswer`] if there is no address.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let closed = std::net::SocketAddr::from(([127, 0, 0, 9], 9));
    /// let addresses = [&[closed], &other.addresses()[..]].concat();
    /// assert_eq!(engine.connect_any(&addresses, Some(&other.invitation())).join()?, peer);
    /// assert!(engine.connect_any(&[closed], None).join().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_any(
        &self,
        addresses: &[SocketAddr],
        invitation: Option<&Invitation>,
    ) -> Connecting {
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let first = addresses.first().copied().unwrap_or(nowhere);
        let asked = self.shared().introduce(addresses.to_vec(), invitation.cloned());
        Connecting::new(self.clone(), first, asked)
    }

    /// Returns the next peer that came to this engine by itself; waits at most `timeout`.
    pub fn accept_peer(&self, timeout: Duration) -> Option<Peer> {
        if self.shared().is_forked() { None } else { self.shared().arrived.joined.wait(timeout) }
    }

    /// Returns the next peer that comes to this engine by itself, for asynchronous programs. `None`: the engine is
    /// closed. Dropping the future loses no peer; any number of tasks may wait.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// # let config = engine.config().clone();
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let third = Engine::builder().config(config).name("third").build()?;
    /// let to_engine = third.connect(engine.addresses()[0]).await?;
    /// third.notify(&to_engine, b"hello")?.await?;
    /// let came = engine.accept().await.expect("the engine is open");
    /// assert_eq!(came.name(), "third");
    /// let notification = engine.next_notification().await.expect("the engine is open");
    /// assert_eq!((notification.peer, &notification.data[..]), (came, &b"hello"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accept(&self) -> Accept<'_> {
        Accept::new(self)
    }

    /// Returns the peer with this [`Peer::instance`], if it is known.
    pub fn peer(&self, instance: InstanceId) -> Option<Peer> {
        if self.shared().is_forked() {
            return None;
        }
        Some(Peer { shared: self.shared().peer(instance)? })
    }

    /// Returns every peer that is known now.
    pub fn peers(&self) -> Vec<Peer> {
        if self.shared().is_forked() {
            return Vec::new();
        }
        self.shared().peers().into_iter().map(|shared| Peer { shared }).collect()
    }

    /// Watches a peer until the returned value is dropped: a silent peer is asked for a sign of life, and given up if
    /// none comes for `peer_timeout_ms`. Peers with transfers under way are always watched. To wait for a peer's end,
    /// use [`Peer::gone`], which watches it as well.
    pub fn watch(&self, peer: &Peer) -> Watch {
        let watch = Watch::new(peer.shared.clone());
        if !self.shared().is_forked() {
            self.shared().control.start_ticking();
        }
        watch
    }

    /// Ends all transfers with a peer, notifies it and forgets it. A peer of another engine stays.
    pub fn remove_peer(&self, peer: &Peer) {
        if self.shared().is_own(&peer.shared) {
            self.shared().remove_peer(&peer.shared);
        }
    }
}
