//! Who is in a group, and what happens to members.

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

/// What the place of the rendezvous knows of a member.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// What the engine said about itself.
    Metadata(Arc<[u8]>),
    /// It has answered, and is a peer already.
    Peer(Peer),
}

impl Found {
    /// What a place has where a member's metadata should be: somebody else may have put something there.
    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, HelloError> {
        Metadata::decode(&bytes)?;
        Ok(Self::Metadata(Arc::from(bytes)))
    }
}

/// What the engine is called whose metadata this is. `None`: it is no metadata.
pub(crate) fn engine_in(bytes: &[u8]) -> Option<String> {
    let name = Metadata::decode(bytes).ok()?.card.name;
    Some(polyrail_config::shortened(&name, 80))
}

/// What a member says about itself, without what lets others in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Card {
    /// The number of this run of the engine.
    pub instance: String,
    /// What the engine calls itself.
    pub engine: String,
    /// Where it listens, a rail each.
    pub addresses: Vec<SocketAddr>,
}

impl Member {
    /// Its name in the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What [`polyrail::Engine::add_peer`] takes. `None` where the place passes on no metadata (DNS). It
    /// is a capability: whoever has it may connect.
    pub fn metadata(&self) -> Option<&[u8]> {
        match &self.found {
            Found::Metadata(bytes) => Some(bytes),
            Found::Peer(_) => None,
        }
    }

    /// What it says about itself; `None` if it has put something there that is no metadata.
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

/// What happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An engine is there.
    Joined(Member),
    /// An engine has left, or has died. One that comes back under the same name has left first.
    Left { name: String },
}

/// Without the metadata, which is secret.
impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({})", self.name)
    }
}
