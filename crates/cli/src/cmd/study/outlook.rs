//! The first line of a study: the number of cells, the time they take, and how to reduce it.

use std::fs;
use std::thread;
use std::time::Duration;

use polyrail_report::{counted, parse_duration, parse_sizes};

use crate::cmd::bench::usual_warmup;
use crate::progress::{show_taken, show_time};

/// Time of a cell's bench beside its sizes, for connecting and setting up.
const BESIDE: Duration = Duration::from_millis(1200);
/// An estimate is corrected if it is off by more than this ratio.
const OFF: f64 = 1.5;
/// Time to watch the CPUs before the first cell.
const LOOK: Duration = Duration::from_millis(300);
/// Minimum CPU use of other programs that is worth a note.
const LEAST_BUSY_PERCENT: f64 = 10.0;

/// The work of a study.
pub(crate) struct Outlook {
    pub(crate) name: String,
    pub(crate) cells: usize,
    /// Measurements of each cell, if their number is known.
    pub(crate) rounds: Option<usize>,
    /// Maximum time, if the user gave one.
    pub(crate) most: Option<Duration>,
    /// Estimated time of one cell.
    pub(crate) cell: Option<Duration>,
    /// Options that make the study shorter.
    pub(crate) less: String,
}

impl Outlook {
    pub(super) fn line(&self) -> String {
        let mut line = format!("{}: {}", self.name, counted(self.cells as u64, "cell"));
        if let Some(rounds) = self.rounds {
            line += &format!(" × {}", counted(rounds as u64, "round"));
        }
        if let Some((cell, all)) = self.cell.and_then(|cell| Some((cell, self.all(cell)?))) {
            line += &format!(" ≈ {} (a cell ≈ {})", show_time(all), show_taken(cell));
        }
        if let Some(most) = self.most {
            line += &format!(", about {} at most", show_time(most));
        }
        format!("{line}; less: {}", self.less)
    }

    /// A better line after a cell that took this long, if the first one was wrong or had no time.
    pub(super) fn corrected(&self, took: Duration) -> Option<String> {
        let all = self.all(took)?;
        let ratio = self.cell.map(|cell| took.as_secs_f64() / cell.as_secs_f64().max(1e-3));
        let is_right = ratio.is_some_and(|ratio| (1.0 / OFF..=OFF).contains(&ratio));
        let (cell, all) = (show_taken(took), show_time(all));
        (!is_right)
            .then(|| format!("a cell took {cell}, so all take about {all}; less: {}", self.less))
    }

    /// The time of all cells, each measured in every round.
    fn all(&self, cell: Duration) -> Option<Duration> {
        let count = u32::try_from(self.cells * self.rounds?).ok()?;
        cell.checked_mul(count)
    }
}

/// Estimated time of a bench with these options, if they give its sizes and times.
pub(crate) fn time_of_bench(words: &[String]) -> Option<Duration> {
    let value = |option: &str| {
        words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(option)? {
            "" => words.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    };
    let sizes = u32::try_from(parse_sizes(value("--sizes")?).ok()?.len()).ok()?;
    let time = parse_duration(value("--time")?).ok()?;
    let warmup = match value("--warmup") {
        Some(text) => parse_duration(text).ok()?,
        None => usual_warmup(time),
    };
    (time + warmup).checked_mul(sizes)?.checked_add(BESIDE)
}

/// A note on other programs that use the CPUs now.
pub(super) fn note_of_load() -> Option<String> {
    let ticks = || ticks(&fs::read_to_string("/proc/stat").ok()?);
    let (busy, all) = ticks()?;
    thread::sleep(LOOK);
    let (busy_later, all_later) = ticks()?;
    let all = all_later.saturating_sub(all).max(1) as f64;
    let percent = 100.0 * busy_later.saturating_sub(busy) as f64 / all;
    (percent >= LEAST_BUSY_PERCENT).then(|| {
        format!(
            "other programs used {percent:.0} % of the CPUs before the first cell: small differences will stay undecided; \
             end these programs, or repeat it on a quiet machine"
        )
    })
}

/// Ticks of all CPUs since boot: busy ones, and all.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // The fields before include the time of guests.
    let fields: Vec<u64> = fields.take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let all: u64 = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn sweep() -> Outlook {
        Outlook {
            name: "sweep".into(),
            cells: 96,
            rounds: Some(3),
            most: None,
            cell: time_of_bench(&words("--sizes 16MiB --time=250ms --warmup 50ms --rounds 1")),
            less: "--rounds 1".into(),
        }
    }

    #[test]
    fn the_first_line_has_the_whole_time_or_the_most() {
        let line = "sweep: 96 cells × 3 rounds ≈ 7 min 12 s (a cell ≈ 1.5 s); less: --rounds 1";
        assert_eq!(sweep().line(), line);
        let most = Some(Duration::from_secs(300));
        let autotune = Outlook { name: "autotune".into(), rounds: None, most, ..sweep() };
        assert_eq!(
            autotune.line(),
            "autotune: 96 cells, about 5 min 0 s at most; less: --rounds 1"
        );
    }

    #[test]
    fn a_wrong_estimate_is_corrected_and_a_right_one_is_not() {
        assert_eq!(sweep().corrected(Duration::from_secs(2)), None);
        let line = "a cell took 5.0 s, so all take about 24 min 0 s; less: --rounds 1";
        assert_eq!(sweep().corrected(Duration::from_secs(5)).as_deref(), Some(line));
        let unknown = Outlook { cell: None, ..sweep() };
        assert!(unknown.line().starts_with("sweep: 96 cells × 3 rounds; less: "));
        assert!(unknown.corrected(Duration::from_secs(2)).is_some());
        let limited = Outlook { rounds: None, ..sweep() };
        assert_eq!(limited.corrected(Duration::from_secs(5)), None);
    }

    #[test]
    fn a_bench_without_a_time_has_no_estimate() {
        for text in ["--sizes 8 --iters 5", "--time 1s", "--sizes x --time 1s"] {
            assert_eq!(time_of_bench(&words(text)), None, "{text}");
        }
        let two = time_of_bench(&words("--sizes 8,16 --time 1s")).unwrap();
        assert_eq!(two, Duration::from_millis(2 * 1200) + BESIDE, "each warms up for 200 ms");
        let short = time_of_bench(&words("--sizes 8 --time 100ms")).unwrap();
        assert_eq!(short, Duration::from_millis(120) + BESIDE);
        assert_eq!(time_of_bench(&words("--sizes 8 --time 1s --warmup x")), None);
    }

    #[test]
    fn steal_and_interrupts_are_busy_and_guests_are_counted_once() {
        let stat = "cpu  10 1 5 100 20 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1\n";
        assert_eq!(ticks(stat), Some((25, 145)));
        assert_eq!(ticks("intr 1"), None);
    }
}
