//! Tests of plans, of applying and of undoing them.

#[path = "../common/mod.rs"]
mod common;

mod corpus;
mod irqbalance;
mod plans;
mod rss;
mod transaction;
