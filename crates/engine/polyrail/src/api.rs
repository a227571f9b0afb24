//! What users hold: engines, requests, transfers. Errors and observers are theirs as well, and lie
//! below, where they are made and called.

pub(crate) mod builder;
mod companions;
pub(crate) mod connecting;
pub(crate) mod engine;
pub(crate) mod exit;
pub(crate) mod gone;
mod memory;
mod notifications;
mod peers;
pub(crate) mod prepared;
pub(crate) mod publish;
pub(crate) mod rails;
pub(crate) mod register;
pub(crate) mod request;
pub(crate) mod tasks;
pub(crate) mod transfer;
mod transfers;

pub(crate) use crate::base::error;
pub(crate) use crate::engine::observer;
