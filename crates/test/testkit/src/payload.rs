//! What sender cores send where only the order and the time of frames count.

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
