//! Remarks on disturbances that make the results less reliable, with the fixes.

use std::collections::BTreeSet;

use polyrail::PathKind;
use polyrail_config::parse_bindings;
use polyrail_report::{
    BenchReport, BenchResult, CARRIED_LEAST, RailEvent, RailEventKind, RailShare, Setting, Spread,
    counted, show_micros, show_ratio, show_size,
};

use super::path::TCP;
use crate::cmd::bench::options::TRIED_SETTINGS;

/// Returns one sentence for each disturbance, with the sizes that it affected.
pub(crate) fn remarks(report: &BenchReport) -> Vec<String> {
    let mut remarks = Vec::new();
    let disturbed = sizes(report, |result| others_share(report, result) > OTHERS_SHARE);
    if let Some(sizes) = disturbed {
        let most = report.results.iter().map(|result| others_share(report, result));
        let most = most.fold(0.0, f64::max) * 100.0;
        remarks.push(format!(
            "other programs and softirqs used up to {most:.0} % of this machine's CPUs ({sizes}): \
             end them, or compare ratios only"
        ));
    }
    // `--fit` shows neither rates nor times.
    let has_rates = report.fit.is_none();
    let wide = |result: &BenchResult| result.spread_gb_per_s.half_range_percent() > WIDE_PERCENT;
    if let Some(sizes) = sizes(report, wide).filter(|_| has_rates) {
        remarks.push(format!("the samples lie far apart ({sizes}): give more --time and --rounds"));
    }
    remarks.extend(one_round(report).filter(|_| has_rates));
    remarks.extend(ratios_apart(report));
    let is_slow = |event: &RailEvent| event.what == RailEventKind::Slow;
    let has_events = |it: &&BenchResult| has_rates || !it.events.iter().all(is_slow);
    remarks.extend(report.results.iter().filter(has_events).flat_map(rail_events));
    remarks.extend(idle_rails(report));
    remarks.extend(left_by_plugins(report));
    remarks.extend(too_short_for_plugins(report));
    let over_rails = |result: &BenchResult| is_shared(result) && bytes_on_rails(result) > 0;
    if let Some(sizes) = sizes(report, over_rails) {
        let bytes = report.results.iter().filter(|result| is_shared(result));
        let bytes: u64 = bytes.map(bytes_on_rails).sum();
        remarks.push(format!(
            "{bytes} bytes went over the rails and not through shared memory ({sizes}); \
             `--set log_level=warn` tells what could not be shared"
        ));
    }
    if report.config.get("auth").is_some_and(|auth| auth.value == "none") {
        remarks.push("auth=none: anybody who reached the ports could have joined".to_owned());
    }
    remarks.extend(far_from_the_median(report).filter(|_| has_rates));
    remarks.extend(few_transfers(report).filter(|_| has_rates));
    remarks.extend(bindings_of_no_rail(report));
    remarks.extend(not_tried(report));
    if let Some(sizes) = sizes(report, |result| result.rescues.is_some_and(|rescues| rescues > 0)) {
        let rescues: u64 = report.results.iter().filter_map(|result| result.rescues).sum();
        remarks.push(format!(
            "{rescues} times only an engine's periodic look brought transfers on ({sizes}): a wake-up was \
             lost, which is a fault of the engine; report it with the JSON"
        ));
    }
    remarks
}

/// Returns a line for each rail with events, for the first [`NAMED_MAX`] rails.
fn rail_events(result: &BenchResult) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for event in &result.events {
        if !names.contains(&&*event.rail) {
            names.push(&event.rail);
        }
    }
    let size = show_size(result.size_bytes);
    let mut lines: Vec<String> =
        names.iter().take(NAMED_MAX).map(|name| history(result, name, &size)).collect();
    if names.len() > NAMED_MAX {
        lines.push(format!(
            "{} more rails had events at {size}: `events` in the JSON has them",
            names.len() - NAMED_MAX
        ));
    }
    lines
}

/// Returns a line such as `rail1: down at 4.5 s in round 4 of 4MiB (at both ends), back in round 5; 10 chunks sent
/// again`.
fn history(result: &BenchResult, name: &str, size: &str) -> String {
    let of_rail = || result.events.iter().filter(|event| event.rail == name);
    let mut parts: Vec<String> = Vec::new();
    let mut is_first = true;
    let mut told: BTreeSet<(u32, &str)> = BTreeSet::new();
    for event in of_rail() {
        let (word, round) = match event.what {
            RailEventKind::Down => ("down", event.round),
            RailEventKind::Back => ("back", event.round),
            RailEventKind::Slow => ("slow, with less than half of its usual share", event.round),
            RailEventKind::Resent => continue,
        };
        // Both ends may report the same event.
        if !told.insert((round, word)) {
            continue;
        }
        let at = match event.what {
            RailEventKind::Down => format!("{word} at {:.1} s in round {round}", event.at_s),
            _ => format!("{word} in round {round}"),
        };
        let of = if is_first { format!(" of {size}") } else { String::new() };
        is_first = false;
        let is_same = |other: &&RailEvent| (other.round, other.what) == (round, event.what);
        let ends: BTreeSet<&str> = of_rail().filter(is_same).map(|it| &*it.end).collect();
        let place = match (event.what, ends.len(), ends.contains("here")) {
            (RailEventKind::Down, 2, _) => " (at both ends)",
            (RailEventKind::Down, _, true) => " (here)",
            (RailEventKind::Down, ..) => " (at the other side)",
            _ => "",
        };
        parts.push(at + &of + place);
    }
    let is_resent = |event: &&RailEvent| event.what == RailEventKind::Resent;
    let resent: u64 = of_rail().filter(is_resent).map(|event| event.count).sum();
    let resent = match (resent, of_rail().find(is_resent)) {
        (1.., Some(event)) if is_first => {
            vec![format!(
                "{} sent again, the first in round {} of {size}",
                counted(resent, "chunk"),
                event.round
            )]
        }
        (1.., _) => vec![format!("{} sent again", counted(resent, "chunk"))],
        (0, _) => Vec::new(),
    };
    let parts = [parts.join(", ")].into_iter().filter(|part| !part.is_empty()).chain(resent);
    format!("{name}: {}", parts.collect::<Vec<_>>().join("; "))
}

/// Remarks on a single round, unless the run was interrupted: its note already gives the number of rounds.
fn one_round(report: &BenchReport) -> Option<String> {
    let is_one = |result: &BenchResult| !result.ping_pong && result.samples.len() == 1;
    let sizes = sizes(report, is_one).filter(|_| !report.interrupted)?;
    Some(format!("1 round of {sizes}: no spread is known; give --rounds 5"))
}

/// Remarks on ratios that contradict their columns. A ratio is a median over the rounds, and each column is a separate
/// median, so they differ if the machine changes between the turns.
fn ratios_apart(report: &BenchReport) -> Vec<String> {
    let remark = |result: &BenchResult, ratio: f64, columns: f64, rounds: usize| {
        let shown = [ratio, columns].map(show_ratio);
        let contradict = (ratio - 1.0) * (columns - 1.0) < 0.0 && shown[0] != shown[1];
        let text = || {
            let [ratio, columns] = shown;
            format!(
                "{}: the turns' ratios have the median {ratio}, the two columns {columns}: the machine changed \
                 between the turns; give --rounds {}",
                show_size(result.size_bytes),
                rounds.saturating_mul(3)
            )
        };
        (contradict || (columns / ratio - 1.0).abs() > APART_SHARE).then(text)
    };
    let mut remarks = Vec::new();
    for result in &report.results {
        if let Some(raw) = &result.against {
            let columns = match (result.ping_pong, result.latency_us, raw.raw_latency_us) {
                (false, ..) => result.gb_per_s / raw.raw_gb_per_s,
                (true, Some(ours), Some(theirs)) => ours.p50 / theirs.p50,
                (true, ..) => raw.ratio,
            };
            remarks.extend(remark(result, raw.ratio, columns, raw.samples.len()));
        }
        if let Some(alone) = &result.alone {
            let columns = result.gb_per_s / alone.sum_gb_per_s;
            remarks.extend(remark(result, alone.ratio, columns, result.samples.len()));
        }
        for one in &result.baselines {
            let columns = result.gb_per_s / one.gb_per_s;
            remarks.extend(remark(result, one.ratio, columns, one.samples_gb_per_s.len()));
        }
    }
    remarks
}

/// Maximum difference between the median of the ratios and the ratio of the medians, as a share.
const APART_SHARE: f64 = 0.1;

/// Remarks on idle rails that the verdict does not already name as the limit or as down.
fn idle_rails(report: &BenchReport) -> Option<String> {
    let is_idle = |result: &BenchResult, rail: &RailShare| {
        let all = bytes_on_rails(result) as f64;
        let is_elsewhere = result.path.as_ref().is_some_and(|path| path.taken != TCP);
        let is_told = result.ping_pong
            || is_elsewhere
            || [&*rail.name, BUSY_RAILS].iter().any(|word| result.limit.because.contains(word));
        !is_told && (rail.bytes as f64) < IDLE_SHARE * all / result.rails.len() as f64
    };
    let sizes = sizes(report, |result| result.rails.iter().any(|rail| is_idle(result, rail)))?;
    let idle = rails(report, is_idle);
    Some(format!(
        "{} stood idle ({sizes}), with less than {:.0} % of an even part of the bytes: --why tries more transfers at once, and \
         each rail left out",
        named(&idle),
        IDLE_SHARE * 100.0
    ))
}

/// Share of an even part of the bytes below which a rail counts as idle. A rail that is only slow carries more.
const IDLE_SHARE: f64 = 0.04;
/// Words of a verdict that reports how many rails had work.
const BUSY_RAILS: &str = "rails busy";

/// Returns the rails that fulfil the condition at any size, each once.
fn rails(
    report: &BenchReport,
    is_meant: impl Fn(&BenchResult, &RailShare) -> bool,
) -> BTreeSet<&str> {
    let rails =
        report.results.iter().flat_map(|result| result.rails.iter().map(move |it| (result, it)));
    rails.filter(|(result, rail)| is_meant(result, rail)).map(|(_, rail)| &*rail.name).collect()
}

/// Formats names such as `rail0, rail1 and 62 more`.
fn named(rails: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = rails.iter().copied().take(NAMED_MAX).collect();
    let more = rails.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

const NAMED_MAX: usize = 4;

/// Remarks on payload that a hosted plugin left to TCP. The rates are then those of TCP.
fn left_by_plugins(report: &BenchReport) -> Option<String> {
    let hosted = |result: &BenchResult| {
        let mut all = (0, 0);
        for rail in result.rails.iter().filter(|rail| rail.hosted) {
            all = (all.0 + rail.bytes, all.1 + rail.carried_bytes);
        }
        all
    };
    let is_left = |result: &BenchResult| {
        let (bytes, carried) = hosted(result);
        result.size_bytes >= CARRIED_FROM && (carried as f64) < CARRIED_LEAST * bytes as f64
    };
    let sizes = sizes(report, is_left)?;
    let left = report.results.iter().filter(|result| is_left(result)).map(hosted);
    let (bytes, carried) = left.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Some(format!(
        "the hosted plugin carried {:.1} % of its rails' bytes ({sizes}), the rest took TCP: the logs of both ends \
         say why",
        carried as f64 / bytes as f64 * 100.0
    ))
}

/// Minimum size in bytes of pieces that a plugin carries. Shorter ones always use the rail's TCP connection.
const CARRIED_FROM: u64 = 4 << 10;

/// Remarks on sizes whose pieces are all that short: the plugin has no part in their results.
fn too_short_for_plugins(report: &BenchReport) -> Option<String> {
    let is_short = |result: &BenchResult| {
        result.size_bytes < CARRIED_FROM && result.rails.iter().any(|rail| rail.hosted)
    };
    let sizes = sizes(report, is_short)?;
    Some(format!(
        "a hosted plugin carries nothing below 4KiB ({sizes}): these figures are those of TCP"
    ))
}

/// Remarks on bindings whose interfaces have no rail. They may be meant for other machines, and bind nothing here.
fn bindings_of_no_rail(report: &BenchReport) -> Option<String> {
    let rails = || report.results.iter().flat_map(|result| &result.rails);
    // A hosted rail is named by its device or by its connection's interface, which reports don't contain.
    if rails().any(|rail| rail.hosted) {
        return None;
    }
    let interface = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    let rails: BTreeSet<String> = rails().map(|rail| interface(&rail.name)).collect();
    let values = ["tx_bindings", "rx_bindings"].map(|name| report.config.get(name));
    let texts = values.into_iter().flatten().filter_map(|setting| setting.value.as_str());
    let bindings = texts.flat_map(|text| parse_bindings(text).unwrap_or_default());
    let named: BTreeSet<String> = bindings.filter_map(|binding| binding.interface).collect();
    let idle: Vec<String> = named.difference(&rails).cloned().collect();
    let text = || {
        let rails: Vec<String> = rails.iter().cloned().collect();
        format!(
            "bindings of {} bind no thread: the rails are on {}",
            idle.join(", "),
            rails.join(", ")
        )
    };
    (!rails.is_empty() && !idle.is_empty()).then(text)
}

/// Remarks on settings that the user chose, because they may be what is slow.
fn not_tried(report: &BenchReport) -> Option<String> {
    if report.results.iter().any(|result| !result.tried.is_empty()) {
        return None;
    }
    let is_chosen = |name: &str, setting: &Setting| {
        let by_nobody = setting.origin == "default" || setting.origin.starts_with("preset");
        !by_nobody && TRIED_SETTINGS.contains(&name)
    };
    let chosen = report.config.iter().filter(|(name, setting)| is_chosen(name, setting));
    let chosen: Vec<String> = chosen.map(|(name, _)| name.clone()).collect();
    let text = || {
        format!(
            "not at their defaults: {}; --why tries how fast it is with them",
            chosen.join(", ")
        )
    };
    (!chosen.is_empty()).then(text)
}

/// Minimum duration of the longest transfer that is worth a remark, in medians.
const FAR: f64 = 20.0;

fn far_from_the_median(report: &BenchReport) -> Option<String> {
    let sizes = sizes(report, |result| far_max(result).is_some())?;
    let far = report.results.iter().filter_map(|result| Some((far_max(result)?, result)));
    let (factor, result) = far.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(
        "the longest transfer of {} took {}, {factor:.0} times the median (more than {FAR:.0} times: \
         {sizes}): look at `rescues` (wake-ups that were lost; --json FILE has it), at chunks that were sent again, \
         and with --sample at what else the CPUs did",
        show_size(result.size_bytes),
        show_micros(result.latency_us?.max),
    ))
}

/// Returns the longest transfer in medians, if it is worth a remark.
fn far_max(result: &BenchResult) -> Option<f64> {
    let latency = result.latency_us?;
    let factor = latency.max / latency.p50;
    (factor > FAR).then_some(factor)
}

/// Minimum number of transfers for p99.9. With fewer, p99.9 is the longest transfer.
const FEW: u64 = 1000;

fn few_transfers(report: &BenchReport) -> Option<String> {
    let is_few = |result: &BenchResult| result.latency_us.is_some() && result.transfers < FEW;
    let sizes = sizes(report, is_few)?;
    let counts = report.results.iter().filter(|result| is_few(result)).map(|it| it.transfers);
    let (least, most) = (counts.clone().min()?, counts.max()?);
    let count = if least == most { least.to_string() } else { format!("{least} to {most}") };
    Some(format!("p99.9 of {count} transfers is their longest ({sizes}): give more --time"))
}

/// Minimum share of CPU time of other programs that is worth a remark. The softirqs of the transfer's own traffic stay
/// below it.
const OTHERS_SHARE: f64 = 0.4;
/// Minimum distance that is worth a remark: half of that between the slowest and the fastest sample, in percent of the
/// median.
const WIDE_PERCENT: f64 = 20.0;

fn sizes(report: &BenchReport, is_touched: impl Fn(&BenchResult) -> bool) -> Option<String> {
    let touched = report.results.iter().filter(|result| is_touched(result));
    let mut touched: Vec<String> = touched.map(|result| show_size(result.size_bytes)).collect();
    // A size may have a result for each direction.
    touched.dedup();
    match touched.as_slice() {
        [] => None,
        [first, .., last] if touched.len() > SIZES_MAX => Some(format!("{first} to {last}")),
        _ => Some(touched.join(", ")),
    }
}

const SIZES_MAX: usize = 5;

/// Returns the share of the machine's CPU time that was neither idle nor used by this run's processes; 0 if unknown.
fn others_share(report: &BenchReport, result: &BenchResult) -> f64 {
    let same_host = report.peer.as_ref().is_some_and(|peer| peer.same_host);
    let others = result.samples.iter().filter_map(|sample| {
        let peer = if same_host { sample.peer.cpu_seconds } else { 0.0 };
        let ours = (sample.local_cpu_seconds + peer) / sample.seconds;
        Some(sample.machine_busy_share? - ours / report.host.cpus as f64)
    });
    Spread::of(others).map_or(0.0, |others| others.median)
}

/// Whether the path of the bytes was shared memory.
fn is_shared(result: &BenchResult) -> bool {
    result.path.as_ref().is_some_and(|path| path.taken == PathKind::Shared.name())
}

fn bytes_on_rails(result: &BenchResult) -> u64 {
    result.rails.iter().map(|rail| rail.bytes).sum()
}

#[cfg(test)]
mod tests {
    use polyrail_report::{LatencyUs, PathTaken};

    use super::super::render::tests::{report, sample};
    use super::*;

    #[test]
    fn a_quiet_run_needs_no_remark() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.max = 130.0);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.min = 120.0);
        assert_eq!(remarks(&report), Vec::<String>::new());
    }

    #[test]
    fn wide_samples_are_remarked_with_their_sizes() {
        let report = report(2, false);
        let remarks = remarks(&report);
        assert!(
            remarks[0].starts_with("the samples lie far apart (1GiB, 1000003B)"),
            "{remarks:?}"
        );
    }

    #[test]
    fn what_happened_to_a_rail_is_a_line_with_the_rounds() {
        use RailEventKind::{Back, Down, Resent, Slow};
        let event = |end: &str, what, round: u32, count| RailEvent {
            rail: "rail1".into(),
            end: end.into(),
            what,
            at_s: f64::from(round) + 0.5,
            round,
            count,
            because: None,
        };
        let told = |events: &[RailEvent]| {
            let mut report = report(2, false);
            report.results[0].events = events.to_vec();
            let lines = rail_events(&report.results[0]);
            assert!(lines.iter().all(|line| remarks(&report).contains(line)), "{lines:?}");
            lines
        };
        let both = |what, round| [event("here", what, round, 1), event("there", what, round, 1)];
        let mut cut = both(Down, 4).to_vec();
        cut.push(event("here", Resent, 4, 10));
        cut.extend(both(Back, 5));
        let text = "rail1: down at 4.5 s in round 4 of 1GiB (at both ends), back in round 5; 10 chunks sent again";
        assert_eq!(told(&cut), [text]);
        let resent = [event("here", Resent, 2, 1), event("here", Resent, 3, 2)];
        assert_eq!(told(&resent), ["rail1: 3 chunks sent again, the first in round 2 of 1GiB"]);
        let text = "rail1: slow, with less than half of its usual share in round 2 of 1GiB, down at 3.5 s in round 3 (at the \
                    other side)";
        assert_eq!(told(&[event("here", Slow, 2, 1), event("there", Down, 3, 1)]), [text]);
        let many: Vec<RailEvent> = (0..9)
            .map(|rail| RailEvent { rail: format!("r{rail}"), ..event("here", Resent, 1, 1) })
            .collect();
        let lines = told(&many);
        assert_eq!(
            (lines.len(), &*lines[4]),
            (5, "5 more rails had events at 1GiB: `events` in the JSON has them")
        );
    }

    #[test]
    fn one_round_is_remarked_unless_an_interrupted_run_says_so() {
        let mut report = report(2, false);
        assert_eq!(one_round(&report), None);
        report.results[1].samples = vec![sample()];
        let text = "1 round of 1000003B: no spread is known; give --rounds 5";
        assert_eq!(one_round(&report).as_deref(), Some(text));
        assert!(remarks(&report).contains(&text.to_owned()));
        report.interrupted = true;
        assert_eq!(one_round(&report), None);
    }

    #[test]
    fn a_ratio_that_its_columns_contradict_is_remarked() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.alone = None);
        let told = |report: &mut BenchReport, ratio: f64, theirs: f64| {
            let result = &mut report.results[0];
            result.gb_per_s = 1.67;
            let raw = result.against.as_mut().unwrap();
            (raw.ratio, raw.raw_gb_per_s) = (ratio, theirs);
            ratios_apart(report)
        };
        // 1.67 / 1.87 is 0.89.
        assert_eq!(told(&mut report, 0.95, 1.87), Vec::<String>::new());
        let text = "1GiB: the turns' ratios have the median 1.05, the two columns 0.89: the machine changed between \
                    the turns; give --rounds 6";
        assert_eq!(told(&mut report, 1.05, 1.87), [text]);
        assert_eq!(told(&mut report, 0.75, 1.87).len(), 1, "more than a tenth");
        assert_eq!(told(&mut report, 1.001, 1.671), Vec::<String>::new(), "both are shown as 1.00");
    }

    #[test]
    fn rails_without_work_are_remarked_where_the_verdict_does_not_tell_of_them() {
        let mut report = report(8, false);
        let told = |report: &BenchReport| idle_rails(report).unwrap_or_default();
        for rail in 1..7 {
            report.results[1].rails[rail].bytes = 0;
        }
        let text = "127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5 and 2 more stood idle (1000003B), ";
        assert!(told(&report).starts_with(text), "{}", told(&report));
        assert!(remarks(&report).contains(&told(&report)));
        report.results[1].limit.because = "depth 2 keeps 2 of 8 rails busy".into();
        assert_eq!(told(&report), "", "it was said");
        report.results[1].limit.because =
            "127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5, 127.0.0.6 are down".into();
        assert!(told(&report).starts_with("127.0.0.7 stood idle"), "{}", told(&report));
        report.results[1].rails.iter_mut().for_each(|rail| rail.bytes = 0);
        assert_eq!(told(&report), "", "nothing took a rail");
    }

    #[test]
    fn what_a_hosted_plugin_left_to_tcp_is_remarked() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.max = 130.0);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.min = 120.0);
        for result in &mut report.results {
            let mut rail = result.rails[0].clone();
            (rail.hosted, rail.bytes, rail.carried_bytes) = (true, 2000, 2000);
            result.rails = vec![rail];
        }
        assert_eq!(remarks(&report), Vec::<String>::new());
        report.results[1].rails[0].carried_bytes = 500;
        let remarks = remarks(&report);
        let begin =
            "the hosted plugin carried 25.0 % of its rails' bytes (1000003B), the rest took TCP";
        assert!(remarks[0].starts_with(begin), "{remarks:?}");
        report.results[1].size_bytes = 1024;
        let remarks = super::remarks(&report);
        assert!(
            remarks[0].starts_with("a hosted plugin carries nothing below 4KiB (1KiB)"),
            "{remarks:?}"
        );
        report.results[1].rails[0].hosted = false;
        assert_eq!(super::remarks(&report), Vec::<String>::new(), "a rail of our own");
    }

    #[test]
    fn bytes_that_were_meant_for_shared_memory_and_went_over_rails_are_remarked() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.max = 130.0);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.min = 120.0);
        let (taken, why) = ("shared memory".to_owned(), String::new());
        report.results[1].path = Some(PathTaken { taken, why, considered: Vec::new() });
        report.results[1].rails.iter_mut().for_each(|rail| rail.bytes = 0);
        assert_eq!(remarks(&report), Vec::<String>::new());
        report.results[1].rails[0].bytes = 700;
        let remarks = remarks(&report);
        assert!(remarks[0].starts_with("700 bytes went over the rails"), "{remarks:?}");
        assert!(remarks[0].contains("(1000003B)"), "{remarks:?}");
    }

    #[test]
    fn bindings_of_an_interface_without_a_rail_are_remarked() {
        let mut report = report(2, false);
        let rail = report.results[0].rails[0].name.split('@').next().unwrap().to_owned();
        let bind = |report: &mut BenchReport, text: &str| {
            let setting = Setting { value: text.into(), origin: "set".into() };
            report.config.insert("tx_bindings".to_owned(), setting);
        };
        bind(&mut report, &format!("{rail}:0;1"));
        assert_eq!(bindings_of_no_rail(&report), None);
        bind(&mut report, &format!("{rail}:0;eth9:1"));
        let remark = bindings_of_no_rail(&report).unwrap();
        assert!(
            remark.starts_with("bindings of eth9 bind no thread: the rails are on "),
            "{remark}"
        );
    }

    #[test]
    fn a_longest_transfer_far_above_the_median_is_remarked_with_its_number() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.max = 130.0);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.min = 120.0);
        let times = |p50, max| Some(LatencyUs { min: 1.0, p50, p99: p50, p999: p50, max });
        report.results[0].latency_us = times(100.0, 2_000.0);
        report.results[1].latency_us = times(100.0, 50_600.0);
        let remarks = remarks(&report);
        assert_eq!(remarks.len(), 1, "twenty times is not more than twenty times: {remarks:?}");
        let text = "the longest transfer of 1000003B took 50.6ms, 506 times the median (more than 20 \
                    times: 1000003B): look at `rescues`";
        assert!(remarks[0].starts_with(text), "{remarks:?}");
    }

    #[test]
    fn the_tail_of_few_transfers_is_remarked_with_their_number() {
        let mut report = report(2, false);
        let told = |report: &BenchReport| few_transfers(report).unwrap_or_default();
        report.results[1].transfers = 1000;
        assert_eq!(told(&report), "");
        report.results[1].transfers = 999;
        assert_eq!(
            told(&report),
            "p99.9 of 999 transfers is their longest (1000003B): give more --time"
        );
        report.results[0].transfers = 15;
        let text = "p99.9 of 15 to 999 transfers is their longest (1GiB, 1000003B): ";
        assert!(told(&report).starts_with(text) && remarks(&report).contains(&told(&report)));
    }

    #[test]
    fn lost_wake_ups_are_remarked_and_engines_that_do_not_count_them_are_not() {
        let mut report = report(2, false);
        report.results[0].rescues = Some(0);
        let count = remarks(&report).len();
        report.results[0].rescues = Some(3);
        let remarks = remarks(&report);
        assert_eq!(remarks.len(), count + 1);
        let text = "3 times only an engine's periodic look brought transfers on (1GiB)";
        assert!(remarks[count].starts_with(text), "{remarks:?}");
    }
}
