//! Payload for sender cores in models of the order and timing of frames.

use std::sync::Arc;

use polyrail_proto::{Plan, Source};

/// Payload without a message.
#[derive(Clone, Debug)]
pub(crate) struct Payload(pub(crate) Arc<Plan>);

impl Source for Payload {
    fn plan(&self) -> &Plan {
        &self.0
    }

    fn meta(&self) -> &[u8] {
        &[]
    }
}
