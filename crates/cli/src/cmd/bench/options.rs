//! Options of `polyrail bench`, the settings that follow from them, and the schedule of the measurements.

mod args;
mod change;
mod check;
mod choices;
mod configure;
mod derived;
mod fit_rates;
mod layout;
mod listeners;
mod memory_kind;
mod nccl_mode;
mod near;
mod placement;
mod role;
mod schedule;

pub(crate) use self::args::{Args, Report, usual_warmup};
pub(crate) use self::change::{BINDINGS, Change, TRIED_SETTINGS, UNPROTECTED, changed_config};
pub(crate) use self::check::check_options;
pub(crate) use self::choices::{Against, Op, Verify, not_devices};
pub(crate) use self::derived::{like, lone_rail_config, other_config, settings_for_child};
pub(crate) use self::fit_rates::FitRates;
pub(crate) use self::layout::{Layout, Piece};
pub(crate) use self::memory_kind::MemoryKind;
pub(crate) use self::nccl_mode::NcclMode;
pub(crate) use self::placement::{Placed, place_together};
pub(crate) use self::role::{Role, Server};
pub(crate) use self::schedule::{
    DEPTH_MAX, OUTSTANDING_SEGMENTS_MAX, POSTERS_MAX, SEGMENTS_MAX, Schedule,
};
