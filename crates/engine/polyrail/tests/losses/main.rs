//! Rails that break and peers that end: what is lost, what is not, and which peers come back.

#[path = "../common/mod.rs"]
mod common;

mod comeback;
mod failure;
mod forgotten;
mod gone;
mod killed;
mod trouble;
