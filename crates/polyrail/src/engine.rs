//! What an engine is behind its API: its state, its peers, the operations under way, and how they
//! begin and end.

pub(crate) mod build;
pub(crate) mod callback;
pub(crate) mod finish;
pub(crate) mod handover;
pub(crate) mod inbox;
pub(crate) mod known;
pub(crate) mod lanes;
pub(crate) mod op;
pub(crate) mod peer;
pub(crate) mod rails;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod suspects;
pub(crate) mod tasks;
