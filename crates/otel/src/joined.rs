//! Spans of the end that is told.

use std::sync::Arc;

use opentelemetry::Context;
use polyrail::{LostReason, Observer, Peer};

use crate::carry;
use crate::spans::Spans;

/// A program's own observer behind a [`Joined`].
pub trait Received: Send + Sync {
    /// As [`Observer::notified`], with the context of the span that tells of it: the parent of what the program does
    /// with the bytes. It has no span where the peer sent none.
    fn notified(&self, context: &Context, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let _ = (context, peer);
        Some(data)
    }

    /// As [`Observer::lost`].
    fn lost(&self, peer: &Peer, why: &LostReason) {
        let _ = (peer, why);
    }
}

/// Nobody behind it.
struct Nobody;

impl Received for Nobody {}

/// An observer of an engine that makes a span of each notification whose sender began one, and takes the
/// context off. All other notifications are left as they are.
pub struct Joined {
    spans: Spans,
    then: Arc<dyn Received>,
}

impl Joined {
    /// For a program that asks the engine for its notifications.
    pub fn new(spans: &Spans) -> Self {
        Self::before(spans, Arc::new(Nobody))
    }

    /// For a program that is told of its notifications.
    pub fn before(spans: &Spans, then: Arc<dyn Received>) -> Self {
        Self { spans: spans.clone(), then }
    }
}

impl Observer for Joined {
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        match carry::take(&data) {
            None => self.then.notified(&Context::new(), peer, data),
            Some((from, rest)) => {
                let context = self.spans.received(&from, peer, rest.len());
                self.then.notified(&context, peer, rest.to_vec())
            }
        }
    }

    fn lost(&self, peer: &Peer, why: &LostReason) {
        self.then.lost(peer, why);
    }
}
