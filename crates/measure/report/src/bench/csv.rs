//! The report as CSV: one line per size.

use polyrail_config::cell;

use super::BenchReport;
use crate::csv::csv_line;

impl BenchReport {
    /// Returns a heading line and one line per size; a missing number is an empty field.
    pub fn csv(&self) -> String {
        let mut text = csv_line(HEADINGS);
        for result in &self.results {
            let latency = result.latency_us;
            // One sample has no spread.
            let spread = Some(result.spread_gb_per_s).filter(|_| result.samples.len() > 1);
            let against = result.against.as_ref();
            let alone = result.alone.as_ref();
            let number =
                |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let share = |rail: &crate::RailShare| format!("{}={:.4}", rail.name, rail.share);
            let fields = [
                result.size_bytes.to_string(),
                result.op.clone(),
                result.segments.to_string(),
                result.depth.to_string(),
                result.bidir.to_string(),
                result.transfers.to_string(),
                result.bytes.to_string(),
                result.seconds.to_string(),
                result.transfers_per_s.to_string(),
                result.gb_per_s.to_string(),
                number(spread.map(|spread| spread.min)),
                number(spread.map(|spread| spread.max)),
                number(latency.map(|latency| latency.p50)),
                number(latency.map(|latency| latency.p99)),
                number(latency.map(|latency| latency.p999)),
                number(latency.map(|latency| latency.max)),
                result.verified.to_string(),
                number(result.cpu_seconds_per_gb),
                result.rails.iter().map(share).collect::<Vec<_>>().join(" "),
                result.rails.iter().map(|rail| rail.retransmits).sum::<u64>().to_string(),
                number(against.map(|against| against.raw_gb_per_s)),
                number(against.map(|against| against.ratio)),
                number(against.and_then(|against| against.raw_cpu_seconds_per_gb)),
                number(against.and_then(|against| against.cpu_ratio)),
                number(alone.map(|alone| alone.sum_gb_per_s)),
                number(alone.map(|alone| alone.ratio)),
                result.limit.verdict.to_string(),
            ];
            // The names of rails come from devices.
            text += &csv_line(fields.iter().map(|field| cell(field)));
        }
        text
    }
}

const HEADINGS: [&str; 27] = [
    "size_bytes",
    "op",
    "segments",
    "depth",
    "bidir",
    "transfers",
    "bytes",
    "seconds",
    "transfers_per_s",
    "gb_per_s",
    "gb_per_s_min",
    "gb_per_s_max",
    "latency_us_p50",
    "latency_us_p99",
    "latency_us_p999",
    "latency_us_max",
    "verified",
    "cpu_seconds_per_gb",
    "rail_shares",
    "retransmits",
    "raw_gb_per_s",
    "ratio",
    "raw_cpu_seconds_per_gb",
    "cpu_ratio",
    "alone_sum_gb_per_s",
    "alone_ratio",
    "limit",
];

#[cfg(test)]
mod tests {
    use crate::bench::tests::sample_report;

    #[test]
    fn every_line_has_as_many_fields_as_headings() {
        let csv = sample_report().csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert!(lines[1].starts_with("250000000,write,1,1,false,10,"), "{}", lines[1]);
        assert!(lines[1].ends_with(",cpu"), "{}", lines[1]);
        assert!(lines[1].contains(",5,,,50,60,"), "one sample has no spread: {}", lines[1]);
    }
}
