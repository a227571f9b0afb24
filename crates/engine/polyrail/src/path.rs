//! Finding a way for bytes that is better than the rails: what peers of one host are asked, what they
//! answer, and what is chosen.

pub(crate) mod asking;
pub(crate) mod carry;
pub(crate) mod choose;
pub(crate) mod export;
pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod messages;
pub(crate) mod request;
pub(crate) mod staged;
pub(crate) mod try_shared;
