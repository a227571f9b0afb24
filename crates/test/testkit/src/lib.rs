//! A simulated network for the protocol core: virtual time, seeded faults, and an oracle that checks every byte.
//!
//! A [`Simulation`] runs two [`node::Node`]s on one [`network::Network`]. Each node drives the protocol core as a real
//! engine does: frames are encoded and read back through partial writes and reads, and system calls take time, so that
//! actions of other threads overlap them. The [`oracle::Oracle`] owns the memory, knows the bytes that every operation
//! must deliver, takes memory away the moment an operation is over, and records the end of each one.
//!
//! A [`Scenario`] and a seed determine a run completely, so a failing run can be repeated. The tests in
//! `tests/simulation.rs` have one scenario for each hazard.
#![forbid(unsafe_code)]

pub mod clock;
pub mod fuzz;
pub mod liar;
pub mod link;
pub mod memory;
pub mod network;
pub mod node;
pub mod oracle;
mod payload;
pub mod pki;
pub mod race;
pub mod rng;
pub mod scenario;
pub mod script;
pub mod sealing;
pub mod simulation;
pub mod tap;
pub mod world;

pub use clock::Clock;
pub use link::Link;
pub use memory::Memory;
pub use network::Network;
pub use node::{Node, Sabotage};
pub use oracle::Oracle;
pub use rng::Rng;
pub use scenario::{Dish, Fault, Scenario};
pub use script::Script;
pub use simulation::{Injection, Simulation, Summary, Violation};
pub use world::{Tally, World};
