//! The model of a link: segments of `time = latency + size / rate`, each for a range of sizes.
//!
//! Errors are relative to the time: with absolute errors, the largest of 31 powers of two would decide alone. Dynamic
//! programming finds the best cut of the sizes into segments exactly, and the smallest BIC chooses their number.

use polyrail_report::show_size;
use serde::Serialize;

use crate::stats::{median, median_of, quantile};

/// Median time of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) size_bytes: u64,
    pub(crate) time_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Smallest size that it was fitted to.
    pub from_bytes: u64,
    /// Largest size that it was fitted to.
    pub to_bytes: u64,
    /// Time of a transfer of no bytes, in ns; `null` if these sizes can't separate it from the time of their bytes.
    pub latency_ns: Option<f64>,
    /// Time per byte, in ns.
    pub ns_per_byte: f64,
    /// Largest distance of a size from the line, in percent of its time.
    pub max_error_percent: f64,
}

/// Limiting factor of transfers in a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegimeKind {
    /// Doubling the size takes less than 2^0.2 times as long.
    LatencyBound,
    Transition,
    /// Doubling the size takes more than 2^0.9 times as long.
    BandwidthBound,
}

/// A range of sizes with one regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Regime {
    pub kind: RegimeKind,
    pub from_bytes: u64,
    pub to_bytes: u64,
}

/// A place where one line ends and another begins: usually a change of protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Break {
    /// Last size of the segment before.
    pub after_bytes: u64,
    /// First size of the segment after.
    pub before_bytes: u64,
    /// Difference of the next line from the previous one at `before_bytes`, in percent.
    pub jump_percent: f64,
}

/// Distance of times from a model, over the sizes, in percent of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FitError {
    /// Half of the sizes are within this.
    pub median_percent: f64,
    /// Nine of ten sizes are within this; decides whether the model can be used.
    pub p90_percent: f64,
    pub max_percent: f64,
    /// Size with the largest distance.
    pub worst_bytes: u64,
}

/// A model of one link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Segments from small to large sizes.
    pub segments: Vec<Segment>,
    pub breaks: Vec<Break>,
    pub regimes: Vec<Regime>,
    /// Median error of held-out sizes, in percent; `None` if no segment can spare one.
    pub held_out_error_percent: Option<f64>,
    /// Distance of the sizes from their segments.
    pub error: FitError,
    /// Reason for refusing the model, if it is too far off.
    pub refused: Option<String>,
}

/// A line through points by least squares of relative errors; neither part is negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// `None` if the points can't separate it from the time of the bytes.
    pub(crate) latency_ns: Option<f64>,
    pub(crate) ns_per_byte: f64,
}

impl FitError {
    /// Computes the error over any number of sizes; `None` without sizes.
    pub(crate) fn of(points: &[Point], at: impl Fn(u64) -> f64) -> Option<Self> {
        let error = |point: &Point| (at(point.size_bytes) / point.time_ns - 1.0).abs() * 100.0;
        let mut errors: Vec<(f64, u64)> =
            points.iter().map(|point| (error(point), point.size_bytes)).collect();
        errors.sort_by(|a, b| a.0.total_cmp(&b.0));
        let &(max_percent, worst_bytes) = errors.last()?;
        let errors: Vec<f64> = errors.into_iter().map(|(error, _)| error).collect();
        let p90_percent = quantile(&errors, 0.9);
        Some(Self { median_percent: median(&errors), p90_percent, max_percent, worst_bytes })
    }

    /// Returns why a model with these errors can't be used; `None` if it can.
    pub(crate) fn refuses(&self, what: &str) -> Option<String> {
        let Self { median_percent, p90_percent, max_percent, worst_bytes } = self;
        (*p90_percent > REFUSED_PERCENT).then(|| {
            format!(
                "{what} {p90_percent:.0} % off at a tenth of the sizes, where {REFUSED_PERCENT:.0} % are \
                 allowed; the median is {median_percent:.0} %, the farthest {max_percent:.0} % at {}",
                show_size(*worst_bytes)
            )
        })
    }
}

impl Line {
    pub(crate) fn through(points: &[Point]) -> Self {
        let mut sums = [0.0; 5];
        for point in points {
            let (x, z) = (1.0 / point.time_ns, point.size_bytes as f64 / point.time_ns);
            for (sum, term) in sums.iter_mut().zip([x * x, x * z, z * z, x, z]) {
                *sum += term;
            }
        }
        let [xx, xz, zz, x, z] = sums;
        let determinant = xx * zz - xz * xz;
        if determinant > 1e-12 * xx * zz {
            let latency_ns = (x * zz - z * xz) / determinant;
            let ns_per_byte = (z * xx - x * xz) / determinant;
            let shortest = points.iter().map(|point| point.time_ns).fold(f64::INFINITY, f64::min);
            if latency_ns < TOLD_SHARE * shortest {
                return Self { latency_ns: None, ns_per_byte: z / zz };
            }
            if ns_per_byte >= 0.0 {
                return Self { latency_ns: Some(latency_ns), ns_per_byte };
            }
        }
        Self { latency_ns: Some(x / xx), ns_per_byte: 0.0 }
    }

    pub(crate) fn at(&self, size_bytes: u64) -> f64 {
        self.latency_ns.unwrap_or(0.0) + self.ns_per_byte * size_bytes as f64
    }

    fn error(&self, point: &Point) -> f64 {
        self.at(point.size_bytes) / point.time_ns - 1.0
    }

    fn squares(&self, points: &[Point]) -> f64 {
        points.iter().map(|point| self.error(point).powi(2)).sum()
    }

    fn elasticity(&self, size_bytes: u64) -> f64 {
        let moved = self.ns_per_byte * size_bytes as f64;
        if moved > 0.0 { moved / self.at(size_bytes) } else { 0.0 }
    }
}

impl Segment {
    /// Returns the time by the line, in ns.
    pub fn at(&self, size_bytes: u64) -> f64 {
        self.line().at(size_bytes)
    }

    fn line(&self) -> Line {
        Line { latency_ns: self.latency_ns, ns_per_byte: self.ns_per_byte }
    }
}

impl Model {
    /// Fits points with ascending sizes; `None` with fewer than 3. `noise` is the relative error of medians by chance,
    /// which should not lead to more segments.
    pub(crate) fn fit(points: &[Point], noise: f64) -> Option<Self> {
        if points.len() < POINTS_MIN {
            return None;
        }
        let cuts = cuts(points, noise);
        let pieces: Vec<&[Point]> = cuts.windows(2).map(|cut| &points[cut[0]..cut[1]]).collect();
        let segments: Vec<Segment> = pieces.iter().map(|piece| segment(piece)).collect();
        let breaks = segments.windows(2).map(|pair| Break {
            after_bytes: pair[0].to_bytes,
            before_bytes: pair[1].from_bytes,
            jump_percent: (pair[1].at(pair[1].from_bytes) / pair[0].at(pair[1].from_bytes) - 1.0)
                * 100.0,
        });
        let at = |size: u64| within(&segments, size).map_or(0.0, |segment| segment.at(size));
        let error = FitError::of(points, at)?;
        let what = match segments.len() {
            1 => "one line is".to_owned(),
            count => format!("{count} pieces are"),
        };
        Some(Self {
            breaks: breaks.collect(),
            regimes: regimes(points, &segments),
            held_out_error_percent: held_out(&pieces),
            error,
            refused: error.refuses(&what),
            segments,
        })
    }

    /// Returns the time of a size, even of one that was not measured, in ns.
    pub fn at(&self, size_bytes: u64) -> f64 {
        self.segment(size_bytes).map_or(0.0, |segment| segment.at(size_bytes))
    }

    /// Returns the regime of a size; beyond the ends, that of the end.
    pub fn regime(&self, size_bytes: u64) -> Option<RegimeKind> {
        let within = self.regimes.iter().find(|regime| size_bytes <= regime.to_bytes);
        within.or(self.regimes.last()).map(|regime| regime.kind)
    }

    /// Returns the rate of the last segment, in GB/s; `None` if time does not grow.
    pub fn peak_gb_per_s(&self) -> Option<f64> {
        let last = self.segments.last()?;
        (last.ns_per_byte > 0.0).then(|| 1.0 / last.ns_per_byte)
    }

    /// Returns the segment for a size.
    pub fn segment(&self, size_bytes: u64) -> Option<&Segment> {
        within(&self.segments, size_bytes)
    }

    /// Returns the largest size such that it and all smaller ones are latency-bound.
    pub fn latency_bound_to(&self) -> Option<u64> {
        let first = self.regimes.first()?;
        (first.kind == RegimeKind::LatencyBound).then_some(first.to_bytes)
    }

    /// Returns the smallest size such that it and all larger ones are bandwidth-bound.
    pub fn bandwidth_bound_from(&self) -> Option<u64> {
        let last = self.regimes.last()?;
        (last.kind == RegimeKind::BandwidthBound).then_some(last.from_bytes)
    }
}

fn within(segments: &[Segment], size_bytes: u64) -> Option<&Segment> {
    let within = segments.iter().find(|segment| size_bytes <= segment.to_bytes);
    within.or(segments.last())
}

/// Maximum error: a model is refused if a tenth of the sizes are farther off than this.
const REFUSED_PERCENT: f64 = 25.0;
/// Minimum latency as a share of the shortest time; a smaller one can't be separated from the time of the bytes.
const TOLD_SHARE: f64 = 0.01;

/// Minimum number of points of a line; fewer always fit exactly.
pub(crate) const POINTS_MIN: usize = 3;
const SEGMENTS_MAX: usize = 5;
const LATENCY_BOUND: f64 = 0.2;
const BANDWIDTH_BOUND: f64 = 0.9;

fn segment(points: &[Point]) -> Segment {
    let line = Line::through(points);
    let worst = points.iter().map(|point| line.error(point).abs()).fold(0.0, f64::max);
    Segment {
        from_bytes: points[0].size_bytes,
        to_bytes: points[points.len() - 1].size_bytes,
        latency_ns: line.latency_ns,
        ns_per_byte: line.ns_per_byte,
        max_error_percent: worst * 100.0,
    }
}

/// Returns the places to cut at, including both ends.
fn cuts(points: &[Point], noise: f64) -> Vec<usize> {
    let n = points.len();
    let mut squares = vec![vec![f64::INFINITY; n + 1]; n + 1];
    for from in 0..n {
        for to in from + POINTS_MIN..=n {
            let piece = &points[from..to];
            squares[from][to] = Line::through(piece).squares(piece);
        }
    }
    // best[k][to]: the least squares of k + 1 segments up to `to`, and the start of the last one.
    let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; SEGMENTS_MAX];
    for to in 0..=n {
        best[0][to] = (squares[0][to], 0);
    }
    for pieces in 1..SEGMENTS_MAX {
        for to in 0..=n {
            for from in 0..to {
                let sum = best[pieces - 1][from].0 + squares[from][to];
                if sum < best[pieces][to].0 {
                    best[pieces][to] = (sum, from);
                }
            }
        }
    }
    let count = n as f64;
    // Residuals count at least as noise; otherwise any number of segments would pay off.
    let bic = |pieces: usize| {
        let left = (best[pieces][n].0 / count).max(noise * noise);
        count * left.ln() + (3.0 * pieces as f64 + 2.0) * count.ln()
    };
    let chosen = (0..SEGMENTS_MAX)
        .filter(|pieces| best[*pieces][n].0.is_finite())
        .min_by(|a, b| bic(*a).total_cmp(&bic(*b)))
        .unwrap_or(0);
    let mut cuts = vec![n];
    let mut to = n;
    for pieces in (0..=chosen).rev() {
        to = best[pieces][to].1;
        cuts.push(to);
    }
    cuts.reverse();
    cuts
}

fn regimes(points: &[Point], segments: &[Segment]) -> Vec<Regime> {
    let mut regimes: Vec<Regime> = Vec::new();
    for point in points {
        let size = point.size_bytes;
        let Some(segment) = segments.iter().find(|segment| size <= segment.to_bytes) else {
            continue;
        };
        let kind = match segment.line().elasticity(size) {
            elasticity if elasticity < LATENCY_BOUND => RegimeKind::LatencyBound,
            elasticity if elasticity > BANDWIDTH_BOUND => RegimeKind::BandwidthBound,
            _ => RegimeKind::Transition,
        };
        match regimes.last_mut() {
            Some(last) if last.kind == kind => last.to_bytes = size,
            _ => regimes.push(Regime { kind, from_bytes: size, to_bytes: size }),
        }
    }
    regimes
}

fn held_out(pieces: &[&[Point]]) -> Option<f64> {
    let errors = pieces.iter().filter(|piece| piece.len() > POINTS_MIN).flat_map(|piece| {
        (0..piece.len()).map(|without| {
            let others = [&piece[..without], &piece[without + 1..]].concat();
            Line::through(&others).error(&piece[without]).abs() * 100.0
        })
    });
    median_of(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(time: impl Fn(f64) -> f64) -> Vec<Point> {
        let sizes = (0..=30).map(|power| 1_u64 << power);
        sizes.map(|size| Point { size_bytes: size, time_ns: time(size as f64) }).collect()
    }

    #[test]
    fn one_line_is_found_exactly_and_has_three_regimes() {
        let model = Model::fit(&points(|size| 2_000.0 + size / 400.0), 0.003).unwrap();
        assert_eq!(model.segments.len(), 1);
        assert!((model.segments[0].latency_ns.unwrap() - 2_000.0).abs() < 0.01);
        assert_eq!(model.latency_bound_to(), Some(1 << 17));
        assert_eq!(model.bandwidth_bound_from(), Some(1 << 23));
        assert!(model.error.max_percent < 0.001 && model.refused.is_none());
        assert!((model.peak_gb_per_s().unwrap() - 400.0).abs() < 0.001);
        let kinds: Vec<RegimeKind> = model.regimes.iter().map(|regime| regime.kind).collect();
        assert_eq!(
            kinds,
            [RegimeKind::LatencyBound, RegimeKind::Transition, RegimeKind::BandwidthBound]
        );
        // A fifth of the time is bytes at latency * rate / 4 = 200,000 bytes.
        assert_eq!(model.regimes[0].to_bytes, 1 << 17);
        assert!(model.held_out_error_percent.unwrap() < 0.001);
    }

    #[test]
    fn a_change_of_protocol_is_found_where_it_is() {
        let time = |size: f64| {
            if size <= 65_536.0 { 5_000.0 + size / 20.0 } else { 11_000.0 + size / 350.0 }
        };
        let model = Model::fit(&points(time), 0.003).unwrap();
        assert_eq!(model.segments.len(), 2, "{:?}", model.segments);
        assert_eq!((model.breaks[0].after_bytes, model.breaks[0].before_bytes), (1 << 16, 1 << 17));
        assert!((model.segments[1].latency_ns.unwrap() - 11_000.0).abs() < 1.0);
    }

    #[test]
    fn noise_makes_no_pieces() {
        let mut state = 1_u64;
        let mut noisy = points(|size| 2_000.0 + size / 400.0);
        for point in &mut noisy {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            point.time_ns *= 1.0 + 0.004 * ((state >> 33) as f64 / f64::from(1_u32 << 31) - 0.5);
        }
        assert_eq!(Model::fit(&noisy, 0.003).unwrap().segments.len(), 1);
    }

    #[test]
    fn no_part_of_a_line_is_negative() {
        let falling = points(|size| 9_000.0 - size.log2() * 10.0);
        let line = Line::through(&falling);
        assert!(line.ns_per_byte >= 0.0 && line.latency_ns.unwrap() > 0.0, "{line:?}");
        let steep = [(1_000, 10.0), (2_000, 900.0), (3_000, 2_000.0)]
            .map(|(size_bytes, time_ns)| Point { size_bytes, time_ns });
        let line = Line::through(&steep);
        assert_eq!(line.latency_ns, None, "no latency is not a latency of 0");
        assert!(line.ns_per_byte > 0.0 && line.at(2_000) > 0.0, "{line:?}");
        // A latency of a thousandth of the smallest time can't be determined either.
        let large = [1_u64 << 20, 1 << 22, 1 << 30]
            .map(|size| Point { size_bytes: size, time_ns: 1.0 + size as f64 });
        assert_eq!(Line::through(&large).latency_ns, None);
    }

    /// Medians of a link whose transfers sometimes wait for a timer of 50 ms.
    fn plateau() -> Vec<Point> {
        let times_us = [
            47.0, 46.0, 48.0, 50.0, 50_500.0, 52.0, 49.0, 50_600.0, 55.0, 60.0, 50_400.0, 70.0,
            90.0, 50_500.0, 120.0, 50_500.0, 50_500.0, 294.0, 50_900.0, 900.0, 50_500.0, 3_000.0,
            54_000.0,
        ];
        let sizes = (0..).map(|power| 1_u64 << power);
        let point = |(size_bytes, us)| Point { size_bytes, time_ns: us * 1e3 };
        sizes.zip(times_us).map(point).collect()
    }

    #[test]
    fn a_model_that_is_off_by_more_than_a_quarter_is_refused_with_the_numbers() {
        let model = Model::fit(&plateau(), 0.003).unwrap();
        assert!(model.error.p90_percent > 25.0, "{:?}", model.error);
        let refused = model.refused.unwrap();
        let worst = show_size(model.error.worst_bytes);
        assert!(
            refused.contains("off at a tenth of the sizes, where 25 % are allowed"),
            "{refused}"
        );
        assert!(refused.ends_with(&format!("at {worst}")), "{refused}");
        for segment in &model.segments {
            assert!(segment.latency_ns.is_none_or(|latency| latency > 0.0), "{segment:?}");
        }
    }

    #[test]
    fn one_size_in_thirty_that_is_far_off_does_not_refuse_a_model() {
        let mut points = points(|size| 2_000.0 + size / 400.0);
        points[30].time_ns *= 2.0;
        let model = Model::fit(&points, 0.003).unwrap();
        assert!(model.refused.is_none() && model.error.p90_percent < 25.0, "{:?}", model.error);
    }

    #[test]
    fn no_size_is_latency_bound_above_one_that_is_bandwidth_bound() {
        // The second segment begins in the bandwidth-bound regime and ends on a plateau.
        let time = |size: f64| match size {
            s if s <= 4_096.0 => 100.0 + s,
            s if s <= 262_144.0 => 1e6,
            s => s * 4.0,
        };
        let model = Model::fit(&points(time), 0.003).unwrap();
        let (to, from) = (model.latency_bound_to(), model.bandwidth_bound_from());
        assert!(to.unwrap() < from.unwrap(), "{:?}", model.regimes);
        let falling = Model::fit(&points(time)[..18], 0.003).unwrap();
        let kinds: Vec<RegimeKind> = falling.regimes.iter().map(|one| one.kind).collect();
        assert!(kinds.contains(&RegimeKind::BandwidthBound), "{:?}", falling.regimes);
        assert_eq!(falling.bandwidth_bound_from(), None, "larger ones wait again");
    }

    #[test]
    fn few_sizes_make_a_line_or_nothing() {
        let all = points(|size| 100.0 + size);
        assert!(Model::fit(&all[..2], 0.003).is_none());
        let model = Model::fit(&all[..3], 0.003).unwrap();
        assert_eq!((model.segments.len(), model.held_out_error_percent), (1, None));
        assert!((model.at(1 << 10) - 1_124.0).abs() < 1.0);
    }

    proptest::proptest! {
        #[test]
        fn any_times_make_a_finite_model(times in proptest::collection::vec(1e-3_f64..1e12, 3..40)) {
            let points: Vec<Point> = times.iter().enumerate()
                .map(|(place, time_ns)| Point { size_bytes: 1 + 7 * place as u64, time_ns: *time_ns })
                .collect();
            let model = Model::fit(&points, 0.003).unwrap();
            for segment in &model.segments {
                let is_told = |latency: f64| latency.is_finite() && latency > 0.0;
                proptest::prop_assert!(segment.latency_ns.is_none_or(is_told));
                proptest::prop_assert!(segment.ns_per_byte.is_finite() && segment.ns_per_byte >= 0.0);
            }
            proptest::prop_assert_eq!(model.segments[0].from_bytes, 1);
        }
    }
}
