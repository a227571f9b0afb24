//! Spans of the end that receives a notification.

use std::sync::Arc;

use opentelemetry::Context;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::Tracer;
use polyrail::{LostReason, Observer, Peer};

use crate::carry;
use crate::spans::Spans;

/// A program's own observer behind a [`Joined`].
pub trait Received: Send + Sync {
    /// Like [`Observer::notified`], with the context of the notification's span. Use it as the parent of spans for work
    /// on the bytes. The context has no span if the peer sent none.
    fn notified(&self, context: &Context, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let _ = (context, peer);
        Some(data)
    }

    /// Like [`Observer::lost`].
    fn lost(&self, peer: &Peer, why: &LostReason) {
        let _ = (peer, why);
    }
}

/// Leaves all notifications to the engine.
struct Unseen;

impl Received for Unseen {}

/// An engine's observer that makes a span for each notification whose sender began one, and removes the context. All
/// other notifications stay unchanged.
pub struct Joined<T = BoxedTracer> {
    spans: Spans<T>,
    then: Arc<dyn Received>,
}

impl<T> Joined<T> {
    /// Creates an observer for a program that takes notifications from the engine.
    pub fn new(spans: &Spans<T>) -> Self {
        Self::before(spans, Arc::new(Unseen))
    }

    /// Creates an observer for a program that handles notifications in its own observer.
    pub fn before(spans: &Spans<T>, then: Arc<dyn Received>) -> Self {
        Self { spans: spans.clone(), then }
    }
}

impl<T> Observer for Joined<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
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
