//! Files for other programs, derived from the samples: the execution log and traces.

mod chrome;
mod log;
mod perfetto;

use std::path::PathBuf;

use polyrail_sys::files::{make_folders, require_replaceable};

use crate::clock::{Aligned, Alignment};
use crate::error::ProfileError;
use crate::folder::{Folder, replace};
use crate::plan::Configuration;
use crate::sample::{End, Sample};
use crate::thermal::Temperature;

/// Folder of the traces for PyTorch's tools. HTA opens every `.json` in the folder that it is given, so the folder
/// holds nothing else.
const KINETO: &str = "kineto";
const EXECUTION_LOG: &str = "execution_log.csv";
const PERFETTO: &str = "trace.pftrace";

/// Data that all writers share.
struct Source<'a> {
    folder: &'a Folder,
    alignment: Alignment,
    events: Vec<Event<'a>>,
    temperatures: Vec<Temperature>,
    /// Base of all times in JSON traces, in ns since 1970 UTC; one for all ranks.
    base_unix_ns: i64,
}

/// A sample with its times on the reference clock, as far as known.
struct Event<'a> {
    sample: Sample,
    configuration: &'a Configuration,
    name: String,
    source: Option<Interval>,
    sink: Option<Interval>,
}

/// Start and end on the reference clock, in ns.
#[derive(Clone, Copy)]
struct Interval {
    start: Aligned,
    end: Aligned,
}

impl Interval {
    fn length_ns(&self) -> f64 {
        self.end.ns.saturating_sub(self.start.ns) as f64
    }
}

impl Folder {
    /// Writes `execution_log.csv`, `kineto/rank_N.pt.trace.json`, `rank_N_CPU_trace.json` and `trace.pftrace`, with the
    /// alignment from the current anchors. Omits times of clocks without anchors, and times that end before they begin.
    ///
    /// # Errors
    /// If tables can't be read, anchors are inconsistent, or the system refuses.
    pub fn write_derived(&self) -> Result<(), ProfileError> {
        let source = Source::read(self)?;
        replace(&self.dir().join(EXECUTION_LOG), log::write(&source).as_bytes())?;
        let kineto = self.dir().join(KINETO);
        make_folders(&kineto, 0o777).map_err(ProfileError::io("create", &kineto))?;
        for endpoint in &self.plan().endpoints {
            let rank = endpoint.rank;
            let pid = self.metadata(rank)?.map(|metadata| metadata.pid);
            let trace = chrome::kineto(&source, endpoint, pid);
            replace(&self.kineto_trace(rank), trace.as_bytes())?;
            let trace = chrome::cpu(&source, endpoint, pid);
            replace(&self.cpu_trace(rank), trace.as_bytes())?;
        }
        replace(&self.dir().join(PERFETTO), &perfetto::write(&source))
    }

    /// Checks that nothing in the folder blocks [`Self::write_derived`], before hours go into measuring.
    ///
    /// # Errors
    /// If a file can't be replaced, with its name.
    pub(crate) fn require_derivable(&self) -> Result<(), ProfileError> {
        let ranks = self.plan().endpoints.iter().map(|endpoint| endpoint.rank);
        let traces = ranks.flat_map(|rank| [self.kineto_trace(rank), self.cpu_trace(rank)]);
        let tables = [EXECUTION_LOG, PERFETTO].map(|name| self.dir().join(name));
        for path in tables.into_iter().chain(traces) {
            require_replaceable(&path).map_err(ProfileError::io("write to", &path))?;
        }
        Ok(())
    }

    fn kineto_trace(&self, rank: u32) -> PathBuf {
        self.dir().join(KINETO).join(format!("rank_{rank}.pt.trace.json"))
    }

    fn cpu_trace(&self, rank: u32) -> PathBuf {
        self.dir().join(format!("rank_{rank}_CPU_trace.json"))
    }
}

impl<'a> Source<'a> {
    fn read(folder: &'a Folder) -> Result<Self, ProfileError> {
        let alignment = folder.alignment()?;
        let interval = |end: &End| {
            let (clock, start, stop) = (end.clock?, end.start_ns?, end.end_ns?);
            let start = alignment.to_reference(clock, start).ok()?;
            let end = alignment.to_reference(clock, stop).ok()?;
            (start.ns <= end.ns).then_some(Interval { start, end })
        };
        let plan = folder.plan();
        let events: Vec<Event<'_>> = folder
            .samples()?
            .into_iter()
            .filter_map(|sample| {
                // Reading checked that the plan has it.
                let configuration = plan.configuration(sample.configuration)?;
                Some(Event {
                    name: plan.event_name(configuration, sample.repetition),
                    source: interval(&sample.source),
                    sink: interval(&sample.sink),
                    sample,
                    configuration,
                })
            })
            .collect();
        let temperatures = folder.temperatures()?;
        let starts = events.iter().flat_map(|event| {
            let ends = [event.source, event.sink].into_iter().flatten();
            ends.map(|interval| interval.start.ns).chain([event.sample.posted_ns])
        });
        let looks = temperatures.iter().map(|look| look.at_ns);
        let run = folder.run();
        let first = starts.chain(looks).min().unwrap_or(run.reference_ns);
        let base_unix_ns =
            run.to_unix_ns(first).div_euclid(1_000_000_000).saturating_mul(1_000_000_000);
        Ok(Self { folder, alignment, events, temperatures, base_unix_ns })
    }

    /// Converts a time of the reference clock to ns since the base.
    fn since_base_ns(&self, reference_ns: i64) -> i64 {
        self.folder.run().to_unix_ns(reference_ns).saturating_sub(self.base_unix_ns)
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
