//! What a reader should know before believing the figures, with what to do about it.

use std::collections::BTreeSet;

use polyrail::PathKind;
use polyrail_config::parse_bindings;
use polyrail_report::{
    BenchReport, BenchResult, CARRIED_LEAST, RailShare, Setting, Spread, show_micros, show_size,
};

use super::path::TCP;
use crate::cmd::bench::options::TRIED_SETTINGS;

/// One sentence for each disturbance, with the sizes that it touched.
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
    let wide = |result: &BenchResult| result.spread_gb_per_s.half_range_percent() > WIDE_PERCENT;
    if let Some(sizes) = sizes(report, wide) {
        remarks.push(format!("the samples lie far apart ({sizes}): give more --time and --rounds"));
    }
    if let Some(sizes) = sizes(report, |result| resent_chunks(result) > 0) {
        let resent: u64 = report.results.iter().map(resent_chunks).sum();
        let rails = rails(report, |_, rail| rail.resent_chunks > 0);
        remarks.push(format!(
            "{resent} chunks were sent again because flows of {} died or stalled ({sizes}); \
             `--set log_level=info` tells when",
            named(&rails)
        ));
    }
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
    remarks.extend(far_from_the_median(report));
    remarks.extend(few_transfers(report));
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

/// Rails that the verdict does not name already: it does where they are the limit, or are down.
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

/// A rail with less than this part of what each would carry, were all alike, stands idle; a slow one does not.
const IDLE_SHARE: f64 = 0.04;
/// With this a verdict says how many rails had work.
const BUSY_RAILS: &str = "rails busy";

/// Rails of which that holds at any size, each once.
fn rails(
    report: &BenchReport,
    is_meant: impl Fn(&BenchResult, &RailShare) -> bool,
) -> BTreeSet<&str> {
    let rails =
        report.results.iter().flat_map(|result| result.rails.iter().map(move |it| (result, it)));
    rails.filter(|(result, rail)| is_meant(result, rail)).map(|(_, rail)| &*rail.name).collect()
}

/// `rail0, rail1 and 62 more`.
fn named(rails: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = rails.iter().copied().take(NAMED_MAX).collect();
    let more = rails.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

const NAMED_MAX: usize = 4;

/// The payload of a hosted plugin takes TCP where the plugin can't, and the figures are those of TCP then.
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

/// Shorter pieces take the rail's TCP connection in any case.
const CARRIED_FROM: u64 = 4 << 10;

/// Where such pieces are all that was sent, the plugin has no part in the figures.
fn too_short_for_plugins(report: &BenchReport) -> Option<String> {
    let is_short = |result: &BenchResult| {
        result.size_bytes < CARRIED_FROM && result.rails.iter().any(|rail| rail.hosted)
    };
    let sizes = sizes(report, is_short)?;
    Some(format!(
        "a hosted plugin carries nothing below 4KiB ({sizes}): these figures are those of TCP"
    ))
}

/// Bindings may name interfaces that other machines have; here they bind nothing.
fn bindings_of_no_rail(report: &BenchReport) -> Option<String> {
    let rails = || report.results.iter().flat_map(|result| &result.rails);
    // A hosted rail goes by its device, or by the interface of its connection, of which a report says nothing.
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

/// Settings that somebody chose may be what is slow.
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

/// A longest transfer that is worth a remark, in medians.
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

/// How many medians the longest transfer took, if these are too many.
fn far_max(result: &BenchResult) -> Option<f64> {
    let latency = result.latency_us?;
    let factor = latency.max / latency.p50;
    (factor > FAR).then_some(factor)
}

/// Of fewer, p99.9 is the longest.
const FEW: u64 = 1000;

fn few_transfers(report: &BenchReport) -> Option<String> {
    let is_few = |result: &BenchResult| result.latency_us.is_some() && result.transfers < FEW;
    let sizes = sizes(report, is_few)?;
    let counts = report.results.iter().filter(|result| is_few(result)).map(|it| it.transfers);
    let (least, most) = (counts.clone().min()?, counts.max()?);
    let count = if least == most { least.to_string() } else { format!("{least} to {most}") };
    Some(format!("p99.9 of {count} transfers is their longest ({sizes}): give more --time"))
}

/// CPU time of others that is worth a remark; the softirqs of our own traffic stay below.
const OTHERS_SHARE: f64 = 0.4;
/// Half the distance between the slowest and the fastest sample, in percent of the median.
const WIDE_PERCENT: f64 = 20.0;

fn sizes(report: &BenchReport, is_touched: impl Fn(&BenchResult) -> bool) -> Option<String> {
    let touched = report.results.iter().filter(|result| is_touched(result));
    let touched: Vec<String> = touched.map(|result| show_size(result.size_bytes)).collect();
    match touched.as_slice() {
        [] => None,
        [first, .., last] if touched.len() > SIZES_MAX => Some(format!("{first} to {last}")),
        _ => Some(touched.join(", ")),
    }
}

const SIZES_MAX: usize = 5;

/// The part of the machine's CPU time that was neither idle nor ours; 0 where it is not known.
fn others_share(report: &BenchReport, result: &BenchResult) -> f64 {
    let same_host = report.peer.as_ref().is_some_and(|peer| peer.same_host);
    let others = result.samples.iter().filter_map(|sample| {
        let peer = if same_host { sample.peer.cpu_seconds } else { 0.0 };
        let ours = (sample.local_cpu_seconds + peer) / sample.seconds;
        Some(sample.machine_busy_share? - ours / report.host.cpus as f64)
    });
    Spread::of(others).map_or(0.0, |others| others.median)
}

fn resent_chunks(result: &BenchResult) -> u64 {
    result.rails.iter().map(|rail| rail.resent_chunks).sum()
}

/// Whether the bytes were meant to lie in shared memory.
fn is_shared(result: &BenchResult) -> bool {
    result.path.as_ref().is_some_and(|path| path.taken == PathKind::Shared.name())
}

fn bytes_on_rails(result: &BenchResult) -> u64 {
    result.rails.iter().map(|rail| rail.bytes).sum()
}

#[cfg(test)]
mod tests {
    use polyrail_report::{LatencyUs, PathTaken};

    use super::super::render::tests::report;
    use super::*;

    #[test]
    fn a_quiet_run_needs_no_remark() {
        let mut report = report(2, false);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.max = 130.0);
        report.results.iter_mut().for_each(|result| result.spread_gb_per_s.min = 120.0);
        assert_eq!(remarks(&report), Vec::<String>::new());
    }

    #[test]
    fn wide_samples_and_resent_chunks_are_remarked_with_their_sizes() {
        let mut report = report(2, false);
        report.results[1].rails[0].resent_chunks = 3;
        let remarks = remarks(&report);
        assert!(
            remarks[0].starts_with("the samples lie far apart (1GiB, 1000003B)"),
            "{remarks:?}"
        );
        let text = "3 chunks were sent again because flows of 127.0.0.1 died or stalled (1000003B)";
        assert!(remarks[1].starts_with(text), "{remarks:?}");
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
