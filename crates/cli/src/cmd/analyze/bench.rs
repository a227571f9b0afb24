//! The page of a report of `polyrail bench`.

use polyrail_analyze::{NOISY_PERCENT, PageHead, PageVerdict, Tone, flaw};
use polyrail_report::{
    BenchReport, BenchResult, Fit, Fits, RailEvent, RailEventKind, is_undecided, show_gb_per_s,
    show_micros, show_ratio_range, show_size, show_spread,
};

use crate::cmd::bench::names_down;

const PAGE: &str = include_str!("bench.js");

/// Returns the page of a report, or an error if the text is not such a report.
pub(super) fn page(json: &str) -> serde_json::Result<String> {
    Ok(polyrail_analyze::page(&head(&serde_json::from_str(json)?), json, PAGE))
}

fn head(report: &BenchReport) -> PageHead {
    let peer = report.peer.as_ref().filter(|peer| !peer.same_host);
    let title = match peer {
        Some(peer) => format!("Bench from {} to {}", report.host.hostname, peer.host.hostname),
        None => format!("Bench on {}", report.host.hostname),
    };
    let mut head = PageHead {
        title,
        started_unix_ms: Some(report.head.started_unix_ms),
        verdict: verdict(report),
        tiles: tiles(report),
        facts: Vec::new(),
    };
    head.command(&report.head.arguments);
    let settings = report.config.iter().filter(|(_, setting)| setting.origin != "default");
    let settings: Vec<String> = settings
        .map(|(name, setting)| format!("{name} = {} ({})", setting.value, setting.origin))
        .collect();
    head.fact("settings", Some(settings.join(", ")));
    head.machine(&report.host);
    if let Some(peer) = peer {
        head.machine(&peer.host);
    }
    let rates = report.lab.as_ref().map(|lab| {
        let rate = |bits: &Option<u64>| match bits {
            Some(bits) => format!("{} Mbit/s", bits / 1_000_000),
            None => "unlimited".to_owned(),
        };
        lab.rails_bits_per_s.iter().map(rate).collect::<Vec<_>>().join(", ")
    });
    head.fact("rails of the lab", rates);
    head.fact("version", Some(format!("polyrail {}", report.head.tool.version)));
    head.fact("took", Some(format!("{:.1} s", report.head.elapsed_s)));
    head
}

/// The result of the largest size, which the verdict is about.
fn largest(report: &BenchReport) -> Option<&BenchResult> {
    report.results.iter().max_by_key(|result| result.size_bytes)
}

fn verdict(report: &BenchReport) -> PageVerdict {
    let limit = report.limit.as_ref();
    let because: Vec<&str> = limit.iter().flat_map(|limit| limit.because.lines()).collect();
    let limited = limit.zip(because.first());
    let limited = limited.map(|(limit, first)| format!("the limit is {}: {first}", limit.verdict));
    let mut more: Vec<String> = because.iter().skip(1).map(|line| (*line).to_owned()).collect();
    let down = down(report, &mut more);
    let largest = largest(report);
    let noisy = largest.map(|one| one.spread_gb_per_s.half_range_percent());
    let ratio = largest.and_then(ratio);
    let compared =
        ratio.as_ref().map(|(_, shown)| format!("{shown} times the rate of plain sockets"));
    let result = largest.map(|one| {
        let rate = format!("{} GB/s at {}", show_gb_per_s(one.gb_per_s), show_size(one.size_bytes));
        [Some(rate), limited.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ")
    });
    let (tone, word, text) = if let Some(error) = &report.head.error {
        (Tone::Bad, "Ended early", error.clone())
    } else if report.interrupted {
        (Tone::Bad, "Interrupted", "the figures are of the rounds until then".to_owned())
    } else if let Some(down) = down {
        (Tone::Bad, "A rail was down", down)
    } else if let Some(fit) = &report.fit {
        flaw(&report.head.notes).unwrap_or_else(|| fits(fit))
    } else if let Some(percent) = noisy.filter(|percent| *percent > NOISY_PERCENT) {
        let text = format!(
            "the rounds vary by \u{b1} {percent:.0} %: end other programs, and repeat it with more --rounds"
        );
        (Tone::Bad, "Too noisy", text)
    } else if let Some(flaw) = flaw(&report.head.notes) {
        flaw
    } else if largest.is_some_and(|one| one.samples.len() < 2) {
        let text = "one round says nothing of how much the figures vary: give --rounds 3 or more";
        (Tone::Unclear, "Undecided", text.to_owned())
    } else if ratio.as_ref().is_some_and(|(is_open, _)| *is_open) {
        (Tone::Unclear, "Undecided", compared.clone().unwrap_or_default())
    } else {
        (Tone::Good, "Good", result.clone().unwrap_or_default())
    };
    let front = [result, compared].into_iter().flatten().filter(|one| *one != text);
    more.splice(0..0, front);
    PageVerdict { tone, word: word.to_owned(), text, more }
}

/// Returns the sentence about a rail that was down at some size. Takes it out of `named`, the lines of the verdict, if
/// it is there. Rails that never were up have no event, only such a line.
fn down(report: &BenchReport, named: &mut Vec<String>) -> Option<String> {
    let mut results = report.results.iter();
    let is_down = |event: &&RailEvent| event.what == RailEventKind::Down;
    let event = results.find_map(|one| Some((one, one.events.iter().find(is_down)?)));
    let is_of = |line: &String| match event {
        Some((_, event)) => line.starts_with(&format!("{} ", event.rail)) && names_down(line),
        None => names_down(line),
    };
    if let Some(at) = named.iter().position(is_of) {
        return Some(named.remove(at));
    }
    let (one, RailEvent { rail, end, round, because, .. }) = event?;
    let because = because.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    Some(format!(
        "{rail} {end} was down in round {round} of {}{because}",
        show_size(one.size_bytes)
    ))
}

/// The answer of `--fit`.
fn fits(fit: &Fit) -> (Tone, &'static str, String) {
    let text = format!("{}, {:.0} Gbit/s: {}", fit.asked, fit.asked_gbit_per_s, fit.because);
    match fit.answer {
        Fits::Yes => (Tone::Good, "It fits", text),
        Fits::No => (Tone::Bad, "It does not fit", text),
        Fits::Undecided => (Tone::Unclear, "Undecided", text),
    }
}

/// Ratio to the rate of plain sockets: whether it is undecided, and its text.
fn ratio(one: &BenchResult) -> Option<(bool, String)> {
    let against = one.against.as_ref().filter(|_| !one.ping_pong)?;
    let spread = against.spread_ratio?;
    let samples = one.samples.len().min(against.samples.len());
    Some((is_undecided(&spread, samples), show_ratio_range(&spread, samples)))
}

fn tiles(report: &BenchReport) -> Vec<(String, String)> {
    let Some(one) = largest(report) else { return Vec::new() };
    let size = show_size(one.size_bytes);
    let varies = show_spread(&one.spread_gb_per_s, one.samples.len());
    let rate = format!("{} GB/s \u{b1} {varies} %", show_gb_per_s(one.gb_per_s));
    let mut tiles = vec![(rate.replace(" \u{b1} – %", ""), format!("of {size}"))];
    if let Some(latency) = one.latency_us {
        tiles.push((show_micros(latency.p99), format!("99th percentile of the time of {size}")));
    }
    if let Some(cost) = one.cpu_seconds_per_gb {
        tiles.push((format!("{cost:.2} CPU s/GB"), "both ends together".to_owned()));
    }
    if let Some((_, shown)) = ratio(one) {
        tiles.push((shown, "of plain sockets, by rate".to_owned()));
    }
    if let Some(limit) = &report.limit {
        tiles.push((limit.verdict.to_string(), "is the limit".to_owned()));
    }
    tiles
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> BenchReport {
        let spread = json!({"median": 5.0, "min": 4.9, "max": 5.1});
        let peer = json!({"seconds": 0.2, "cpu_seconds": 0.1, "tx_bytes": 0, "rx_bytes": 0, "rx_bytes_per_rail": []});
        let sample = json!({
            "started_unix_ms": 0, "transfers": 1, "bytes": 8, "seconds": 0.2, "local_cpu_seconds": 0.1, "machine_busy_share": null,
            "p50_us": null, "p99_us": null, "window_full_share": 0.0, "socket_full_share": 0.0, "peer": peer
        });
        let limit = json!({"verdict": "cpu", "because": "the CPUs are busy"});
        let result = |size: u64| {
            json!({
                "size_bytes": size, "op": "write", "segments": 1, "depth": 1, "bidir": false, "ping_pong": false, "transfers": 1,
                "bytes": 8, "seconds": 0.4, "transfers_per_s": 1.0, "gb_per_s": 5.0, "spread_gb_per_s": spread, "latency_us": null,
                "verified": true, "verify": "full", "verified_bytes": 8, "rails": [], "cpu_seconds_per_gb": null, "against": null,
                "alone": null, "limit": limit, "samples": [sample, sample]
            })
        };
        let host = json!({
            "hostname": "a", "boot_id": null, "kernel": "6", "cpu_model": null, "cpus": 2, "cpus_allowed": 2,
            "memory_bytes": null, "congestion_control": null, "transparent_hugepage": null
        });
        serde_json::from_value(json!({
            "schema_version": 1, "tool": {"name": "polyrail", "version": "1"}, "arguments": [], "started_unix_ms": 0,
            "elapsed_s": 1.0, "notes": [], "error": null, "host": host, "peer": null, "config": {}, "lab": null,
            "results": [result(8), result(1 << 20)], "limit": limit, "interrupted": false
        }))
        .unwrap()
    }

    fn banner(report: &BenchReport) -> (String, String) {
        let PageVerdict { word, text, .. } = verdict(report);
        (word, text)
    }

    #[test]
    fn a_rail_that_was_down_at_any_size_is_told_by_its_event_and_one_that_never_was_up_by_the_verdict()
     {
        let mut report = report();
        assert_eq!(banner(&report).0, "Good");
        let event = |what| RailEvent {
            rail: "eth1".into(),
            end: "there".into(),
            what,
            at_s: 1.0,
            round: 2,
            count: 1,
            because: Some("no carrier".into()),
        };
        report.results[0].events = vec![event(RailEventKind::Slow), event(RailEventKind::Back)];
        assert_eq!(banner(&report).0, "Good");
        report.results[0].events.push(event(RailEventKind::Down));
        let size = show_size(report.results[0].size_bytes);
        let text = format!("eth1 there was down in round 2 of {size}: no carrier");
        assert_eq!(banner(&report), ("A rail was down".to_owned(), text));
        let line = "eth1 at the other side was not connected: timed out (look at it)";
        let limit = report.limit.as_mut().unwrap();
        limit.because =
            format!("it was down in its figures\neth0 here is not used: so set\n{line}");
        assert_eq!(banner(&report).1, line);
        report.results[0].events.clear();
        assert_eq!(banner(&report).1, line);
        report.limit.as_mut().unwrap().because = "x\neth0 here is not used: it was down".to_owned();
        assert_eq!(banner(&report).0, "Good");
    }

    #[test]
    fn the_answer_of_fit_is_the_banner() {
        let mut report = report();
        let fit = |answer| Fit {
            asked: "2x100gbit".into(),
            asked_gbit_per_s: 200.0,
            answer,
            because: "sending takes 6.0 CPUs (5.4 to 6.5) of 16".into(),
            ends: Vec::new(),
            pays_from_bytes: None,
        };
        for (answer, word) in
            [(Fits::Yes, "It fits"), (Fits::No, "It does not fit"), (Fits::Undecided, "Undecided")]
        {
            report.fit = Some(fit(answer));
            let text = "2x100gbit, 200 Gbit/s: sending takes 6.0 CPUs (5.4 to 6.5) of 16";
            assert_eq!(banner(&report), (word.to_owned(), text.to_owned()));
        }
        report.head.notes = vec!["this is a debug build".to_owned()];
        assert_eq!(banner(&report).0, "Not to be used");
    }

    #[test]
    fn a_text_that_is_no_report_is_refused_with_the_reason() {
        assert!(page("{}").unwrap_err().to_string().contains("missing field"));
        assert!(page("").is_err());
    }
}
