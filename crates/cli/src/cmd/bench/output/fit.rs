//! Text of the `--fit` answer for people.

use polyrail_report::{
    Align, BenchReport, Fit, Spread, Table, sentences, show_gb_per_s, show_size,
};

use crate::cmd::bench::judge::{show_cpus, show_gbit};

/// Formats the answer, its table, and the notes.
pub(crate) fn fit_text(report: &BenchReport, fit: &Fit, width: Option<usize>) -> String {
    let gb_per_s = show_gb_per_s(fit.asked_gbit_per_s / 8.0);
    let question = format!(
        "does {} ({:.0} Gbit/s, {gb_per_s} GB/s) fit? {}: {}",
        fit.asked,
        fit.asked_gbit_per_s,
        fit.answer.name(),
        fit.because
    );
    let mut text =
        sentences(&question, width) + "\n\n" + &table(fit, &gb_per_s).fitted(width) + "\n";
    let mut sentences_below = Vec::new();
    // The lowest rate of each machine decides.
    let mut memory: Vec<(&str, f64)> = Vec::new();
    for end in &fit.ends {
        let whose = if is_one_host(report) { "both ends together" } else { &*end.host };
        let Some(rate) = end.memory_gbit_per_s else { continue };
        match memory.iter_mut().find(|(known, _)| *known == whose) {
            Some((_, least)) => *least = least.min(rate),
            None => memory.push((whose, rate)),
        }
    }
    for (whose, rate) in memory {
        sentences_below.push(format!("memory: copies by {whose} reach {}", show_gbit(rate)));
    }
    if let Some(pays) = fit.pays_from_bytes {
        let size = show_size(pays);
        sentences_below.push(format!(
            "pays from {size}: below, CPU time per byte is more than 1.25 times that of large transfers"
        ));
    }
    sentences_below.extend(report.head.notes.iter().map(|note| format!("note: {note}")));
    for sentence in sentences_below {
        text += &(sentences(&sentence, width) + "\n");
    }
    text
}

fn table(fit: &Fit, gb_per_s: &str) -> Table {
    let mut table = Table::default()
        .column("", Align::Left)
        .column("CPU s/GB", Align::Left)
        .column(format!("CPUs for {gb_per_s} GB/s"), Align::Left)
        .column("CPUs here", Align::Right)
        .column("most that fits", Align::Right);
    let hosts = fit.ends.iter().any(|end| end.host != fit.ends[0].host);
    for end in &fit.ends {
        let size = show_size(end.size_bytes);
        let who = if hosts { format!("{} {}", end.host, end.way) } else { end.way.clone() };
        table.row([
            format!("{who}, {size}"),
            range(end.cpu_seconds_per_gb, show_gb_per_s),
            range(end.cpus_needed, show_cpus),
            end.cpus_allowed.to_string(),
            show_gbit(end.most_gbit_per_s),
        ]);
    }
    table
}

fn range(spread: Spread, show: fn(f64) -> String) -> String {
    let [middle, low, high] = [spread.median, spread.min, spread.max].map(show);
    format!("{middle} ({low} to {high})")
}

fn is_one_host(report: &BenchReport) -> bool {
    report.peer.as_ref().is_some_and(|peer| peer.same_host)
}
