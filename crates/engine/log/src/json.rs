//! Records as JSON lines, described by `schemas/log.json`.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

const SCHEMA_VERSION: u32 = 1;

/// Writes each record as one line.
pub(crate) struct Json {
    pub(crate) host: String,
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut said = Said::default();
        event.record(&mut said);
        let target = event.metadata().target();
        let line = Line {
            schema_version: SCHEMA_VERSION,
            time: &time,
            level: &event.metadata().level().as_str().to_ascii_lowercase(),
            subsystem: subsystem(target).unwrap_or(target),
            message: &said.message,
            fields: &said.fields,
            host: &self.host,
            pid: std::process::id(),
        };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// Fields in the order in which people read them.
#[derive(Serialize)]
struct Line<'a> {
    schema_version: u32,
    time: &'a str,
    level: &'a str,
    subsystem: &'a str,
    message: &'a str,
    fields: &'a Map<String, Value>,
    host: &'a str,
    pid: u32,
}

/// Subsystem of a record with the target `polyrail::rail`, or below that.
pub(crate) fn subsystem(target: &str) -> Option<&str> {
    target.strip_prefix("polyrail::").map(|rest| rest.split("::").next().unwrap_or(rest))
}

#[derive(Default)]
struct Said {
    message: String,
    fields: Map<String, Value>,
}

impl Said {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.put(field, text.into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.put(field, value.into()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no NaN or infinity.
        let number = serde_json::Number::from_f64(value);
        self.put(field, number.map_or_else(|| value.to_string().into(), Value::Number));
    }
}
