//! What an engine is behind its API: its state, its peers, the operations under way, and how they
//! begin and end.

pub(crate) mod admission;
pub(crate) mod audit;
pub(crate) mod awaited;
pub(crate) mod control_handle;
pub(crate) mod counters;
pub(crate) mod credentials;
pub(crate) mod device_landings;
pub(crate) mod finish;
pub(crate) mod inbox;
pub(crate) mod known_peers;
pub(crate) mod life;
pub(crate) mod local_engines;
pub(crate) mod observer;
pub(crate) mod op;
pub(crate) mod pass;
pub(crate) mod path_kind;
pub(crate) mod peer;
pub(crate) mod peer_copying;
pub(crate) mod peer_handle;
pub(crate) mod placement;
pub(crate) mod prepared;
pub(crate) mod proxy_handle;
pub(crate) mod quotas;
pub(crate) mod rail_selection;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod suspects;
pub(crate) mod tally;
pub(crate) mod tasks;
pub(crate) mod trace;
