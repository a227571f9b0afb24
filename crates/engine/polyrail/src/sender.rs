//! Sending: a flow pulls chunks, writes frames and reads acknowledgements.

pub(crate) mod flow;
