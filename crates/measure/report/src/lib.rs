//! Report types and text output of Polyrail, and parsing of sizes and times.
//!
//! * [`exit`]: exit codes of the command.
//! * [`BenchReport`]: the JSON of `polyrail bench`, as types that serialise and deserialise.
//! * [`RunHead`]: the keys that reports of all commands share.
//! * [`RailEvent`]: events of rails during a measurement, the same in all reports.
//! * [`Histogram`] and [`Spread`]: the statistics behind each number.
//! * [`parse_sizes`], [`parse_duration`] and the functions that format them for people.
//! * [`Table`], [`sentences`] and [`csv_line`]: text for a terminal and for spreadsheets.
//!
//! Units: GB is 10^9 bytes, GiB 2^30. Every key in the JSON names its unit.
//!
//! Nothing here does I/O; all types are `Send + Sync`.
#![forbid(unsafe_code)]

pub mod exit;

mod bench;
mod csv;
mod events;
mod head;
mod histogram;
mod show;
mod spread;
mod table;
mod units;
mod wrap;

pub use bench::{
    AgainstAlone, AgainstRaw, AgainstSample, Baseline, BenchReport, BenchResult, CARRIED_LEAST,
    Fit, FitEnd, Fits, Host, Lab, LatencyUs, Limit, LimitKind, LoneRail, MemoryPlace,
    PathConsidered, PathTaken, PayloadProtection, PeerSample, PeerView, PlacedBy, PlacedThread,
    Placement, Protection, ProvenBy, RailShare, RatioInterval, SCHEMA_VERSION, Sample, Setting,
    SweepRow, Tried,
};
pub use csv::csv_line;
pub use events::{RailEvent, RailEventKind};
pub use head::{RunHead, Tool};
pub use histogram::Histogram;
pub use polyrail_config::{cell, json_in_markup, markup, show_size};
pub use show::{
    counted, show_count, show_gb_per_s, show_memory, show_micros, show_rate, show_ratio,
    without_invitation,
};
pub use spread::{Spread, is_undecided, median, median_of_sorted, show_ratio_range, show_spread};
pub use table::{Align, Table};
pub use units::{BadUnit, SIZES_LIMIT, bare_unit_note, parse_duration, parse_size, parse_sizes};
pub use wrap::{sentences, wrapped};
