//! Spans of the end that posts.

use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use polyrail::{Outcome, Peer, TransferError};
use polyrail_config::harmless;

use crate::carry;
use crate::client::Client;

/// Where spans go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector's address for traces, like `http://127.0.0.1:4318/v1/traces`. Plain HTTP only: for TLS run a
    /// collector beside the program.
    pub endpoint: String,
    /// The name of the program, `service.name` in OpenTelemetry.
    pub service: String,
    /// The share of traces that begin here and are kept, from 0 to 1. A trace that began elsewhere is kept or left
    /// out as decided there.
    pub sample_ratio: f64,
}

/// Why there can be no spans.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpanError {
    /// A value that can't be used.
    #[error("{field} = `{value}`; allowed: {allowed}")]
    Value {
        /// The field of [`Settings`].
        field: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The exporter can't be built.
    #[error("no exporter of spans: {0}")]
    Exporter(String),
    /// What was not sent is lost.
    #[error("the last spans were not sent: {0}")]
    Flush(String),
}

/// The spans of a program. They are collected in memory of bounded size, and a thread sends them in batches; what
/// the collector does not take in time is dropped. Transfers never wait for it.
#[derive(Clone, Debug)]
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    sample_ratio: f64,
}

/// The span of one transfer, from its making to the transfer's end. One that is dropped before, because posting
/// failed, ends there, without a number of bytes. If the trace is not kept there is no span, and all of this does nothing.
#[derive(Debug)]
pub struct TransferSpan {
    context: Context,
    is_kept: bool,
}

impl Settings {
    /// One trace of a hundred, to this collector.
    pub fn to(endpoint: &str) -> Self {
        let (endpoint, service) = (endpoint.to_owned(), "polyrail".to_owned());
        Self { endpoint, service, sample_ratio: 0.01 }
    }

    fn check(&self) -> Result<(), SpanError> {
        let refused =
            |field, value: String, allowed| Err(SpanError::Value { field, value, allowed });
        let host = self.endpoint.strip_prefix("http://").unwrap_or_default();
        let is_plain = host.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.starts_with(['/', ':']) || !is_plain {
            let value = harmless(&self.endpoint, &[]);
            return refused("endpoint", value, "http://HOST:PORT/v1/traces");
        }
        if self.service.is_empty() {
            return refused("service", String::new(), "a name");
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return refused("sample_ratio", self.sample_ratio.to_string(), "0 to 1");
        }
        Ok(())
    }
}

impl Spans {
    /// Starts the thread that sends spans. Whether anybody takes them shows later, in records of `tracing` by the
    /// library.
    ///
    /// # Errors
    /// A setting can't be used.
    pub fn start(settings: Settings) -> Result<Self, SpanError> {
        settings.check()?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(settings.endpoint)
            .build()
            .map_err(|error| SpanError::Exporter(error.to_string()))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            // Which traces begin here is decided before there is a span.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_resource(Resource::builder().with_service_name(settings.service).build())
            .build();
        let tracer = provider.tracer("polyrail");
        Ok(Self { tracer, provider, sample_ratio: settings.sample_ratio })
    }

    /// Begins the span of a transfer to a peer, as a child of `parent`'s span if it has one. Make it right before
    /// you post.
    pub fn transfer(&self, parent: &Context, name: &'static str, peer: &Peer) -> TransferSpan {
        // A span that nobody will see costs a fifth of the rate of small writes, so there is none.
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

    /// Tells that a notification has come, by a span without length; its context, for what the program does next.
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

    /// Sends what has ended so far, and waits for that, 5 s at most per batch.
    ///
    /// # Errors
    /// The collector did not take it.
    pub fn flush(&self) -> Result<(), SpanError> {
        self.provider.force_flush().map_err(|error| SpanError::Flush(error.to_string()))
    }
}

impl TransferSpan {
    /// The notification with the span's context in front. The other end needs a [`crate::Joined`], which takes it
    /// off again.
    pub fn carry(&self, notification: &[u8]) -> Vec<u8> {
        if self.is_kept { carry::put(&self.context, notification) } else { notification.to_vec() }
    }

    /// The span's context, for spans below it; the parent's, if the trace is not kept.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The transfer is over. Only the first call counts.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_used_are_refused_with_field_value_and_allowed() {
        let good = Settings::to("http://127.0.0.1:4318/v1/traces");
        assert!(good.check().is_ok());
        for endpoint in
            ["", "collector:4318", "https://c:4318/", "http://", "http:///v1", "http://a\nb"]
        {
            let text = Settings::to(endpoint).check().unwrap_err().to_string();
            assert!(
                text.starts_with("endpoint = `") && text.contains("allowed: http://"),
                "{text}"
            );
        }
        let steering = Settings::to("http://a\u{1b}[2J").check().unwrap_err().to_string();
        assert!(steering.starts_with("endpoint = `http://a\\u001b[2J`; "), "{steering}");
        for sample_ratio in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let text = Settings { sample_ratio, ..good.clone() }.check().unwrap_err().to_string();
            assert_eq!(text, format!("sample_ratio = `{sample_ratio}`; allowed: 0 to 1"));
        }
        let nameless = Settings { service: String::new(), ..good };
        assert_eq!(nameless.check().unwrap_err().to_string(), "service = ``; allowed: a name");
    }
}
