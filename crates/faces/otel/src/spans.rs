//! Spans of the end that posts.

use std::fmt;
use std::sync::Arc;

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use polyrail::{Outcome, Peer, TransferError};

use crate::carry;

/// Error for a share of traces outside of 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("sample_ratio = `{0}`; allowed: 0 to 1")]
pub struct SampleRatioError(
    /// The given share.
    pub f64,
);

/// Makes spans with the program's own tracer. The tracer's provider exports them.
pub struct Spans<T = BoxedTracer> {
    tracer: Arc<T>,
    sample_ratio: f64,
}

impl<T> Clone for Spans<T> {
    fn clone(&self) -> Self {
        Self { tracer: self.tracer.clone(), sample_ratio: self.sample_ratio }
    }
}

impl<T> fmt::Debug for Spans<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").field("sample_ratio", &self.sample_ratio).finish_non_exhaustive()
    }
}

/// Span of one transfer, from its creation to the transfer's end. If it is dropped before, because posting failed, it
/// ends there, without a number of bytes. If the trace is not kept there is no span, and all methods do nothing.
#[derive(Debug)]
pub struct TransferSpan {
    context: Context,
    is_kept: bool,
}

impl<T> Spans<T>
where
    T: Tracer,
    T::Span: Send + Sync + 'static,
{
    /// Makes spans with this tracer, such as `opentelemetry::global::tracer("polyrail")`. `sample_ratio`, from 0 to 1,
    /// is the share to keep of the traces that begin here. The sampler of the tracer's provider may keep fewer. Traces
    /// that began elsewhere follow the decision made there.
    ///
    /// # Errors
    /// `sample_ratio` is outside of 0 to 1.
    pub fn new(tracer: T, sample_ratio: f64) -> Result<Self, SampleRatioError> {
        if !(0.0..=1.0).contains(&sample_ratio) {
            return Err(SampleRatioError(sample_ratio));
        }
        Ok(Self { tracer: Arc::new(tracer), sample_ratio })
    }

    /// Begins the span of a transfer to a peer, as a child of `parent`'s span if it has one. Call it right before
    /// posting.
    pub fn transfer(&self, parent: &Context, name: &'static str, peer: &Peer) -> TransferSpan {
        // A span that is dropped later would cost a fifth of the rate of small writes.
        if !parent.span().span_context().is_valid() && fastrand::f64() >= self.sample_ratio {
            return TransferSpan { context: parent.clone(), is_kept: false };
        }
        let builder = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Producer)
            .with_attributes([KeyValue::new("polyrail.peer", peer.name().to_owned())]);
        let span = self.tracer.build_with_context(builder, parent);
        TransferSpan { context: parent.with_span(span), is_kept: true }
    }

    /// Makes a span of length 0 for a received notification. Returns its context, as the parent of later work.
    pub(crate) fn received(&self, from: &Context, peer: &Peer, bytes: usize) -> Context {
        let builder =
            self.tracer.span_builder("received").with_kind(SpanKind::Consumer).with_attributes([
                KeyValue::new("polyrail.peer", peer.name().to_owned()),
                KeyValue::new("polyrail.notification_bytes", bytes as i64),
            ]);
        let mut span = self.tracer.build_with_context(builder, from);
        span.end();
        from.with_span(span)
    }
}

impl TransferSpan {
    /// Returns the notification with the span's context in front. The other end needs a [`crate::Joined`], which
    /// removes it.
    pub fn carry(&self, notification: &[u8]) -> Vec<u8> {
        if self.is_kept { carry::put(&self.context, notification) } else { notification.to_vec() }
    }

    /// Context of the span, for child spans. If the trace is not kept, the parent's.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Ends the span when the transfer is over. Only the first call counts.
    pub fn end(&self, result: &Result<Outcome, TransferError>) {
        if !self.is_kept {
            return;
        }
        let span = self.context.span();
        match result {
            Ok(outcome) => {
                span.set_attribute(KeyValue::new("polyrail.bytes", outcome.bytes as i64))
            }
            Err(error) => span.set_status(Status::error(error.to_string())),
        }
        span.end();
    }
}
