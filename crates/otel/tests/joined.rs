//! Spans of two engines, at a small collector that takes OTLP over HTTP.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use polyrail::operation::Write;
use polyrail::{Config, Engine, Memory, Peer, Region, Request};
use polyrail_otel::{Joined, Received, Settings, SpanError, Spans};
use prost::Message;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes spans as a collector does, and keeps them with the name of their service.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Self { address: listener.local_addr().unwrap(), spans: Arc::default() };
        let spans = collector.spans.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, spans) = (connection.unwrap(), spans.clone());
                thread::spawn(move || serve(connection, &spans));
            }
        });
        collector
    }

    fn spans(&self, service: &str, sample_ratio: f64) -> Spans {
        let endpoint = format!("http://{}/v1/traces", self.address);
        Spans::start(Settings { endpoint, service: service.to_owned(), sample_ratio }).unwrap()
    }

    fn of(&self, service: &str) -> Vec<Span> {
        let all = self.spans.lock().unwrap();
        all.iter().filter(|(name, _)| name == service).map(|(_, span)| span.clone()).collect()
    }
}

/// One connection, until the other end closes it.
fn serve(mut connection: TcpStream, spans: &Mutex<Vec<(String, Span)>>) {
    let mut data = Vec::new();
    loop {
        let mut room = [0; 4096];
        match connection.read(&mut room) {
            Ok(0) | Err(_) => return,
            Ok(read) => data.extend_from_slice(&room[..read]),
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(head) = request.parse(&data).unwrap() else { continue };
        let header = |name: &str| {
            let found = request.headers.iter().find(|one| one.name.eq_ignore_ascii_case(name));
            std::str::from_utf8(found.unwrap().value).unwrap()
        };
        assert_eq!((request.method, request.path), (Some("POST"), Some("/v1/traces")));
        assert_eq!(header("content-type"), "application/x-protobuf");
        let end = head + header("content-length").parse::<usize>().unwrap();
        if data.len() < end {
            continue;
        }
        let batch = ExportTraceServiceRequest::decode(&data[head..end]).unwrap();
        for resource in batch.resource_spans {
            let service = text(&resource.resource.unwrap().attributes, "service.name");
            let scopes = resource.scope_spans.into_iter();
            let own = scopes.flat_map(|scope| scope.spans).map(|span| (service.clone(), span));
            spans.lock().unwrap().extend(own);
        }
        data.drain(..end);
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    }
}

type Attributes = [opentelemetry_proto::tonic::common::v1::KeyValue];

fn value(attributes: &Attributes, key: &str) -> Option<Value> {
    attributes.iter().find(|one| one.key == key)?.value.clone()?.value
}

fn text(attributes: &Attributes, key: &str) -> String {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

/// Two engines; the second one may write to the first one's memory.
struct Ends {
    reader: Engine,
    writer: Engine,
    peer: Peer,
    there: Region,
    here: Region,
}

impl Ends {
    fn new(observer: Joined) -> Self {
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
        end.recv_timeout(PATIENCE).expect("the end is told");
        assert_eq!(self.told(), b"done", "the context is taken off");
    }
}

#[test]
fn spans_of_both_ends_are_one_trace() {
    let collector = Collector::start();
    let (writes, reads) = (collector.spans("writes", 1.0), collector.spans("reads", 0.0));
    let ends = Ends::new(Joined::new(&reads));
    ends.write_with(&writes);
    writes.flush().unwrap();
    // The sender has decided that this trace is kept.
    reads.flush().unwrap();
    let (sent, received) = (collector.of("writes"), collector.of("reads"));
    let ([sent], [received]) = (&sent[..], &received[..]) else {
        panic!("{sent:?} {received:?}");
    };
    assert_eq!(sent.trace_id, received.trace_id);
    assert_eq!(received.parent_span_id, sent.span_id);
    assert!(sent.parent_span_id.is_empty());
    assert_eq!((sent.kind(), received.kind()), (SpanKind::Producer, SpanKind::Consumer));
    assert_eq!((sent.name.as_str(), received.name.as_str()), ("write", "received"));
    assert_eq!(text(&sent.attributes, "polyrail.peer"), ends.peer.name());
    assert_eq!(value(&sent.attributes, "polyrail.bytes"), Some(Value::IntValue(4096)));
    let bytes = value(&received.attributes, "polyrail.notification_bytes");
    assert_eq!(bytes, Some(Value::IntValue(4)));
    assert!(sent.end_time_unix_nano > sent.start_time_unix_nano);
}

#[test]
fn a_trace_that_is_not_sampled_costs_the_collector_nothing() {
    let collector = Collector::start();
    let (writes, reads) = (collector.spans("writes", 0.0), collector.spans("reads", 1.0));
    let ends = Ends::new(Joined::new(&reads));
    for _ in 0..20 {
        ends.write_with(&writes);
    }
    writes.flush().unwrap();
    reads.flush().unwrap();
    assert!(collector.spans.lock().unwrap().is_empty());
}

#[test]
fn about_as_many_traces_are_kept_as_asked_and_each_is_whole() {
    let collector = Collector::start();
    let (writes, reads) = (collector.spans("writes", 0.25), collector.spans("reads", 0.0));
    let ends = Ends::new(Joined::new(&reads));
    for _ in 0..400 {
        ends.write_with(&writes);
    }
    writes.flush().unwrap();
    reads.flush().unwrap();
    let trace = |span: Span| span.trace_id;
    let mut sent: Vec<_> = collector.of("writes").into_iter().map(trace).collect();
    let mut received: Vec<_> = collector.of("reads").into_iter().map(trace).collect();
    sent.sort();
    received.sort();
    assert_eq!(sent, received);
    // 100 are expected; five deviations away from that is one run in a million.
    assert!((57..=143).contains(&sent.len()), "{}", sent.len());
}

#[test]
fn what_a_caller_has_decided_not_to_keep_is_not_kept_at_either_end() {
    let collector = Collector::start();
    let (writes, reads) = (collector.spans("writes", 1.0), collector.spans("reads", 1.0));
    let ends = Ends::new(Joined::new(&reads));
    let (trace, span) = (TraceId::from(7), SpanId::from(9));
    let left_out = SpanContext::new(trace, span, TraceFlags::NOT_SAMPLED, true, TraceState::NONE);
    let context = Context::new().with_remote_span_context(left_out);
    let span = writes.transfer(&context, "write", &ends.peer);
    let write = ends.write().notification(span.carry(b"done"));
    ends.writer.post(write).unwrap().join().unwrap();
    assert_eq!(ends.told(), b"done");
    writes.flush().unwrap();
    reads.flush().unwrap();
    assert!(collector.spans.lock().unwrap().is_empty());
}

#[test]
fn notifications_without_a_context_stay_as_they_are() {
    let collector = Collector::start();
    let reads = collector.spans("reads", 1.0);
    let ends = Ends::new(Joined::new(&reads));
    for notification in [&b"plain"[..], b"", b"\0w3c-trace:00-nonsense\nrest", b"\0w3c-trace:"] {
        let write = ends.write().notification(notification.to_vec());
        ends.writer.post(write).unwrap().join().unwrap();
        assert_eq!(ends.told(), notification);
    }
    reads.flush().unwrap();
    assert!(collector.of("reads").is_empty());
}

#[test]
fn a_program_that_is_told_goes_on_in_the_same_trace() {
    /// Keeps the trace of what came.
    #[derive(Default)]
    struct Program(Mutex<Vec<(String, Vec<u8>)>>);

    impl Received for Program {
        fn notified(&self, context: &Context, _: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
            let trace = context.span().span_context().trace_id().to_string();
            self.0.lock().unwrap().push((trace, data.clone()));
            Some(data)
        }
    }

    let collector = Collector::start();
    let spans = collector.spans("both", 1.0);
    let program = Arc::new(Program::default());
    let ends = Ends::new(Joined::before(&spans, program.clone()));
    let span = spans.transfer(&Context::new(), "write", &ends.peer);
    let trace = span.context().span().span_context().trace_id().to_string();
    let write = ends.write().notification(span.carry(b"done"));
    ends.writer.post(write).unwrap().join().unwrap();
    assert_eq!(ends.told(), b"done");
    assert_eq!(*program.0.lock().unwrap(), [(trace, b"done".to_vec())]);
}

#[test]
fn a_transfer_that_fails_leaves_a_span_with_the_reason() {
    let collector = Collector::start();
    let spans = collector.spans("writes", 1.0);
    let ends = Ends::new(Joined::new(&spans));
    let span = spans.transfer(&Context::new(), "receive", &ends.peer);
    // Nobody sends.
    let receive = Request::receive(&ends.peer, 1).local(ends.here.all());
    let (ended, end) = mpsc::channel();
    let receive = receive.timeout(Duration::from_millis(20)).on_end(move |result| {
        span.end(result);
        let _ = ended.send(());
    });
    let error = ends.writer.post(receive).unwrap().join().unwrap_err();
    end.recv_timeout(PATIENCE).expect("the end is told");
    spans.flush().unwrap();
    let spans = collector.of("writes");
    let status = spans[0].status.as_ref().unwrap();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (StatusCode::Error, error.to_string().as_str())
    );
    assert_eq!(value(&spans[0].attributes, "polyrail.bytes"), None);
}

#[test]
fn without_a_collector_transfers_go_on_and_flush_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    drop(listener);
    let spans = Spans::start(Settings { sample_ratio: 1.0, ..Settings::to(&endpoint) }).unwrap();
    let ends = Ends::new(Joined::new(&spans));
    for _ in 0..20 {
        ends.write_with(&spans);
    }
    let refused = spans.flush().unwrap_err();
    assert!(matches!(refused, SpanError::Flush(_)), "{refused}");
}
