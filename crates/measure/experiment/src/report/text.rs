//! The report for a terminal.

use polyrail_report::{Align, Table, counted, sentences};

use super::Report;
use crate::effect::show;
use crate::figure::unit_of;
use crate::plan::Design;

pub(super) fn text(report: &Report, columns: Option<usize>) -> String {
    let mut text = format!("{}\n\n", sentences(&summary(report), columns));
    text.push_str(&effects(report).fitted(columns));
    text.push('\n');
    text.push_str(&cells(report).fitted(columns));
    for note in notes(report) {
        text.push_str(&format!("\n{}", sentences(&format!("note: {note}"), columns)));
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Returns one sentence on the run.
pub(super) fn summary(report: &Report) -> String {
    format!(
        "{}: {} of {} in {:.0} s; it ended because {}",
        report.name,
        counted(report.blocks as u64, "block"),
        counted(report.cells.len() as u64, "cell"),
        report.measured_s,
        report.stopped.words(report.precision_percent),
    )
}

/// Returns the notes for the reader.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let left_out = report.left_out.iter().map(|cell| format!("left out: {cell}"));
    let mut notes: Vec<String> = left_out.chain(report.notes.iter().cloned()).collect();
    if report.design == Design::Grid && report.effects.len() > 1 {
        notes.push(
            "the effect of a level is its mean over all levels of the other factors".to_owned(),
        );
    }
    if report.effects.iter().any(|effect| effect.low_percent.is_some()) {
        notes.push(format!(
            "in {:.0} of 100 such experiments, all true effects are within their intervals (each by itself in {:.2} \
             of 100)",
            report.confidence_percent, report.each_confidence_percent
        ));
    }
    notes
}

fn effects(report: &Report) -> Table {
    let mut table = Table::default()
        .column("level", Align::Left)
        .column("against", Align::Left)
        .column("effect", Align::Right)
        .column("verdict", Align::Left);
    for effect in &report.effects {
        let shown = show(effect);
        let verdict = effect.words.strip_prefix(&shown).unwrap_or(&effect.words);
        table.row([
            format!("{}={}", effect.factor, effect.level),
            effect.baseline.clone(),
            shown.clone(),
            verdict.trim_start_matches(", ").to_owned(),
        ]);
    }
    table
}

fn cells(report: &Report) -> Table {
    let mut table = Table::default()
        .column("cell", Align::Left)
        .column(median_of(report), Align::Right)
        .column("least", Align::Right)
        .column("most", Align::Right);
    for cell in &report.cells {
        let figures = cell.figure.map(|one| [one.median, one.min, one.max].map(show_figure));
        let [median, min, max] = figures.unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        table.row([cell.label.clone(), median, min, max]);
    }
    table
}

/// Returns the heading of the medians, with their unit if known.
pub(super) fn median_of(report: &Report) -> String {
    match unit_of(report.figure.text()) {
        Some(unit) => format!("median {unit}"),
        None => "median".to_owned(),
    }
}

/// Formats with four significant digits.
pub(super) fn show_figure(figure: f64) -> String {
    let before = figure.abs().log10().floor() as i32;
    let decimals = (3 - before).clamp(0, 9) as usize;
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::show_figure;

    #[test]
    fn figures_have_four_digits_that_count() {
        let shown = [3.456, 0.0123456, 123_456.7, 99.999].map(show_figure);
        assert_eq!(shown, ["3.456", "0.01235", "123457", "100.00"]);
    }
}
