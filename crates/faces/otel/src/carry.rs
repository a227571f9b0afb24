//! A trace's context in front of a notification.

use std::collections::HashMap;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Prefix of a notification that carries a context. A program's own notifications are unlikely to start with it.
const MARK: &[u8] = b"\0w3c-trace:";

/// Maximum bytes of a context. W3C allows `tracestate` to be cut to 512 characters.
const MOST: usize = 1024;

/// Length of a `traceparent`: `00-TRACE-SPAN-FLAGS`. The library accepts shorter ones, too.
const PARENT_LEN: usize = 55;

/// Puts the context in front: mark, `traceparent`, optionally a space and `tracestate`, newline.
pub(crate) fn put(context: &Context, notification: &[u8]) -> Vec<u8> {
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(context, &mut fields);
    let Some(parent) = fields.get("traceparent") else { return notification.to_vec() };
    let mut line = parent.clone();
    if let Some(state) = fields.get("tracestate").filter(|state| !state.is_empty()) {
        line = format!("{line} {state}");
    }
    if line.len() > MOST {
        line.clone_from(parent);
    }
    [MARK, line.as_bytes(), b"\n", notification].concat()
}

/// Splits a notification into a peer's context and the rest. `None` if there is no valid context.
pub(crate) fn take(data: &[u8]) -> Option<(Context, &[u8])> {
    let rest = data.strip_prefix(MARK)?;
    let end = rest.iter().take(MOST + 1).position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&rest[..end]).ok()?;
    let (parent, state) = line.split_once(' ').unwrap_or((line, ""));
    if parent.len() != PARENT_LEN {
        return None;
    }
    let fields = HashMap::from([
        ("traceparent".to_owned(), parent.to_owned()),
        ("tracestate".to_owned(), state.to_owned()),
    ]);
    // This thread's context must not show through an invalid one.
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &fields);
    let is_valid = context.span().span_context().is_valid();
    is_valid.then_some((context, &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    use super::*;

    fn context(state: &str) -> Context {
        Context::new().with_remote_span_context(SpanContext::new(
            TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
            SpanId::from_hex("00f067aa0ba902b7").unwrap(),
            TraceFlags::SAMPLED,
            true,
            TraceState::from_str(state).unwrap(),
        ))
    }

    #[test]
    fn a_context_comes_back_as_it_was_put_and_the_notification_too() {
        for state in ["", "rojo=00f067aa0ba902b7"] {
            for notification in [&b""[..], b"done", b"\n\0w3c-trace:"] {
                let data = put(&context(state), notification);
                let (taken, rest) = take(&data).unwrap();
                assert_eq!(rest, notification);
                assert_eq!(taken.span().span_context(), context(state).span().span_context());
            }
        }
        let data = put(&context(""), b"x");
        let line = b"\0w3c-trace:00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\nx";
        assert_eq!(data, line);
    }

    #[test]
    fn what_is_no_context_stays_in_the_notification() {
        assert_eq!(put(&Context::new(), b"done"), b"done");
        let zeros = "00-00000000000000000000000000000000-0000000000000000-01";
        let long = "0".repeat(2000);
        for line in ["", "00", zeros, "00-4bf9-00f0-01", long.as_str(), "\u{e9}"] {
            let data = format!("\0w3c-trace:{line}\ndone");
            assert!(take(data.as_bytes()).is_none(), "{line}");
        }
        for data in [&b""[..], b"\0w3c-trace:", b"done", b"\0w3c-trace:\xff\n"] {
            assert!(take(data).is_none(), "{data:?}");
        }
    }
}
