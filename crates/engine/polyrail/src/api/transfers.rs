//! Start of transfers: each operation with one call, and requests that are prepared once and posted often.

use std::sync::Arc;

use polyrail_proto::error::PostError;

use crate::api::engine::Engine;
use crate::api::prepared::PreparedTransfer;
use crate::api::request::{Operation, Request};
use crate::api::transfer::Transfer;
use crate::engine::peer::Prepared;
use crate::engine::peer_handle::Peer;
use crate::memory::region_core::RegionSlice;
use crate::memory::remote_region::RemoteSlice;

impl Engine {
    /// Writes bytes into a peer's memory. Done means: every byte is in place there.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let transfer = engine.write(&peer, &local.slice(0, 100)?, &remote.slice(50, 100)?)?;
    /// assert_eq!(transfer.join()?.bytes, 100);
    /// let mut byte = [0];
    /// target.read_at(149, &mut byte)?;
    /// assert_eq!(byte, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(
        &self,
        peer: &Peer,
        local: &RegionSlice,
        remote: &RemoteSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::write(peer).segment(local.clone(), *remote))
    }

    /// Reads bytes of a peer's memory. Done means: every byte is in place here.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// target.write_at(0, b"over there")?;
    /// engine.read(&peer, &local.slice(0, 10)?, &remote.slice(0, 10)?)?.join()?;
    /// let mut bytes = [0; 10];
    /// local.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"over there");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(
        &self,
        peer: &Peer,
        local: &RegionSlice,
        remote: &RemoteSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::read(peer).segment(local.clone(), *remote))
    }

    /// Sends a message to the peer's oldest receive of this tag, and waits for there to be one.
    /// Done means: every byte is in place there. Sends of one tag keep their order.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let receive = other.receive(&back, 42, &target.all())?;
    /// let send = engine.send(&peer, 42, &local.slice(0, 1000)?)?;
    /// assert_eq!(send.join()?.bytes, 1000);
    /// assert_eq!(receive.join()?.bytes, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send(&self, peer: &Peer, tag: u64, local: &RegionSlice) -> Result<Transfer, PostError> {
        self.post(Request::send(peer, tag).local(local.clone()))
    }

    /// Receives a message of this tag from the peer. Its length is in [`crate::Outcome::bytes`]; a
    /// message that is longer than `local` fails on both sides.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let receive = engine.receive(&peer, 1, &local.all())?;
    /// assert_eq!(receive.wait(Duration::from_millis(1)), None, "nobody has sent anything");
    /// receive.cancel();
    /// assert_eq!(receive.wait(soon), Some(Err(TransferError::Cancelled)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn receive(
        &self,
        peer: &Peer,
        tag: u64,
        local: &RegionSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::receive(peer, tag).local(local.clone()))
    }

    /// Sends a notification without a transfer. No order is promised between notifications.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// engine.notify(&peer, b"ready")?.detach();
    /// let notification = other.wait_notification(soon).expect("it comes");
    /// assert_eq!((notification.data, notification.peer), (b"ready".to_vec(), back));
    /// assert!(other.take_notifications().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notify(&self, peer: &Peer, data: &[u8]) -> Result<Transfer, PostError> {
        self.post(Request::write(peer).notification(data.to_vec()))
    }

    /// Checks a request and cuts it into chunks, once for many posts.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// // Every second block of 64 bytes; the notification comes when all are in place.
    /// let blocks = (0..32).map(|i| (local.slice(64 * i, 64), remote.slice(128 * i, 64)));
    /// let blocks: Vec<_> = blocks.map(|(l, r)| Ok((l?, r?))).collect::<Result<_, polyrail::RegionError>>()?;
    /// let request = Request::write(&peer).segments(blocks).notification(b"layer 7".to_vec());
    /// let prepared = engine.prepare(request.timeout(soon))?;
    /// for _ in 0..3 {
    ///     let transfer = prepared.post()?;
    ///     assert_eq!(other.wait_notification(soon).expect("it comes").data, b"layer 7");
    ///     assert_eq!(transfer.join()?.bytes, 2048);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare<O: Operation>(
        &self,
        request: Request<O>,
    ) -> Result<PreparedTransfer, PostError> {
        let prepared = Arc::new(Prepared::new(self.shared(), request.spec)?);
        Ok(PreparedTransfer { prepared, engine: self.clone() })
    }

    /// Prepares a request and posts it, for a request that is posted once.
    pub fn post<O: Operation>(&self, request: Request<O>) -> Result<Transfer, PostError> {
        let shared = self.shared();
        let prepared = Arc::new(Prepared::new(shared, request.spec)?);
        Ok(Transfer::new(shared.post(&prepared, None)?, shared.clone()))
    }
}
