//! The results of a layout, as its first worker reports them.

use std::time::Duration;

use super::direct::Told;
use super::plan::Layout;
use super::report::{LayoutReport, MeshReport};
use crate::crew::{self, Worker};
use crate::fault::Fault;
use crate::lines::QUEUED_MAX;
use crate::progress::Progress;

/// Takes the messages of a layout's first worker into the report.
pub(crate) struct Heard<'r> {
    pub(crate) report: &'r mut MeshReport,
    pub(crate) layout: Layout,
    pub(crate) processes: usize,
    /// Starts with the first message.
    pub(crate) progress: &'r mut Option<Progress>,
    /// Minimum time of this layout and those after it.
    pub(crate) left: Duration,
    /// The end of the layout, if it came, with the error if it was early.
    pub(crate) end: Option<Option<Fault>>,
}

impl Heard<'_> {
    /// Takes the queued lines of the worker, [`QUEUED_MAX`] at most, as it may print without end. Waits `within` at
    /// most for each line. Returns whether there may be more.
    pub(crate) fn take_from(&mut self, worker: &Worker, within: Duration) -> bool {
        for _ in 0..QUEUED_MAX {
            let crew::Heard::Line(line) = worker.hear(within) else { return false };
            // A shell on another host may print lines, too.
            if let Ok(told) = serde_json::from_str(&line) {
                self.take(told);
            }
        }
        true
    }

    fn take(&mut self, told: Told) {
        if matches!(told, Told::Nodes(_)) && self.report.layouts.is_empty() {
            // The plan is known from here on. End the earlier progress first: a terminal shows only one.
            *self.progress = None;
            let progress = Progress::new();
            progress.plan_time(self.left);
            *self.progress = Some(progress);
        }
        let progress = self.progress.get_or_insert_with(|| Progress::waiting("starting"));
        match told {
            Told::Nodes(nodes) => {
                let (layout, processes) = (self.layout, self.processes);
                self.report.layouts.push(LayoutReport { layout, processes, patterns: Vec::new() });
                if self.report.hosts.is_empty() {
                    self.report.hosts = nodes.into_iter().map(|about| about.host).collect();
                }
            }
            Told::Doing(what) => progress.say(what),
            Told::Spent(time) => progress.did(time.as_secs_f64()),
            Told::Pattern(pattern) => {
                if let Some(layout) = self.report.layouts.last_mut() {
                    layout.patterns.push(*pattern);
                }
            }
            Told::End(failed) => self.end = Some(failed),
        }
    }
}
