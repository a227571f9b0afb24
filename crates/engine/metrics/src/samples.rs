//! Measurements of one moment, and their text.

use std::fmt;
use std::sync::Mutex;

use polyrail_config::shortened;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::exposition::LONGEST_OWN_VALUE;
use crate::families::{Family, Kind, PREFIX, all};

/// The metrics of one moment, of any number of engines.
#[derive(Debug, Default)]
pub struct Samples {
    /// Labels of the engine whose metrics are being added.
    common: Vec<(&'static str, String)>,
    rows: Vec<(&'static Family, Vec<Row>)>,
}

/// A source of metrics.
pub trait Source: Send + Sync {
    /// Name for the label `engine`. Other sources may have the same one.
    fn name(&self) -> String;

    /// Adds its metrics. May be called from any thread, and must wait for nothing but short locks.
    fn collect(&self, samples: &mut Samples);
}

#[derive(Debug)]
struct Row {
    labels: Labels,
    value: Value,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Count(u64),
    Number(f64),
    /// The sum, and for each bucket its upper bound and its count; the last bound is infinite.
    Buckets(f64, Vec<(f64, u64)>),
    Info,
}

impl Samples {
    /// Sets the labels of the engine whose metrics follow.
    pub(crate) fn of(&mut self, common: Vec<(&'static str, String)>) {
        self.common = common.into_iter().map(|(name, it)| (name, value_of(&it))).collect();
    }

    /// Adds a number that only grows, or an integer.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.add(family, labels, Value::Count(value));
    }

    /// Adds a number.
    pub fn number(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.add(family, labels, Value::Number(value));
    }

    /// Adds a histogram: the sum of all values, and for each bucket its upper bound and the number of values in it and
    /// in no smaller one. The last bound is infinite.
    pub fn histogram(
        &mut self,
        family: &'static Family,
        labels: &[&str],
        sum: f64,
        buckets: Vec<(f64, u64)>,
    ) {
        self.add(family, labels, Value::Buckets(sum, buckets));
    }

    /// Adds an info metric, whose labels hold its information.
    pub fn info(&mut self, family: &'static Family, labels: &[&str]) {
        self.add(family, labels, Value::Info);
    }

    fn add(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        assert_eq!(labels.len(), family.labels.len(), "{}: labels", family.name);
        // Readers refuse labels that steer a terminal, and the whole text with them.
        let labels = labels.iter().map(|one| value_of(one));
        let own = family.labels.iter().copied().zip(labels);
        let row = Row { labels: self.common.iter().cloned().chain(own).collect(), value };
        match self.rows.iter_mut().find(|(one, _)| std::ptr::eq(*one, family)) {
            Some((_, rows)) => rows.push(row),
            None => self.rows.push((family, vec![row])),
        }
    }

    /// The text, in the format of OpenMetrics.
    pub fn text(mut self) -> String {
        // In the order of the documentation.
        let place = |family: &Family| all().position(|one| std::ptr::eq(one, family));
        self.rows.sort_by_key(|(family, _)| place(family));
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Collected(Mutex::new(self.rows))));
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// Passes the rows to the encoder.
#[derive(Debug)]
struct Collected(Mutex<Vec<(&'static Family, Vec<Row>)>>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let rows = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (family, rows) in rows.iter() {
            let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
            // The encoder adds the full stop to help texts that it registers itself, but not here.
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind(family))?;
            for row in rows {
                write(&mut metric, family.kind, row)?;
            }
        }
        Ok(())
    }
}

/// Limits the value of a label to what readers accept.
fn value_of(text: &str) -> String {
    shortened(text, LONGEST_OWN_VALUE)
}

fn kind(family: &Family) -> MetricType {
    match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    }
}

fn write(metric: &mut MetricEncoder<'_>, kind: Kind, row: &Row) -> fmt::Result {
    if let Value::Info = row.value {
        return metric.encode_info(&row.labels);
    }
    let mut metric = metric.encode_family(&row.labels)?;
    match (&row.value, kind) {
        (Value::Count(count), Kind::Counter) => {
            metric.encode_counter::<NoLabelSet, _, f64>(count, None)
        }
        (Value::Number(number), Kind::Counter) => {
            metric.encode_counter::<NoLabelSet, _, f64>(number, None)
        }
        (Value::Count(count), _) => metric.encode_gauge(count),
        (Value::Number(number), _) => metric.encode_gauge(number),
        (Value::Buckets(sum, buckets), _) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        (Value::Info, _) => Ok(()),
    }
}
