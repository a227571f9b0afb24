//! Exchange of metadata between engines by a file.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use polyrail_proto::error::PeerError;
use polyrail_proto::hello::{HelloError, Metadata};
use polyrail_proto::published::{ProcessNumbers, Published, recognise};
use polyrail_sys::files::metadata_file::{self, invalid};
use polyrail_sys::process::Process;

use crate::api::engine::{Engine, Peer};
use crate::api::error::EngineError;
use crate::base::host_identity::host_identity;
use crate::engine::local_engines::engine_here;

impl Engine {
    /// Writes the metadata to a file for [`Engine::find_peer`], on a shared file system for instance. The file appears
    /// whole or not at all; an older one is replaced. Only its owner may read it. Remove it when the engine ends: later
    /// readers on this host get an error, and readers on other hosts add a peer that is gone.
    pub fn publish(&self, path: &Path) -> io::Result<()> {
        self.publish_with(path, &[])
    }

    /// Same as [`Engine::publish`], with at most 16 MiB of the program's own bytes that the reader gets by
    /// [`Engine::find_peer_with`]: descriptions of regions for instance, so that the file is all that the other end
    /// needs.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// # let folder = std::env::temp_dir();
    /// let path = folder.join(format!("rank2-{}.polyrail", std::process::id()));
    /// other.publish_with(&path, &target.describe())?;
    ///
    /// let (found, description) = engine.find_peer_with(&path, soon).expect("it is there")?;
    /// let there = engine.import(&description)?;
    /// engine.write(&found, &local.all(), &there.all())?.join()?;
    /// assert_eq!(found, peer);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_with(&self, path: &Path, extra: &[u8]) -> io::Result<()> {
        if self.shared().is_forked() {
            return Err(io::Error::other(EngineError::Forked));
        }
        if self.shared().is_closed() {
            return Err(io::Error::other(PeerError::Closed));
        }
        let (metadata, extra) = (self.metadata(), extra.to_vec());
        let process = Process::own().map(|own| (own.number, own.namespace, own.started));
        metadata_file::write(path, &Published { process, metadata, extra })
    }

    /// Adds the peer that published its metadata there; waits for the file, at most `timeout`. `None`: the file is not
    /// there yet. Anything but a regular file is an error; on this host, so is the file of an engine that has ended
    /// ([`PeerError::Ended`]).
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// # let folder = std::env::temp_dir();
    /// let path = folder.join(format!("rank1-{}.polyrail", std::process::id()));
    /// other.publish(&path)?;
    /// assert_eq!(engine.find_peer(&path, soon).expect("it is there")?, peer);
    /// other.close();
    /// let error = engine.find_peer(&path, soon).expect("it is there yet").unwrap_err();
    /// assert!(matches!(error, polyrail::PeerError::Ended { .. }));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find_peer(&self, path: &Path, timeout: Duration) -> Option<Result<Peer, PeerError>> {
        self.find_peer_with(path, timeout).map(|found| found.map(|(peer, _)| peer))
    }

    /// Same as [`Engine::find_peer`], and returns the bytes that the peer added to the file by
    /// [`Engine::publish_with`]; empty if it added none.
    pub fn find_peer_with(
        &self,
        path: &Path,
        timeout: Duration,
    ) -> Option<Result<(Peer, Vec<u8>), PeerError>> {
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let failed = |source| PeerError::File { path: path.to_owned(), source };
        if path.file_name().is_none() {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file");
            return Some(Err(failed(why)));
        }
        let start = Instant::now();
        loop {
            // A wait for a file that never comes still ends when the engine does.
            if self.shared().is_forked() {
                return Some(Err(PeerError::Forked));
            }
            if self.shared().is_closed() {
                return Some(Err(PeerError::Closed));
            }
            match metadata_file::read(path) {
                Ok(Some(published)) => return Some(self.add_published(path, published)),
                Err(source) => return Some(Err(failed(source))),
                Ok(None) => {}
            }
            let left = timeout.checked_sub(start.elapsed())?;
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn add_published(
        &self,
        path: &Path,
        published: Published,
    ) -> Result<(Peer, Vec<u8>), PeerError> {
        let path = path.to_owned();
        let metadata = match Metadata::decode(&published.metadata) {
            Ok(metadata) => metadata,
            Err(error) => return Err(PeerError::File { path, source: invalid(error) }),
        };
        if let Some(process) = published.process
            && has_ended(&metadata, process, self.shared().card.host)
        {
            return Err(PeerError::Ended { path, process: process.0 });
        }
        Ok((Peer { shared: self.shared().add_peer(metadata)? }, published.extra))
    }
}

/// Content of a file that [`Engine::publish`] wrote, read without an engine: see [`read_published`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedEngine {
    /// The engine's metadata, for [`Engine::add_peer`].
    pub metadata: Vec<u8>,
    /// The bytes that the program added by [`Engine::publish_with`].
    pub extra: Vec<u8>,
    /// Whether the engine has ended, as far as this host knows: on other hosts it may have.
    pub has_ended: bool,
}

/// Reads a file that [`Engine::publish`] wrote, and adds no peer. `None`: there is no such file. Anything but a regular
/// file that only its owner may write is an error.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// # let folder = std::env::temp_dir();
/// let path = folder.join(format!("rank3-{}.polyrail", std::process::id()));
/// assert_eq!(polyrail::read_published(&path)?, None);
/// other.publish_with(&path, b"rank 3")?;
/// let found = polyrail::read_published(&path)?.expect("it is there");
/// assert_eq!((found.extra, found.has_ended), (b"rank 3".to_vec(), false));
/// assert_eq!(engine.add_peer(&found.metadata)?, peer);
/// other.close();
/// assert!(polyrail::read_published(&path)?.expect("it is there yet").has_ended);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_published(path: &Path) -> io::Result<Option<PublishedEngine>> {
    metadata_file::read(path)?.map(PublishedEngine::of).transpose()
}

/// Same as [`read_published`], of a file that the caller has opened, and may have checked by its owner.
pub fn read_published_file(file: &File) -> io::Result<PublishedEngine> {
    PublishedEngine::of(metadata_file::read_open(file)?)
}

impl PublishedEngine {
    fn of(published: Published) -> io::Result<Self> {
        let Published { process, metadata, extra } = published;
        let card = Metadata::decode(&metadata).map_err(invalid)?;
        let host = host_identity()?;
        let has_ended = process.is_some_and(|process| has_ended(&card, process, host));
        Ok(Self { metadata, extra, has_ended })
    }
}

/// Whether the engine that this process of `host` published is gone, as far as this host knows.
fn has_ended(metadata: &Metadata, process: ProcessNumbers, host: u128) -> bool {
    let (number, namespace, started) = process;
    let process = Process { number, namespace, started };
    // On another host the number belongs to another process.
    if metadata.card.host != host {
        return false;
    }
    if Process::own() == Some(process) {
        return engine_here(metadata.card.instance).is_none_or(|engine| engine.is_closed());
    }
    process.has_ended()
}

/// Decodes metadata. If the bytes are recognised as something else, the error says what they are.
pub(crate) fn decode_metadata(bytes: &[u8]) -> Result<Metadata, PeerError> {
    Metadata::decode(bytes).map_err(|error| match (&error, recognise(bytes)) {
        (HelloError::NotPolyrail { .. }, Some(what)) => PeerError::NotMetadata { what },
        _ => error.into(),
    })
}
