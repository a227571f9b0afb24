//! `execution_log.csv`: one line per sample with both ends, joined on configuration and repetition.

use crate::sample::End;
use crate::table::{Line, Row, Word, heading_line, write_row};

use super::{Event, Interval, Source};

/// Returns the log as text.
pub(super) fn write(source: &Source<'_>) -> String {
    let mut text = heading_line::<LogLine<'_>>();
    for event in &source.events {
        write_row(&LogLine { source, event }, &mut text);
    }
    text
}

struct LogLine<'a> {
    source: &'a Source<'a>,
    event: &'a Event<'a>,
}

impl Row for LogLine<'_> {
    const COLUMNS: &'static [&'static str] = &[
        "order",
        "session",
        "event",
        "config_id",
        "rep",
        "is_sentinel",
        "src",
        "dst",
        "path",
        "load",
        "size_bytes",
        "posted_unix_ns",
        "t_start_src_ns",
        "t_end_src_ns",
        "t_start_dst_ns",
        "t_end_dst_ns",
        "clock_unc_ns",
        "t_oneway_ns",
        "t_rtt2_ns",
        "t_gpu_ns",
        "t_host_ns",
        "bandwidth_bytes_per_s",
        "temp_src_c",
        "temp_dst_c",
        "clock_src_mhz",
        "clock_dst_mhz",
        "verify",
        "flags",
    ];

    fn write(&self, line: &mut Line) {
        let Event { sample, configuration, name, source, sink } = self.event;
        let run = self.source.folder.run();
        line.cell(sample.order);
        line.cell(sample.session);
        line.cell(name);
        line.cell(configuration.id);
        line.cell(sample.repetition);
        line.cell(self.source.folder.plan().is_sentinel(sample.repetition));
        line.cell(configuration.src);
        line.cell(configuration.dst);
        line.cell(configuration.path);
        line.cell(configuration.load);
        line.cell(configuration.size_bytes);
        line.cell(run.to_unix_ns(sample.posted_ns));
        for end in [source, sink] {
            line.optional(end.map(|end| run.to_unix_ns(end.start.ns)));
            line.optional(end.map(|end| run.to_unix_ns(end.end.ns)));
        }
        line.optional(uncertainty(source.as_ref(), sink.as_ref()));
        line.optional(sample.t_oneway_ns);
        line.optional(sample.t_rtt2_ns);
        line.optional(sample.t_gpu_ns);
        line.optional(sample.t_host_ns);
        line.optional(sample.bandwidth_bytes_per_s);
        let ends: [&End; 2] = [&sample.source, &sample.sink];
        ends.iter().for_each(|end| line.optional(end.temperature_c));
        ends.iter().for_each(|end| line.optional(end.sm_clock_mhz));
        line.cell(sample.verify.word());
        line.cell(sample.flags);
    }
}

/// Bound of the error between the two ends' times, in ns.
fn uncertainty(source: Option<&Interval>, sink: Option<&Interval>) -> Option<f64> {
    let worst = |end: &Interval| end.start.uncertainty_ns.max(end.end.uncertainty_ns);
    Some(worst(source?) + worst(sink?))
}
