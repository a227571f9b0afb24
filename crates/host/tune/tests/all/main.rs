//! Plans, and what carries them out and takes them back.

#[path = "../common/mod.rs"]
mod common;

mod corpus;
mod irqbalance;
mod plans;
mod rss;
mod transaction;
