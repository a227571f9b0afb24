//! Brings GPUs to a steady temperature before the first sample.

use std::time::{Duration, Instant};

use polyrail_profiler::{ProfilerError, Station, Watcher};

use super::args::Warmup;

/// Time of copying between two looks at the temperatures.
const TURN: Duration = Duration::from_secs(1);
/// Number of turns for the slope, and its limit: half a degree in ten seconds.
const TURNS: usize = 10;
const FLAT_C: f64 = 0.5;
const SLOPE_MOST: Duration = Duration::from_secs(60);
const FIXED: (Duration, f64, Duration) = (Duration::from_secs(60), 50.0, Duration::from_secs(180));

/// Copies until the temperatures are as requested. Returns a note on that.
pub(super) fn warm(
    how: Warmup,
    station: &mut Station,
    watcher: Option<&Watcher>,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Option<String>, ProfilerError> {
    let Some(watcher) = watcher else { return Ok(None) };
    if how == Warmup::Off || station.clocks().is_empty() {
        return Ok(None);
    }
    if !station.can_warm() {
        return Ok(Some("GPUs were not warmed: no path between them is measured".into()));
    }
    let begin = Instant::now();
    let mut history: Vec<Vec<f64>> = Vec::new();
    while !is_interrupted() {
        station.warm_gpus(TURN)?;
        let looks = watcher.look();
        let temperatures: Vec<f64> = looks.iter().filter_map(|look| look.temperature_c).collect();
        if temperatures.is_empty() {
            return Ok(Some("GPUs were not warmed: they don't tell their temperatures".into()));
        }
        history.push(temperatures);
        if is_over(how, &history, begin.elapsed()) {
            break;
        }
    }
    let last = history.last().map_or(0.0, |last| last.iter().copied().fold(0.0, f64::max));
    let seconds = begin.elapsed().as_secs();
    Ok(Some(format!("GPUs were warmed by copies for {seconds} s, to {last} °C at most")))
}

fn is_over(how: Warmup, history: &[Vec<f64>], elapsed: Duration) -> bool {
    let last = history.last().map_or(0.0, |last| last.iter().copied().fold(f64::MAX, f64::min));
    match how {
        Warmup::Off => true,
        Warmup::Fixed => elapsed >= FIXED.2 || elapsed >= FIXED.0 && last >= FIXED.1,
        Warmup::Slope => elapsed >= SLOPE_MOST || is_flat(history),
    }
}

/// Whether the temperature of each device changed by half a degree at most in the last ten turns. Compares the means of
/// both halves, since temperatures are whole degrees.
fn is_flat(history: &[Vec<f64>]) -> bool {
    let Some(recent) = history.len().checked_sub(TURNS).map(|first| &history[first..]) else {
        return false;
    };
    let devices = recent.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |part: &[Vec<f64>], device: usize| {
        part.iter().map(|looks| looks[device]).sum::<f64>() / part.len() as f64
    };
    let (early, late) = recent.split_at(TURNS / 2);
    // The middles of the halves are half of the turns apart.
    (0..devices).all(|device| (mean(late, device) - mean(early, device)).abs() <= FLAT_C / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rising_temperature_is_not_flat_and_a_steady_one_is() {
        let rising: Vec<Vec<f64>> =
            (0..10).map(|turn| vec![30.0, 30.0 + f64::from(turn)]).collect();
        assert!(!is_flat(&rising) && !is_flat(&rising[..9]));
        let mut steady = rising;
        steady.extend(vec![vec![31.0, 41.0]; 10]);
        assert!(is_flat(&steady));
        assert!(is_over(Warmup::Slope, &steady, Duration::from_secs(20)));
        assert!(!is_over(Warmup::Fixed, &steady, Duration::from_secs(90)));
        assert!(is_over(Warmup::Fixed, &steady, Duration::from_secs(180)));
    }
}
