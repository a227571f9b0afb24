//! Members of a group, and events about them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use polyrail::Peer;
use polyrail_proto::hello::{HelloError, Metadata};

/// An engine that has joined a group.
#[derive(Clone, PartialEq, Eq)]
pub struct Member {
    pub(crate) name: String,
    pub(crate) found: Found,
}

/// Information that the place has about a member.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Metadata that the engine published.
    Metadata(Arc<[u8]>),
    /// The peer of an engine that has answered.
    Peer(Peer),
}

impl Found {
    /// Checks the bytes found where a member's metadata belongs. Another program may have written them.
    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, HelloError> {
        Metadata::decode(&bytes)?;
        Ok(Self::Metadata(Arc::from(bytes)))
    }
}

/// Name of the engine in this metadata. `None` if the bytes are not valid metadata.
pub(crate) fn engine_in(bytes: &[u8]) -> Option<String> {
    let name = Metadata::decode(bytes).ok()?.card.name;
    Some(polyrail_config::shortened(&name, 80))
}

/// Public part of a member's metadata, without the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Card {
    /// Instance number of the engine, new for each run.
    pub instance: String,
    /// Name that the engine has chosen.
    pub engine: String,
    /// Listening addresses, one per rail.
    pub addresses: Vec<SocketAddr>,
}

impl Member {
    /// Name of the member in the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Metadata for [`polyrail::Engine::add_peer`]. `None` if the place passes on no metadata (DNS). It is a
    /// capability: any program that has it may connect.
    pub fn metadata(&self) -> Option<&[u8]> {
        match &self.found {
            Found::Metadata(bytes) => Some(bytes),
            Found::Peer(_) => None,
        }
    }

    /// Public part of the metadata. `None` if the member has published something else.
    pub fn card(&self) -> Option<Card> {
        match &self.found {
            Found::Metadata(bytes) => {
                let card = Metadata::decode(bytes).ok()?.card;
                Some(Card {
                    instance: card.instance.to_string(),
                    engine: card.name,
                    addresses: card.rails.iter().map(|rail| rail.address).collect(),
                })
            }
            Found::Peer(peer) => Some(Card {
                instance: peer.instance().to_string(),
                engine: peer.name().to_owned(),
                addresses: self.name.parse().into_iter().collect(),
            }),
        }
    }
}

/// Change in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An engine has joined.
    Joined(Member),
    /// An engine has left or died. An engine that comes back under the same name is reported as left first.
    Left { name: String },
}

/// Omits the metadata, which is secret.
impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({})", self.name)
    }
}
