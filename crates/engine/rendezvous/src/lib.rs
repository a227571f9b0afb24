//! Engines find each other: by files in a folder, by etcd, by the addresses of a name, or as the ranks
//! of a job that Slurm, MPI or `torchrun` started.
//!
//! Each engine [joins](join) a group under a name, and hears who else joins and leaves. The setting
//! `rendezvous` says where.
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
//! # Who is there
//!
//! An engine that dies leaves the group: at the latest after its lease (folder, etcd), after the name no
//! longer has its address (DNS), or when rank 0 loses it (ranks). While the place itself can't be
//! reached, nobody joins and nobody leaves; the log says so, and it is tried again. Leaving ends no
//! transfer: a peer that can't be reached is lost by itself ([`polyrail::Peer::gone`]).
//!
//! # Who may join
//!
//! Members of a folder and of etcd hand out their metadata there. Whoever can read that may connect to
//! them, and whoever can write it is taken for a member. With DNS and ranks an engine has to prove that it
//! may connect, as with [`polyrail::Engine::connect`].
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
