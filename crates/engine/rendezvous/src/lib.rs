//! Engines find each other: by files in a folder, by etcd, by the addresses of a name, or as the ranks
//! of a job that Slurm, MPI or `torchrun` started.
//!
//! Each engine [joins](join) a group under a name, and is notified when members join and leave. The setting
//! `rendezvous` selects the place.
//!
//! ```
//! use std::time::Duration;
//!
//! use polyrail::{Config, Engine};
//! use polyrail_rendezvous::{Event, Membership, join};
//!
//! # let folder = std::env::temp_dir().join(format!("polyrail-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let place = format!("dir://{}", folder.display());
//! let config = Config::builder().set("rails", "127.0.0.1")?.set("rendezvous", &place)?.build()?;
//! let engine = Engine::builder().config(config.clone()).build()?;
//! let other = Engine::builder().config(config).build()?;
//!
//! let group = join(&engine, &Membership::new("trainers")?.name("worker-0")?)?;
//! let theirs = join(&other, &Membership::new("trainers")?.name("worker-1")?)?;
//! let members = group.wait_for(2, Duration::from_secs(10)).expect("both are there");
//! let peer = group.peer(&members[0])?;
//! engine.notify(&peer, b"hello")?.join()?;
//!
//! let Some(Event::Joined(member)) = group.next_event(Duration::ZERO) else { panic!() };
//! assert_eq!(member.name(), "worker-1");
//! theirs.leave();
//! let gone = group.next_event(Duration::from_secs(10));
//! assert_eq!(gone, Some(Event::Left { name: "worker-1".to_owned() }));
//! # drop(group);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Members
//!
//! An engine that dies leaves the group: at the latest after its lease (folder, etcd), after the name no longer has its
//! address (DNS), or when rank 0 loses it (ranks). While the place itself can't be reached, members neither join nor
//! leave; the log reports it, and the engine keeps trying. Leaving ends no transfer: an unreachable peer is lost
//! independently of the group ([`polyrail::Peer::gone`]).
//!
//! # Authentication
//!
//! Members of a folder and of etcd publish their metadata there. Programs that can read it may connect to the members,
//! and an entry that any program writes there counts as a member. With DNS and ranks an engine must authenticate, as
//! with [`polyrail::Engine::connect`].
#![forbid(unsafe_code)]

mod backend;
mod dir;
mod dns;
mod error;
mod etcd;
mod group;
mod member;
mod names;
mod ranks;
mod session;
mod stop;

pub use error::RendezvousError;
pub use group::{Group, Watcher, join, look};
pub use member::{Card, Event, Member};
pub use names::{Membership, Name, NameError};
