//! Search for a path that is better than the rails: questions to peers of the same host, their answers, and the choice.

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
