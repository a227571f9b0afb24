//! What is measured at one moment, and its text.

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

/// The figures of one moment, of any number of engines.
#[derive(Debug, Default)]
pub struct Samples {
    /// Labels of the engine whose figures come.
    common: Vec<(&'static str, String)>,
    rows: Vec<(&'static Family, Vec<Row>)>,
}

/// Something that has figures.
pub trait Source: Send + Sync {
    /// What to call it, for the label `engine`. Others may have the same name.
    fn name(&self) -> String;

    /// Adds its figures. It may be called from any thread, and must not wait for anything but short
    /// locks.
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
    /// The sum, and how many values are in each bucket, with its upper bound; the last one has none.
    Buckets(f64, Vec<(f64, u64)>),
    Info,
}

impl Samples {
    /// From now on, figures are those of this engine.
    pub(crate) fn of(&mut self, common: Vec<(&'static str, String)>) {
        self.common = common.into_iter().map(|(name, it)| (name, value_of(&it))).collect();
    }

    /// Adds a number that only grows, or one that is whole.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.add(family, labels, Value::Count(value));
    }

    /// Adds a number.
    pub fn number(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.add(family, labels, Value::Number(value));
    }

    /// Adds a histogram: the sum of all values, and for each bucket its upper bound and how many values
    /// are in it and in no smaller one. The bound of the last one is infinite.
    pub fn histogram(
        &mut self,
        family: &'static Family,
        labels: &[&str],
        sum: f64,
        buckets: Vec<(f64, u64)>,
    ) {
        self.add(family, labels, Value::Buckets(sum, buckets));
    }

    /// Adds labels that say what there is to say.
    pub fn info(&mut self, family: &'static Family, labels: &[&str]) {
        self.add(family, labels, Value::Info);
    }

    fn add(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        assert_eq!(labels.len(), family.labels.len(), "{}: labels", family.name);
        // What reads them refuses labels that steer a terminal, and all else with them.
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

/// Hands the rows to the encoder.
#[derive(Debug)]
struct Collected(Mutex<Vec<(&'static Family, Vec<Row>)>>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let rows = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (family, rows) in rows.iter() {
            let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
            // The encoder adds the full stop to what it registers itself, and not here.
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind(family))?;
            for row in rows {
                write(&mut metric, family.kind, row)?;
            }
        }
        Ok(())
    }
}

/// A value of a label, as readers take it.
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
