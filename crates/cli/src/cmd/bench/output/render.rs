//! Report for people.

use polyrail_report::{
    Align, BenchReport, BenchResult, MemoryPlace, Placement, RailShare, RatioInterval, Table,
    Tried, counted, sentences, show_count, show_gb_per_s, show_rate, show_ratio, show_size,
    show_spread,
};

use super::fit::fit_text;
use super::path::{TCP, explanation};
use super::tables::{against_alone, against_raw, baselines, sweep, tried};
use super::words::{SHARES_MAX, micros, plural};
use crate::cmd::bench::options::{Placed, UNPROTECTED};

/// Formats the tables, the limit of each size, and the remarks. Sentences are wrapped to the width in columns, if
/// given.
pub(crate) fn text(report: &BenchReport, explain_path: bool, width: Option<usize>) -> String {
    let Some(first) = report.results.first() else { return String::new() };
    if let Some(fit) = &report.fit {
        return fit_text(report, fit, width);
    }
    let is_latency = first.ping_pong;
    let mut text = heading(report, first, is_latency);
    text += &memory(report, first, explain_path, width);
    text += &if is_latency { latencies(report) } else { rates(report) }.fitted(width);
    let tables = [
        against_raw(report, is_latency),
        against_alone(report),
        baselines(report),
        sweep(report),
        tried(report),
    ];
    for baseline in tables.into_iter().flatten() {
        text += "\n";
        text += &baseline.fitted(width);
    }
    text += "\n";
    text += &limits(report, width);
    if let Some(placement) = &report.placement {
        text += &threads(placement, is_verbose(report), width);
    }
    for note in &report.head.notes {
        text += &wrapped(&format!("note: {note}"), width);
    }
    text
}

fn heading(report: &BenchReport, first: &BenchResult, is_latency: bool) -> String {
    let setting = |name| setting(report, name);
    let rails: Vec<&str> = first.rails.iter().map(|rail| rail.name.as_str()).collect();
    let mut what = vec![first.op.clone()];
    if is_latency {
        what.push("one way".into());
    }
    if first.segments > 1 {
        what.push(format!("{} segments", first.segments));
    }
    if first.bidir {
        what.push("both ways at once".into());
    }
    what.push(format!("verified: {}", first.verify));
    let chunk = setting("chunk_bytes").parse().map_or(String::new(), show_size);
    let protection = report.protection;
    if first.path.as_ref().is_some_and(|path| path.taken != TCP) {
        // No setting protects payload that takes no rail.
        let proof = protection.map_or(String::new(), |found| format!("proof: {}\n", found.proof));
        return format!("{}\n{proof}\n", what.join(", "));
    }
    let protection = protection.map_or(String::new(), |found| format!("{found}\n"));
    format!(
        "{}\n{} {}: {}; chunks of {chunk}, window {}\n{protection}\n",
        what.join(", "),
        rails.len(),
        plural(rails.len(), "rail"),
        abridged(&rails),
        setting("window_chunks")
    )
}

fn setting(report: &BenchReport, name: &str) -> String {
    let value = report.config.get(name).map(|setting| &setting.value);
    value.map_or(String::new(), |value| value.to_string().trim_matches('"').to_owned())
}

/// Describes the places of the bytes and their path, unless they are as expected.
fn memory(
    report: &BenchReport,
    first: &BenchResult,
    explain_path: bool,
    width: Option<usize>,
) -> String {
    let there = report.peer.as_ref().and_then(|peer| peer.memory.as_ref());
    let ends = [report.memory.as_ref(), there];
    let mut text = String::new();
    let has_device = ends.into_iter().flatten().any(|memory| memory.device.is_some());
    let is_tcp = first.path.as_ref().is_none_or(|path| path.taken == TCP);
    // The user chose shared memory and host memory can't have it, or a single copy is possible.
    if has_device || !is_tcp || setting(report, "path") == "shared" {
        let [here, there] = ends.map(|memory| memory.map_or_else(String::new, MemoryPlace::text));
        text += &format!("memory: here {here}\n        there {there}\n");
        if let Some(path) = first.path.as_ref().filter(|_| !explain_path) {
            text += &wrapped(&format!("path: {}, because {}", path.taken, path.why), width);
        }
    }
    if explain_path {
        let paths = report.results.iter();
        let paths = paths.filter_map(|result| Some((result.size_bytes, result.path.as_ref()?)));
        text += &explanation(paths);
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// Shortens the names to fit on a line.
fn abridged(names: &[&str]) -> String {
    match names {
        [first, .., last] if names.len() > 3 => format!("{first} … {last}"),
        names => names.join(" "),
    }
}

fn rates(report: &BenchReport) -> Table {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("per s", Align::Right)
        .column("GB/s", Align::Right)
        .column("±%", Align::Right)
        .column("p50", Align::Right)
        .column("p99", Align::Right)
        .column("p99.9", Align::Right)
        .column("max", Align::Right)
        .column("CPU s/GB", Align::Right)
        .column("rails %", Align::Left);
    for result in &report.results {
        table.row([
            show_size(result.size_bytes),
            show_rate(result.transfers_per_s),
            show_gb_per_s(result.gb_per_s),
            show_spread(&result.spread_gb_per_s, result.samples.len()),
            micros(result.latency_us, |latency| latency.p50),
            micros(result.latency_us, |latency| latency.p99),
            micros(result.latency_us, |latency| latency.p999),
            micros(result.latency_us, |latency| latency.max),
            result.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
            shares(&result.rails),
        ]);
    }
    table
}

fn latencies(report: &BenchReport) -> Table {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("messages", Align::Right)
        .column("min", Align::Right)
        .column("p50", Align::Right)
        .column("p99", Align::Right)
        .column("p99.9", Align::Right)
        .column("max", Align::Right);
    for result in &report.results {
        let latency = result.latency_us;
        table.row([
            show_size(result.size_bytes),
            show_count(result.transfers),
            micros(latency, |latency| latency.min),
            micros(latency, |latency| latency.p50),
            micros(latency, |latency| latency.p99),
            micros(latency, |latency| latency.p999),
            micros(latency, |latency| latency.max),
        ]);
    }
    table
}

/// Describes the CPUs of the threads in a line, and with `--verbose-bindings` in a line for each thread.
fn threads(placement: &Placement, is_verbose: bool, width: Option<usize>) -> String {
    let moves: u64 = placement.threads.iter().map(|thread| thread.migrations).sum();
    let who = Placed::words(placement.by, &placement.why);
    let times = plural(moves as usize, "time");
    let mut text = wrapped(&format!("threads: {who}; seen to move {moves} {times}"), width);
    let astray = placement.threads.iter().filter(|thread| !thread.is_as_expected()).count();
    if astray > 0 {
        text += &format!(
            "threads: {astray} of {} did not run where they should; see --verbose-bindings\n",
            placement.threads.len()
        );
    }
    if is_verbose {
        text += &bindings(placement).fitted(width);
    }
    text
}

fn bindings(placement: &Placement) -> Table {
    let headings = ["thread", "end", "expected", "actual", "last on"];
    let mut table = headings
        .into_iter()
        .fold(Table::default(), |table, heading| table.column(heading, Align::Left))
        .column("moves", Align::Right);
    for thread in &placement.threads {
        let expected = if thread.expected.is_empty() { "any" } else { &thread.expected };
        table.row([
            thread.name.clone(),
            if thread.is_peer { "there" } else { "here" }.to_owned(),
            expected.to_owned(),
            thread.actual.clone(),
            thread.last_cpu.map_or(String::new(), |cpu| format!("CPU {cpu}")),
            thread.migrations.to_string(),
        ]);
    }
    table
}

fn is_verbose(report: &BenchReport) -> bool {
    report.config.get("verbose_bindings").is_some_and(|setting| setting.value == true)
}

/// Wraps a sentence to the width of a terminal.
fn wrapped(sentence: &str, width: Option<usize>) -> String {
    sentences(sentence, width) + "\n"
}

fn limits(report: &BenchReport, width: Option<usize>) -> String {
    let mut text = String::new();
    // Most lines are the same at every size.
    let mut rails: Vec<String> = Vec::new();
    for result in &report.results {
        let size = show_size(result.size_bytes);
        let limit = result.limit.to_string();
        let mut lines = limit.lines();
        text += &wrapped(&format!("limit at {size}: {}", lines.next().unwrap_or_default()), width);
        text += &why(result).map_or(String::new(), |why| wrapped(&why, width));
        for line in lines.map(|line| format!("rails: {line}")) {
            if !rails.contains(&line) {
                rails.push(line);
            }
        }
    }
    rails.iter().fold(text, |text, line| text + &wrapped(line, width))
}

/// Summarizes the changes that were tried, in a line.
fn why(result: &BenchResult) -> Option<String> {
    if result.tried.is_empty() {
        return None;
    }
    let size = show_size(result.size_bytes);
    let figures = |tried: &Tried| {
        let RatioInterval { low, high } = tried.interval?;
        let [middle, low, high] = [tried.ratio.median, low, high].map(show_ratio);
        Some(format!("{middle} × ({low} to {high})"))
    };
    let helps = |tried: &Tried| {
        let aside = match tried.change == UNPROTECTED {
            true => ", which shows what protection costs, and is no advice to go without",
            false => "",
        };
        let figures = figures(tried).filter(|_| tried.helps)?;
        Some(format!("{} makes it {figures}{aside}", tried.change))
    };
    let each: Vec<String> = result.tried.iter().filter_map(helps).collect();
    if !each.is_empty() {
        return Some(format!("why at {size}: {}", each.join("; ")));
    }
    let count = counted(result.tried.len() as u64, "change");
    let again =
        result.tried.iter().filter_map(|it| Some(format!("{} {}", it.change, figures(it)?)));
    let again: Vec<String> = again.collect();
    let again = match again.is_empty() {
        true => String::new(),
        false => format!("; what looked best came to, when measured again, {}", again.join(", ")),
    };
    Some(format!("why at {size}: none of {count} is shown to make it faster{again}"))
}

/// Formats the share of each rail in percent; of many rails only the least and the greatest.
fn shares(rails: &[RailShare]) -> String {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    if rails.iter().all(|rail| rail.bytes == 0) {
        return String::new();
    }
    if rails.len() > SHARES_MAX {
        let (min, max) = rails
            .iter()
            .fold((1.0f64, 0.0f64), |(min, max), rail| (min.min(rail.share), max.max(rail.share)));
        return format!("{} to {}", percent(min), percent(max));
    }
    rails.iter().map(|rail| percent(rail.share)).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
pub(crate) mod tests {
    use polyrail_report::{
        AgainstAlone, AgainstRaw, AgainstSample, Host, LatencyUs, Limit, LimitKind, LoneRail,
        PathTaken, PayloadProtection, PeerSample, PlacedBy, PlacedThread, Protection, ProvenBy,
        RunHead, SCHEMA_VERSION, Sample, Setting, Spread,
    };

    use super::*;
    use crate::reports;

    fn result(size_bytes: u64, rails: usize, ping_pong: bool) -> BenchResult {
        let rail = |index: usize| RailShare {
            name: format!("127.0.0.{}", index + 1),
            bytes: 1 << 30,
            share: 1.0 / rails as f64,
            gb_per_s: 1.0,
            retransmits: 0,
            resent_chunks: 0,
            carried_bytes: 0,
            hosted: false,
        };
        let raw = AgainstSample {
            bytes: 1 << 30,
            seconds: 1.0,
            local_cpu_seconds: 0.1,
            peer_cpu_seconds: 0.1,
        };
        BenchResult {
            size_bytes,
            op: "write".into(),
            segments: 16_384,
            depth: 16,
            bidir: true,
            ping_pong,
            transfers: 123_456_789,
            bytes: u64::MAX,
            seconds: 1.0,
            transfers_per_s: 1_234_567.0,
            gb_per_s: 123.456,
            spread_gb_per_s: Spread { median: 123.456, min: 100.0, max: 200.0 },
            latency_us: Some(LatencyUs {
                min: 1.5,
                p50: 123_456.7,
                p99: 1_234_567.0,
                p999: 2e6,
                max: 2.4e6,
            }),
            verified: true,
            verify: "full".into(),
            verified_bytes: 1,
            path: None,
            rescues: None,
            rails: (0..rails).map(rail).collect(),
            events: Vec::new(),
            cpu_seconds_per_gb: Some(0.1234),
            against: Some(AgainstRaw {
                raw_gb_per_s: 123.456,
                ratio: 0.987,
                spread_ratio: Some(Spread { median: 0.987, min: 0.95, max: 1.02 }),
                raw_cpu_seconds_per_gb: Some(0.1111),
                cpu_ratio: Some(1.111),
                spread_cpu_ratio: Some(Spread { median: 1.111, min: 1.08, max: 1.15 }),
                raw_latency_us: Some(LatencyUs {
                    min: 1.0,
                    p50: 12.3,
                    p99: 13.0,
                    p999: 14.0,
                    max: 15.0,
                }),
                flows: 16,
                chunk_bytes: 1 << 20,
                congestion: "cubic".into(),
                samples: vec![raw.clone(), raw],
            }),
            alone: Some(AgainstAlone {
                sum_gb_per_s: 130.0,
                ratio: 0.95,
                spread_ratio: Some(Spread { median: 0.95, min: 0.94, max: 0.96 }),
                rails: (0..rails)
                    .map(|_| LoneRail {
                        name: "x".into(),
                        gb_per_s: 12.34,
                        samples_gb_per_s: vec![12.3, 12.4],
                    })
                    .collect(),
            }),
            baselines: Vec::new(),
            sweep: Vec::new(),
            limit: Limit { verdict: LimitKind::Memory, because: "because".into() },
            tried: Vec::new(),
            samples: Vec::new(),
        }
    }

    pub(crate) fn sample() -> Sample {
        Sample {
            started_unix_ms: 1_700_000_000_000,
            transfers: 10,
            bytes: 10 << 20,
            seconds: 0.5,
            local_cpu_seconds: 0.1,
            machine_busy_share: None,
            p50_us: None,
            p99_us: None,
            window_full_share: 0.0,
            socket_full_share: 0.0,
            peer: PeerSample::default(),
        }
    }

    pub(crate) fn report(rails: usize, ping_pong: bool) -> BenchReport {
        let setting = |value: u64| Setting { value: value.into(), origin: "default".into() };
        BenchReport {
            head: RunHead { notes: vec!["something".into()], ..reports::begin(SCHEMA_VERSION) },
            host: Host {
                hostname: "h".into(),
                boot_id: None,
                kernel: "6".into(),
                cpu_model: None,
                cpus: 2,
                cpus_allowed: 2,
                memory_bytes: None,
                congestion_control: None,
                transparent_hugepage: None,
            },
            peer: None,
            config: [
                ("chunk_bytes".to_owned(), setting(512 << 10)),
                ("window_chunks".to_owned(), setting(16)),
            ]
            .into(),
            lab: None,
            memory: Some(MemoryPlace::host()),
            placement: None,
            protection: None,
            results: vec![result(1 << 30, rails, ping_pong), result(1_000_003, rails, ping_pong)],
            limit: None,
            fit: None,
            samples_file: None,
            interrupted: false,
        }
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_even_with_large_numbers() {
        for (rails, ping_pong) in [(4, false), (16, false), (6, true)] {
            let mut report = report(rails, ping_pong);
            report.head.notes = vec!["a remark of many words ".repeat(20)];
            report.results[0].limit.because = "a reason of many words ".repeat(20);
            for width in [80, 100] {
                let text = text(&report, false, Some(width));
                let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
                assert!(widest <= width, "{widest} columns:\n{text}");
            }
            // A program that reads the text finds each sentence on one line.
            let unbroken = text(&report, false, None);
            assert!(unbroken.contains(report.head.notes[0].trim_end()), "{unbroken}");
        }
    }

    #[test]
    fn the_table_has_rates_times_shares_and_ratios() {
        let text = text(&report(4, false), false, None);
        for part in [
            "1GiB",
            "1.23M",
            "25/25/25/25",
            "0.123",
            "0.99 (0.95 to 1.02), undecided",
            "1.11 (1.08 to 1.15)",
            "0.95 (0.94 to 0.96)",
            "rate ×",
            "CPU ×",
            "limit at 1GiB: memory: because",
            "note: something",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn the_heading_says_what_protected_the_run() {
        let mut report = report(4, false);
        assert!(!text(&report, false, None).contains("proof"), "the other side was never reached");
        let payload = PayloadProtection::Crc32c;
        let proof = ProvenBy::Certificate;
        let (payload_sent, payload_received) = (payload, payload);
        report.protection = Some(Protection { proof, payload_sent, payload_received });
        let on_rails = text(&report, false, None);
        assert!(on_rails.contains("\nproof: certificate; payload: crc32c\n\n"), "{on_rails}");
        let (taken, why) = ("shared memory".to_owned(), String::new());
        report.results[0].path = Some(PathTaken { taken, why, considered: Vec::new() });
        let shared = text(&report, false, None);
        assert!(shared.contains("\nproof: certificate\n\n"), "{shared}");
    }

    #[test]
    fn a_change_helps_if_its_interval_excludes_one_and_otherwise_nothing_is_claimed() {
        let tried = |change: &str, median: f64, interval: Option<[f64; 2]>| Tried {
            change: change.into(),
            gb_per_s: 1.0,
            ratio: Spread { median, min: 0.1, max: 9.0 },
            interval: interval.map(|[low, high]| RatioInterval { low, high }),
            helps: interval.is_some_and(|[low, _]| low > 1.0),
        };
        let told = |all: &[Tried]| {
            let mut report = report(1, false);
            report.results[0].tried = all.to_vec();
            why(&report.results[0]).unwrap()
        };
        let slower = tried("depth=64", 0.9, None);
        let open = tried("channels=4", 1.3, Some([0.9, 1.5]));
        let text = told(&[open.clone(), slower.clone()]);
        assert_eq!(
            text,
            "why at 1GiB: none of 2 changes is shown to make it faster; what looked best came to, when measured again, \
             channels=4 1.30 × (0.90 to 1.50)"
        );
        let text = told(&[slower]);
        assert_eq!(text, "why at 1GiB: none of 1 change is shown to make it faster");
        let faster = tried("channels=0", 4.0, Some([4.0, 4.01]));
        let text = told(&[faster, open.clone()]);
        assert_eq!(text, "why at 1GiB: channels=0 makes it 4.00 × (4.00 to 4.01)");
        let text = told(&[tried("payload=none", 1.27, Some([1.25, 1.3])), open]);
        assert!(
            text.contains("1.27 × (1.25 to 1.30), which shows what protection costs"),
            "{text}"
        );
        assert!(text.ends_with("and is no advice to go without"), "{text}");
    }

    #[test]
    fn one_round_has_no_spread_and_decides_nothing() {
        let mut report = report(4, false);
        report.results.truncate(1);
        report.results[0].against.as_mut().unwrap().samples.truncate(1);
        let text = text(&report, false, None);
        let row = text.lines().find(|line| line.starts_with("1GiB ")).unwrap();
        assert_eq!(row.split_whitespace().nth(3), Some("–"), "{text}");
        assert!(text.contains("0.99, one round") && !text.contains("undecided"), "{text}");
        report.results[0].samples = vec![sample(), sample()];
        let text = super::text(&report, false, None);
        let row = text.lines().find(|line| line.starts_with("1GiB ")).unwrap();
        assert_eq!(row.split_whitespace().nth(3), Some("40.5"), "{text}");
    }

    #[test]
    fn a_ping_pong_shows_times_and_no_rates() {
        let text = text(&report(1, true), false, None);
        assert!(text.contains("time ×"), "{text}");
        assert!(text.contains("p99.9") && !text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn threads_are_said_to_be_where_they_are_and_listed_when_asked() {
        let thread = |name: &str, actual: &str, is_peer| PlacedThread {
            name: name.into(),
            is_peer,
            expected: "1-12,105-116".into(),
            actual: actual.into(),
            last_cpu: Some(3),
            migrations: 2,
        };
        let mut report = report(4, false);
        let why =
            "node 0: here sending 1-12,105-116, receiving 13-25,117-129; there 27-38 and 39-51";
        report.placement = Some(Placement {
            by: PlacedBy::Topology,
            why: why.into(),
            threads: vec![thread("pr-tx0", "1-12,105-116", false), thread("pr-rx0", "1", true)],
        });
        let brief = text(&report, false, Some(100));
        assert!(brief.contains("threads: by the topology, node 0: here sending"), "{brief}");
        assert!(brief.contains("seen to move 4 times\nthreads: 1 of 2 did not run"), "{brief}");
        assert!(brief.lines().all(|line| line.chars().count() <= 100) && !brief.contains("pr-tx0"));
        let origin = "set".to_owned();
        let verbose = Setting { value: true.into(), origin };
        report.config.insert("verbose_bindings".into(), verbose);
        let verbose = text(&report, false, None);
        assert!(verbose.contains("pr-tx0  here   1-12,105-116  1-12,105-116  CPU 3"), "{verbose}");
        assert!(verbose.contains("pr-rx0  there  1-12,105-116  1             CPU 3"), "{verbose}");
    }
}
