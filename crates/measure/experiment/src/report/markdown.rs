//! The report as a page of Markdown.

use std::fmt::Write as _;

use polyrail_config::{markdown_line, steers};

use super::Report;
use super::text::{median_of, notes, show_figure, summary};
use crate::spec::Measure;

pub(super) fn markdown(report: &Report) -> String {
    let mut page = format!("# {}\n\n", markdown_line(&report.name));
    if !report.about.is_empty() {
        let _ = writeln!(page, "{}\n", markdown_line(&report.about));
    }
    let _ = writeln!(page, "{}.\n", markdown_line(&summary(report)));
    page.push_str("| level | against | effect |\n|---|---|---|\n");
    for effect in &report.effects {
        let level = format!("{}={}", effect.factor, effect.level);
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            markdown_line(&level),
            markdown_line(&effect.baseline),
            markdown_line(&effect.words)
        );
    }
    let median = markdown_line(&median_of(report));
    let _ = writeln!(page, "\n| cell | {median} | least | most |\n|---|--:|--:|--:|");
    for cell in &report.cells {
        let figures = cell.figure.map(|one| [one.median, one.min, one.max].map(show_figure));
        let [median, min, max] = figures.unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        let _ = writeln!(page, "| {} | {median} | {min} | {max} |", markdown_line(&cell.label));
    }
    page.push('\n');
    for note in notes(report) {
        let _ = writeln!(page, "- {}", markdown_line(&note));
    }
    let what = match &report.measure {
        Measure::Bench(_) => "polyrail bench",
        Measure::Command(_) => "",
    };
    let command = format!("{what} {}", report.measure.shown_words().join(" "));
    let _ = writeln!(
        page,
        "- measured by `{}`, figure `{}`",
        code(command.trim()),
        code(report.figure.text())
    );
    let host = &report.host;
    let cpu = host.cpu_model.as_deref().unwrap_or("unknown CPU");
    let _ = writeln!(
        page,
        "- machine: {}, Linux {}, {} CPUs ({}); polyrail {}; seed {}",
        markdown_line(&host.hostname),
        markdown_line(&host.kernel),
        host.cpus,
        markdown_line(cpu),
        markdown_line(&report.version),
        report.seed,
    );
    page
}

/// Sanitizes text for a code span, which has no escapes.
fn code(text: &str) -> String {
    text.replace(|one| one == '`' || steers(one), "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_ends_no_cell_and_no_span() {
        assert_eq!(code("a`b\u{202e}"), "a'b'");
    }
}
