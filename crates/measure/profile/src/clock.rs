//! Aligns the clocks of several devices, from raw anchors. The folder keeps the anchors, so better methods can align
//! them again.
//!
//! Each clock has a parent, and clock 0, the reference, is the root. An anchor brackets a stamp of a clock by two
//! stamps of its parent, so the offset lies between two bounds. A least-squares line over all windows gives the rate;
//! after removing it, the alignment intersects the bounds of all anchors within a window. If bounds contradict each
//! other, the narrowest anchor counts. Between windows, the alignment interpolates the offset, since the rate varies
//! with temperature.

use std::collections::BTreeMap;

use polyrail_report::Spread;
use serde::{Deserialize, Serialize};

use crate::error::ProfileError;
use crate::sample::stamp;
use crate::table::{Cells, Line, ReadRow, Row, Word};

/// A clock, as `run.yml` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Number of the clock; 0 is the reference.
    pub id: u32,
    /// Name for people, such as `gpu0` or `host`.
    pub name: String,
    /// Kind of clock: `tsc`, `monotonic_raw`, `globaltimer` …
    pub kind: String,
    /// Endpoint that the clock belongs to, if any.
    pub rank: Option<u32>,
    /// Smallest step of the clock, as measured, in ns.
    pub tick_ns: f64,
}

/// Method of taking an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorMethod {
    /// Stamps of the parent, the clock, and the parent again.
    Bracket,
    /// Like bracket, at the moment when the clock steps, so its tick adds no error.
    Edge,
    /// Comparison of two devices: checks other anchors, and aligns these two where it is tighter.
    Peer,
    /// Comparison of two hosts, over the network.
    Network,
}

impl Word for AnchorMethod {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("bracket", Self::Bracket),
        ("edge", Self::Edge),
        ("peer", Self::Peer),
        ("network", Self::Network),
    ];
}

/// One comparison of a clock with its parent: a line of `anchors.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub clock: u32,
    /// Clock that it is compared with; for a [peer](AnchorMethod::Peer) anchor, another device.
    pub parent: u32,
    /// Number of the window; the anchors of a window were taken together.
    pub window: u32,
    pub method: AnchorMethod,
    /// Stamp of the parent before the clock's, in ns.
    pub parent_before_ns: i64,
    /// Stamp of the clock, in ns.
    pub clock_ns: i64,
    /// Stamp of the parent after the clock's, in ns.
    pub parent_after_ns: i64,
}

impl Row for Anchor {
    const COLUMNS: &'static [&'static str] =
        &["clock", "parent", "window", "method", "parent_before_ns", "clock_ns", "parent_after_ns"];

    fn write(&self, line: &mut Line) {
        line.cell(self.clock);
        line.cell(self.parent);
        line.cell(self.window);
        line.cell(self.method.word());
        line.cell(self.parent_before_ns);
        line.cell(self.clock_ns);
        line.cell(self.parent_after_ns);
    }
}

impl ReadRow for Anchor {
    fn read(cells: &Cells<'_>) -> Result<Self, ProfileError> {
        let anchor = Self {
            clock: cells.whole(0, 0..=u32::MAX)?,
            parent: cells.whole(1, 0..=u32::MAX)?,
            window: cells.whole(2, 0..=u32::MAX)?,
            method: cells.word(3)?,
            parent_before_ns: stamp(cells, 4)?,
            clock_ns: stamp(cells, 5)?,
            parent_after_ns: stamp(cells, 6)?,
        };
        match anchor.parent_after_ns.checked_sub(anchor.parent_before_ns) {
            Some(0..) => Ok(anchor),
            _ => Err(cells.fault(6, format!("from {} on", anchor.parent_before_ns))),
        }
    }
}

/// A stamp on the reference clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aligned {
    /// Time of the reference clock, in ns.
    pub ns: i64,
    /// Error bound, in ns.
    pub uncertainty_ns: f64,
}

/// Fit of one clock against its parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockFit {
    pub clock: u32,
    pub parent: u32,
    /// Rate of the parent above that of the clock, in parts per million; `None` with one window.
    pub rate_ppm: Option<f64>,
    /// Half of a 95 % interval around the rate, in ppm; `None` with fewer than three windows.
    pub rate_ci_ppm: Option<f64>,
    /// Largest distance of a window from the line between its neighbours, in ns: the possible error of interpolation.
    pub wander_ns: f64,
    /// Largest error bound between the first and the last window, in ns.
    pub bound_ns: f64,
    /// Number of windows whose anchors contradict each other, so that only the narrowest was used.
    pub contradictions: u32,
    /// Windows in the order of time.
    pub windows: Vec<Window>,
}

/// Result of the anchors of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Stamp of the clock in the narrowest anchor of the window, in ns.
    pub clock_ns: i64,
    /// Offset from the clock to its parent, in ns.
    pub offset_ns: i64,
    /// Error bound of the offset, in ns.
    pub half_width_ns: f64,
    /// Number of anchors in the window.
    pub anchors: u32,
}

/// Direct comparison of two devices' stamps with the alignment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triangle {
    pub clock: u32,
    pub peer: u32,
    pub anchors: u32,
    /// Median difference between the alignment over the host and the direct comparison, in ns.
    pub median_ns: f64,
    /// Largest difference, in ns.
    pub max_ns: f64,
    /// Largest difference possible if every bound holds, in ns.
    pub bound_ns: f64,
}

/// Alignment of every clock with the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alignment {
    fits: BTreeMap<u32, ClockFit>,
    /// Fits of direct comparisons, by clock and the clock that it was compared with.
    direct: BTreeMap<(u32, u32), ClockFit>,
}

impl Alignment {
    /// Fits all clocks.
    ///
    /// # Errors
    /// If a clock has more than one parent, has anchors but is not listed, or does not lead to clock 0.
    pub fn fit(clocks: &[Clock], anchors: &[Anchor]) -> Result<Self, ProfileError> {
        let mut by_clock: BTreeMap<u32, Vec<Anchor>> = BTreeMap::new();
        for anchor in anchors.iter().filter(|anchor| anchor.method != AnchorMethod::Peer) {
            by_clock.entry(anchor.clock).or_default().push(*anchor);
        }
        let mut fits = BTreeMap::new();
        for (clock, anchors) in by_clock {
            let Some(listed) = clocks.iter().find(|listed| listed.id == clock) else {
                return Err(fault(clock, "has anchors and is not listed in run.yml"));
            };
            let parent = anchors[0].parent;
            if clock == 0 || parent == clock || anchors.iter().any(|one| one.parent != parent) {
                return Err(fault(clock, "must have one parent, and clock 0 none"));
            }
            fits.insert(clock, fit(clock, parent, listed.tick_ns, &anchors));
        }
        let alignment = Self { fits, direct: direct(clocks, anchors) };
        for clock in alignment.fits.keys() {
            alignment.chain(*clock)?;
        }
        Ok(alignment)
    }

    /// Returns the fit of each clock.
    pub fn fits(&self) -> impl Iterator<Item = &ClockFit> {
        self.fits.values()
    }

    /// Converts a stamp of a clock to the reference clock.
    ///
    /// # Errors
    /// If a clock has no anchors.
    pub fn to_reference(&self, clock: u32, ns: i64) -> Result<Aligned, ProfileError> {
        let mut aligned = Aligned { ns, uncertainty_ns: 0.0 };
        for fit in self.chain(clock)? {
            let step = fit.to_parent(aligned.ns);
            aligned.ns = step.ns;
            aligned.uncertainty_ns += step.uncertainty_ns;
        }
        Ok(aligned)
    }

    /// Returns how much later a stamp of one clock is than a stamp of another, in ns, with the error bound. Converts
    /// over the reference, or by direct comparison of the two clocks if that has a smaller bound.
    ///
    /// # Errors
    /// If a clock has no anchors.
    pub fn later(
        &self,
        (clock, ns): (u32, i64),
        (before, before_ns): (u32, i64),
    ) -> Result<(f64, f64), ProfileError> {
        if clock == before {
            return Ok((ns.saturating_sub(before_ns) as f64, 0.0));
        }
        let one = self.to_reference(clock, ns)?;
        let other = self.to_reference(before, before_ns)?;
        let over =
            (one.ns.saturating_sub(other.ns) as f64, one.uncertainty_ns + other.uncertainty_ns);
        let direct = if let Some(fit) = self.direct.get(&(clock, before)) {
            let one = fit.to_parent(ns);
            Some((one.ns.saturating_sub(before_ns) as f64, one.uncertainty_ns))
        } else {
            self.direct.get(&(before, clock)).map(|fit| {
                let other = fit.to_parent(before_ns);
                (ns.saturating_sub(other.ns) as f64, other.uncertainty_ns)
            })
        };
        Ok(direct.filter(|direct| direct.1 < over.1).unwrap_or(over))
    }

    /// Checks the alignment against direct comparisons of devices.
    pub fn triangles(&self, anchors: &[Anchor]) -> Vec<Triangle> {
        let mut by_pair: BTreeMap<(u32, u32), Vec<(f64, f64)>> = BTreeMap::new();
        for anchor in anchors.iter().filter(|anchor| anchor.method == AnchorMethod::Peer) {
            let before = self.to_reference(anchor.parent, anchor.parent_before_ns);
            let after = self.to_reference(anchor.parent, anchor.parent_after_ns);
            let own = self.to_reference(anchor.clock, anchor.clock_ns);
            let (Ok(before), Ok(after), Ok(own)) = (before, after, own) else { continue };
            let off =
                own.ns as f64 - before.ns as f64 - after.ns.saturating_sub(before.ns) as f64 / 2.0;
            let bound = own.uncertainty_ns
                + before.uncertainty_ns.max(after.uncertainty_ns)
                + after.ns.saturating_sub(before.ns) as f64 / 2.0;
            by_pair.entry((anchor.clock, anchor.parent)).or_default().push((off.abs(), bound));
        }
        let triangle = |((clock, peer), found): ((u32, u32), Vec<(f64, f64)>)| {
            let gaps = Spread::of(found.iter().map(|(gap, _)| *gap))?;
            Some(Triangle {
                clock,
                peer,
                anchors: found.len() as u32,
                median_ns: gaps.median,
                max_ns: gaps.max,
                bound_ns: found.iter().map(|(_, bound)| *bound).fold(0.0, f64::max),
            })
        };
        by_pair.into_iter().filter_map(triangle).collect()
    }

    fn chain(&self, clock: u32) -> Result<Vec<&ClockFit>, ProfileError> {
        let mut chain = Vec::new();
        let mut at = clock;
        while at != 0 {
            let Some(fit) = self.fits.get(&at) else {
                return Err(fault(
                    at,
                    "has no anchors, so its times can't be compared with others",
                ));
            };
            chain.push(fit);
            if chain.len() > self.fits.len() {
                return Err(fault(clock, "is its own ancestor"));
            }
            at = fit.parent;
        }
        Ok(chain)
    }
}

impl ClockFit {
    fn to_parent(&self, ns: i64) -> Aligned {
        let next = self.windows.partition_point(|window| window.clock_ns <= ns);
        let (offset, half_width) = match (next.checked_sub(1), self.windows.get(next)) {
            (Some(last), Some(after)) => {
                let before = self.windows[last];
                let span = after.clock_ns.saturating_sub(before.clock_ns) as f64;
                let share = ns.saturating_sub(before.clock_ns) as f64 / span;
                let rise = after.offset_ns.saturating_sub(before.offset_ns) as f64;
                let width = before.half_width_ns.max(after.half_width_ns) + self.wander_ns;
                (before.offset_ns.saturating_add((share * rise).round() as i64), width)
            }
            // Outside of all windows the rate continues, and the uncertainty of the rate accumulates.
            (_, after) => {
                let edge = after.copied().unwrap_or_else(|| self.windows[self.windows.len() - 1]);
                let away = ns.saturating_sub(edge.clock_ns) as f64;
                let rate = self.rate_ppm.unwrap_or(0.0) * 1e-6;
                let unsure_ppm = self.rate_ci_ppm.unwrap_or(RATE_MAX_PPM);
                let width = edge.half_width_ns + self.wander_ns + away.abs() * unsure_ppm * 1e-6;
                (edge.offset_ns.saturating_add((away * rate).round() as i64), width)
            }
        };
        Aligned { ns: ns.saturating_add(offset), uncertainty_ns: half_width }
    }
}

/// Fits each clock against each other clock that it was compared with directly.
fn direct(clocks: &[Clock], anchors: &[Anchor]) -> BTreeMap<(u32, u32), ClockFit> {
    let mut by_pair: BTreeMap<(u32, u32), Vec<Anchor>> = BTreeMap::new();
    for anchor in anchors.iter().filter(|anchor| anchor.method == AnchorMethod::Peer) {
        by_pair.entry((anchor.clock, anchor.parent)).or_default().push(*anchor);
    }
    let tick = |id: u32| clocks.iter().find(|one| one.id == id).map(|one| one.tick_ns);
    let compared = |((clock, parent), mut anchors): ((u32, u32), Vec<Anchor>)| {
        let (own_ns, parent_ns) = (tick(clock)?, tick(parent)?);
        for anchor in &mut anchors {
            // The other clock steps, too: its second stamp may be a tick old.
            let late_ns = parent_ns.ceil() as i64;
            anchor.parent_after_ns = anchor.parent_after_ns.saturating_add(late_ns);
        }
        Some(((clock, parent), fit(clock, parent, own_ns, &anchors)))
    };
    by_pair.into_iter().filter_map(compared).collect()
}

/// Maximum rate between two clocks, in ppm: crystals of computers stay within this.
const RATE_MAX_PPM: f64 = 100.0;

fn fit(clock: u32, parent: u32, tick_ns: f64, anchors: &[Anchor]) -> ClockFit {
    let mut by_window: BTreeMap<u32, Vec<&Anchor>> = BTreeMap::new();
    for anchor in anchors {
        by_window.entry(anchor.window).or_default().push(anchor);
    }
    let narrowest = |window: &Vec<&Anchor>| {
        let best = window.iter().min_by_key(|one| one.parent_after_ns - one.parent_before_ns);
        best.map(|best| {
            let bounds = bounds(best, tick_ns, best.clock_ns, 0.0);
            (best.clock_ns, middle(bounds))
        })
    };
    let points: Vec<(i64, i64)> = by_window.values().filter_map(narrowest).collect();
    let (rate, rate_ci) = slope(&points);
    let mut contradictions = 0;
    let mut windows: Vec<Window> = by_window
        .values()
        .zip(&points)
        .map(|(anchors, &(clock_ns, _))| {
            let all = anchors.iter().map(|one| bounds(one, tick_ns, clock_ns, rate.unwrap_or(0.0)));
            let common = all
                .clone()
                .fold((i64::MIN, i64::MAX), |(low, high), one| (low.max(one.0), high.min(one.1)));
            let bounds = if common.0 <= common.1 {
                common
            } else {
                contradictions += 1;
                // A window has at least one anchor.
                all.min_by_key(|(low, high)| high.saturating_sub(*low)).unwrap_or(common)
            };
            Window {
                clock_ns,
                offset_ns: middle(bounds),
                half_width_ns: bounds.1.saturating_sub(bounds.0) as f64 / 2.0,
                anchors: anchors.len() as u32,
            }
        })
        .collect();
    windows.sort_by_key(|window| window.clock_ns);
    windows.dedup_by_key(|window| window.clock_ns);
    let wander_ns = windows.windows(3).map(wander).fold(0.0, f64::max);
    let widest = windows.iter().map(|window| window.half_width_ns).fold(0.0, f64::max);
    ClockFit {
        clock,
        parent,
        rate_ppm: rate.map(|rate| rate * 1e6),
        rate_ci_ppm: rate_ci.map(|ci| ci * 1e6),
        wander_ns,
        bound_ns: widest + wander_ns,
        contradictions,
        windows,
    }
}

/// Returns the smallest and the largest offset that an anchor allows at `at_ns` of the clock.
fn bounds(anchor: &Anchor, tick_ns: f64, at_ns: i64, rate: f64) -> (i64, i64) {
    let drift = (rate * anchor.clock_ns.saturating_sub(at_ns) as f64).round() as i64;
    // A clock may show a value one tick old, except if the anchor sits on its step.
    let tick = if anchor.method == AnchorMethod::Edge { 0 } else { tick_ns.ceil() as i64 };
    let low = anchor.parent_before_ns.saturating_sub(anchor.clock_ns).saturating_sub(tick);
    let high = anchor.parent_after_ns.saturating_sub(anchor.clock_ns);
    (low.saturating_sub(drift), high.saturating_sub(drift))
}

fn middle((low, high): (i64, i64)) -> i64 {
    low + high.saturating_sub(low) / 2
}

/// Distance of the middle of three windows from the line between the others, in ns.
fn wander(three: &[Window]) -> f64 {
    let [before, middle, after] = three else { return 0.0 };
    let share = middle.clock_ns.saturating_sub(before.clock_ns) as f64
        / after.clock_ns.saturating_sub(before.clock_ns) as f64;
    let line = share * after.offset_ns.saturating_sub(before.offset_ns) as f64;
    (middle.offset_ns.saturating_sub(before.offset_ns) as f64 - line).abs()
}

/// Returns the slope of the least-squares line, and half of its 95 % interval.
fn slope(points: &[(i64, i64)]) -> (Option<f64>, Option<f64>) {
    let Some(&(x0, y0)) = points.first() else { return (None, None) };
    let near: Vec<(f64, f64)> = points
        .iter()
        .map(|(x, y)| (x.saturating_sub(x0) as f64, y.saturating_sub(y0) as f64))
        .collect();
    let n = near.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| near.iter().map(of).sum::<f64>() / n;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let sxx: f64 = near.iter().map(|(x, _)| (x - mx).powi(2)).sum();
    if sxx == 0.0 {
        return (None, None);
    }
    let slope = near.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / sxx;
    if near.len() < 3 {
        return (Some(slope), None);
    }
    let left: f64 = near.iter().map(|(x, y)| (y - my - slope * (x - mx)).powi(2)).sum();
    // 1.96 holds for many windows. Few windows get a larger quantile, since 1.96 is too small for them.
    let quantile = 1.96 + 8.0 / (n - 2.0).powi(2);
    (Some(slope), Some(quantile * (left / (n - 2.0) / sxx).sqrt()))
}

fn fault(clock: u32, fault: &str) -> ProfileError {
    ProfileError::Clock { clock, fault: fault.to_owned() }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
