//! Clocks and devices during the profile.

use std::collections::BTreeMap;

use polyrail_profile::{AnchorMethod, Folder, ProfileError, Temperature};
use serde::Serialize;

/// Quality of comparing times of different devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clocks {
    /// Every clock except the reference.
    pub clocks: Vec<ClockReport>,
    /// Direct comparisons of devices, which check the alignment.
    pub triangles: Vec<TriangleReport>,
    /// Names of clocks that were never compared with the reference.
    pub without_anchors: Vec<String>,
}

/// One clock against its parent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockReport {
    /// Number of the clock in `run.yml`.
    pub clock: u32,
    pub name: String,
    /// Clock that it is aligned to.
    pub parent: u32,
    /// Methods of its anchors.
    pub methods: Vec<&'static str>,
    /// Smallest step of the clock, in ns.
    pub tick_ns: f64,
    /// Number of anchors.
    pub anchors: usize,
    /// Number of windows.
    pub windows: usize,
    /// Rate of the parent above that of the clock, in ppm.
    pub rate_ppm: Option<f64>,
    /// Half of a 95 % interval of the rate, in ppm.
    pub rate_ci_ppm: Option<f64>,
    /// Error that interpolation between windows may add, in ns.
    pub wander_ns: f64,
    /// Error bound of an aligned time, in ns.
    pub bound_ns: f64,
    /// Windows whose anchors contradict each other.
    pub contradictions: u32,
    /// Seconds since the first window, distance of the offset from the fitted line in ns, and its error bound in ns.
    pub series: Vec<(f64, f64, f64)>,
}

/// One direct comparison of two devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriangleReport {
    pub clock: u32,
    pub peer: u32,
    pub anchors: u32,
    /// Median difference between the alignment over the host and the direct comparison, in ns.
    pub median_ns: f64,
    pub max_ns: f64,
    /// Largest difference possible if every bound holds, in ns.
    pub bound_ns: f64,
    /// Whether the difference stays within the bounds.
    pub closes: bool,
}

/// One device over the profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Thermal {
    pub rank: u32,
    /// Number of readings.
    pub looks: usize,
    /// Minimum, median and maximum, in °C.
    pub temperature_c: Option<[f64; 3]>,
    /// Minimum, median and maximum, in W.
    pub power_w: Option<[f64; 3]>,
    /// Minimum, median and maximum, in MHz.
    pub sm_clock_mhz: Option<[f64; 3]>,
    /// Readings at which the device was throttled.
    pub throttled_looks: usize,
    /// Readings over time; thinned out to what a chart can show.
    pub series: Vec<ThermalPoint>,
}

/// One reading of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThermalPoint {
    /// Minutes since the first reading of any device.
    pub minute: f64,
    pub temperature_c: Option<f64>,
    pub power_w: Option<f64>,
    pub sm_clock_mhz: Option<u32>,
}

/// Reports the clocks of a folder.
pub(crate) fn clocks(folder: &Folder) -> Result<Clocks, ProfileError> {
    let anchors = folder.anchors()?;
    let alignment = folder.alignment()?;
    let report = |fit: &polyrail_profile::ClockFit| {
        let listed = folder.run().clocks.iter().find(|clock| clock.id == fit.clock);
        let own = || {
            let is_own = |anchor: &&polyrail_profile::Anchor| {
                anchor.clock == fit.clock && anchor.method != AnchorMethod::Peer
            };
            anchors.iter().filter(is_own)
        };
        let mut methods: Vec<&'static str> =
            own().map(|anchor| polyrail_profile::Word::word(anchor.method)).collect();
        methods.sort_unstable();
        methods.dedup();
        let first = fit.windows.first().copied();
        let rate = fit.rate_ppm.unwrap_or(0.0) * 1e-6;
        let series = fit.windows.iter().filter_map(|window| {
            let first = first?;
            let since_ns = window.clock_ns.saturating_sub(first.clock_ns) as f64;
            let moved_ns = window.offset_ns.saturating_sub(first.offset_ns) as f64;
            Some((since_ns / 1e9, moved_ns - rate * since_ns, window.half_width_ns))
        });
        ClockReport {
            clock: fit.clock,
            name: listed.map_or_else(|| fit.clock.to_string(), |clock| clock.name.clone()),
            parent: fit.parent,
            methods,
            tick_ns: listed.map_or(0.0, |clock| clock.tick_ns),
            anchors: own().count(),
            windows: fit.windows.len(),
            rate_ppm: fit.rate_ppm,
            rate_ci_ppm: fit.rate_ci_ppm,
            wander_ns: fit.wander_ns,
            bound_ns: fit.bound_ns,
            contradictions: fit.contradictions,
            series: thinned(series.collect()),
        }
    };
    let triangles = alignment.triangles(&anchors).into_iter().map(|one| TriangleReport {
        clock: one.clock,
        peer: one.peer,
        anchors: one.anchors,
        median_ns: one.median_ns,
        max_ns: one.max_ns,
        bound_ns: one.bound_ns,
        closes: one.max_ns <= one.bound_ns,
    });
    let clocks: Vec<ClockReport> = alignment.fits().map(report).collect();
    let has_anchors = |id: u32| id == 0 || clocks.iter().any(|one| one.clock == id);
    let without = folder.run().clocks.iter().filter(|clock| !has_anchors(clock.id));
    Ok(Clocks {
        without_anchors: without.map(|clock| clock.name.clone()).collect(),
        clocks,
        triangles: triangles.collect(),
    })
}

/// Reports the devices of a folder that have readings.
pub(crate) fn thermals(looks: &[Temperature]) -> Vec<Thermal> {
    let mut by_rank: BTreeMap<u32, Vec<&Temperature>> = BTreeMap::new();
    for look in looks {
        by_rank.entry(look.rank).or_default().push(look);
    }
    let start_ns = looks.iter().map(|look| look.at_ns).min().unwrap_or(0);
    let thermal = |(rank, looks): (u32, Vec<&Temperature>)| Thermal {
        rank,
        looks: looks.len(),
        temperature_c: range(looks.iter().filter_map(|look| look.temperature_c)),
        power_w: range(looks.iter().filter_map(|look| look.power_w)),
        sm_clock_mhz: range(looks.iter().filter_map(|look| look.sm_clock_mhz.map(f64::from))),
        throttled_looks: looks.iter().filter(|look| look.is_throttled()).count(),
        series: thinned(
            looks
                .iter()
                .map(|look| ThermalPoint {
                    minute: look.at_ns.saturating_sub(start_ns) as f64 / 60e9,
                    temperature_c: look.temperature_c,
                    power_w: look.power_w,
                    sm_clock_mhz: look.sm_clock_mhz,
                })
                .collect(),
        ),
    };
    by_rank.into_iter().map(thermal).collect()
}

/// Maximum number of points that a chart can show.
const POINTS_MAX: usize = 400;

fn thinned<T>(points: Vec<T>) -> Vec<T> {
    let every = points.len().div_ceil(POINTS_MAX).max(1);
    points.into_iter().step_by(every).collect()
}

fn range(numbers: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (low, high) = (*sorted.first()?, *sorted.last()?);
    Some([low, crate::stats::median(&sorted), high])
}
