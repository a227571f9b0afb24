//! Spans of two engines, checked at the program's exporter.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    TracerProvider,
};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use polyrail::operation::Write;
use polyrail::{Config, Engine, Memory, Peer, Region, Request};
use polyrail_otel::{Joined, Received};

type Spans = polyrail_otel::Spans<SdkTracer>;

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program's tracer provider, with an exporter that keeps all spans.
struct Program {
    provider: SdkTracerProvider,
    exported: Exported,
    spans: Spans,
}

#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Program {
    fn new(sample_ratio: f64) -> Self {
        let exported = Exported::default();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exported.clone()).build();
        let spans = Spans::new(provider.tracer("polyrail"), sample_ratio).unwrap();
        Self { provider, exported, spans }
    }

    /// All spans that have ended.
    fn exported(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        self.exported.0.lock().unwrap().clone()
    }
}

fn value(span: &SpanData, key: &str) -> Option<Value> {
    span.attributes.iter().find(|one| one.key.as_str() == key).map(|one| one.value.clone())
}

/// Two engines. The second one may write to the first one's memory.
struct Ends {
    reader: Engine,
    writer: Engine,
    peer: Peer,
    there: Region,
    here: Region,
}

impl Ends {
    fn new(observer: Joined<SdkTracer>) -> Self {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let reader = Engine::builder().config(config.clone()).observer(Arc::new(observer));
        let reader = reader.name("reader").build().unwrap();
        let writer = Engine::builder().config(config).name("writer").build().unwrap();
        let there = reader.register(Memory::anonymous(4096).unwrap()).unwrap();
        let here = writer.register(vec![7; 4096]).unwrap();
        let peer = writer.add_peer(&reader.metadata()).unwrap();
        Self { reader, writer, peer, there, here }
    }

    fn write(&self) -> Request<Write> {
        let remote = self.writer.import(&self.there.describe()).unwrap();
        Request::write(&self.peer).segment(self.here.all(), remote.all())
    }

    fn told(&self) -> Vec<u8> {
        self.reader.wait_notification(PATIENCE).expect("a notification").data
    }

    /// Writes once, with a span of `spans`.
    fn write_with(&self, spans: &Spans) {
        let span = spans.transfer(&Context::new(), "write", &self.peer);
        let write = self.write().notification(span.carry(b"done"));
        let (ended, end) = mpsc::channel();
        let write = write.on_end(move |result| {
            span.end(result);
            let _ = ended.send(());
        });
        self.writer.post(write).unwrap().join().unwrap();
        end.recv_timeout(PATIENCE).expect("the callback runs");
        assert_eq!(self.told(), b"done", "the context is taken off");
    }
}

#[test]
fn spans_of_both_ends_are_one_trace() {
    // The sender decides that this trace is kept.
    let (writes, reads) = (Program::new(1.0), Program::new(0.0));
    let ends = Ends::new(Joined::new(&reads.spans));
    ends.write_with(&writes.spans);
    let (sent, received) = (writes.exported(), reads.exported());
    let ([sent], [received]) = (&sent[..], &received[..]) else {
        panic!("{sent:?} {received:?}");
    };
    assert_eq!(sent.span_context.trace_id(), received.span_context.trace_id());
    assert_eq!(received.parent_span_id, sent.span_context.span_id());
    assert_eq!(sent.parent_span_id, SpanId::INVALID);
    assert_eq!((&sent.span_kind, &received.span_kind), (&SpanKind::Producer, &SpanKind::Consumer));
    assert_eq!((&sent.name[..], &received.name[..]), ("write", "received"));
    let peer = Value::from(ends.peer.name().to_owned());
    assert_eq!(value(sent, "polyrail.peer"), Some(peer));
    assert_eq!(value(sent, "polyrail.bytes"), Some(Value::I64(4096)));
    assert_eq!(value(received, "polyrail.notification_bytes"), Some(Value::I64(4)));
    assert!(sent.end_time > sent.start_time);
}

#[test]
fn a_trace_that_is_not_sampled_is_not_exported() {
    let (writes, reads) = (Program::new(0.0), Program::new(1.0));
    let ends = Ends::new(Joined::new(&reads.spans));
    for _ in 0..20 {
        ends.write_with(&writes.spans);
    }
    assert!(writes.exported().is_empty() && reads.exported().is_empty());
}

#[test]
fn about_as_many_traces_are_kept_as_asked_and_each_is_whole() {
    let (writes, reads) = (Program::new(0.25), Program::new(0.0));
    let ends = Ends::new(Joined::new(&reads.spans));
    for _ in 0..400 {
        ends.write_with(&writes.spans);
    }
    let traces = |program: &Program| {
        let traces = program.exported().into_iter().map(|span| span.span_context.trace_id());
        let mut traces: Vec<[u8; 16]> = traces.map(TraceId::to_bytes).collect();
        traces.sort_unstable();
        traces
    };
    let (sent, received) = (traces(&writes), traces(&reads));
    assert_eq!(sent, received);
    // The expected number is 100; five deviations away from that is one run in a million.
    assert!((57..=143).contains(&sent.len()), "{}", sent.len());
}

#[test]
fn what_a_caller_has_decided_not_to_keep_is_not_kept_at_either_end() {
    let (writes, reads) = (Program::new(1.0), Program::new(1.0));
    let ends = Ends::new(Joined::new(&reads.spans));
    let (trace, span) = (TraceId::from(7), SpanId::from(9));
    let left_out = SpanContext::new(trace, span, TraceFlags::NOT_SAMPLED, true, TraceState::NONE);
    let context = Context::new().with_remote_span_context(left_out);
    let span = writes.spans.transfer(&context, "write", &ends.peer);
    let write = ends.write().notification(span.carry(b"done"));
    ends.writer.post(write).unwrap().join().unwrap();
    assert_eq!(ends.told(), b"done");
    assert!(writes.exported().is_empty() && reads.exported().is_empty());
}

#[test]
fn notifications_without_a_context_stay_as_they_are() {
    let reads = Program::new(1.0);
    let ends = Ends::new(Joined::new(&reads.spans));
    for notification in [&b"plain"[..], b"", b"\0w3c-trace:00-nonsense\nrest", b"\0w3c-trace:"] {
        let write = ends.write().notification(notification.to_vec());
        ends.writer.post(write).unwrap().join().unwrap();
        assert_eq!(ends.told(), notification);
    }
    assert!(reads.exported().is_empty());
}

#[test]
fn a_program_that_handles_notifications_goes_on_in_the_same_trace() {
    /// Keeps the trace of each received notification.
    #[derive(Default)]
    struct Traces(Mutex<Vec<(String, Vec<u8>)>>);

    impl Received for Traces {
        fn notified(&self, context: &Context, _: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
            let trace = context.span().span_context().trace_id().to_string();
            self.0.lock().unwrap().push((trace, data.clone()));
            Some(data)
        }
    }

    let (both, traces) = (Program::new(1.0), Arc::new(Traces::default()));
    let ends = Ends::new(Joined::before(&both.spans, traces.clone()));
    let span = both.spans.transfer(&Context::new(), "write", &ends.peer);
    let trace = span.context().span().span_context().trace_id().to_string();
    let write = ends.write().notification(span.carry(b"done"));
    ends.writer.post(write).unwrap().join().unwrap();
    assert_eq!(ends.told(), b"done");
    assert_eq!(*traces.0.lock().unwrap(), [(trace, b"done".to_vec())]);
}

#[test]
fn a_transfer_that_fails_leaves_a_span_with_the_reason() {
    let writes = Program::new(1.0);
    let ends = Ends::new(Joined::new(&writes.spans));
    let span = writes.spans.transfer(&Context::new(), "receive", &ends.peer);
    // Neither end sends.
    let receive = Request::receive(&ends.peer, 1).local(ends.here.all());
    let (ended, end) = mpsc::channel();
    let receive = receive.timeout(Duration::from_millis(20)).on_end(move |result| {
        span.end(result);
        let _ = ended.send(());
    });
    let error = ends.writer.post(receive).unwrap().join().unwrap_err();
    end.recv_timeout(PATIENCE).expect("the callback runs");
    let spans = writes.exported();
    assert_eq!(spans[0].status, Status::error(error.to_string()));
    assert_eq!(value(&spans[0], "polyrail.bytes"), None);
}

#[test]
fn a_sample_ratio_beyond_its_range_is_refused() {
    let provider = SdkTracerProvider::builder().build();
    for ratio in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let refused = Spans::new(provider.tracer("polyrail"), ratio).unwrap_err();
        assert_eq!(refused.to_string(), format!("sample_ratio = `{ratio}`; allowed: 0 to 1"));
    }
}
