//! Rails that break and peers that go: what is lost, what is not, and who comes back.

#[path = "../common/mod.rs"]
mod common;

mod comeback;
mod failure;
mod forgotten;
mod gone;
mod killed;
mod trouble;
