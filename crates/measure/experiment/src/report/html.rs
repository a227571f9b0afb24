//! The report as one self-contained HTML file without a script.

use std::fmt::Write as _;

use polyrail_config::markup;

use super::Report;
use super::text::{median_of, notes, show_figure, summary};
use crate::effect::{Effect, Verdict, show};

/// Of the drawing of intervals, in its own units.
const WIDTH: f64 = 760.0;
const LABELS: f64 = 260.0;
const ROW: f64 = 26.0;

pub(super) fn html(report: &Report, style: &str) -> String {
    let name = markup(&report.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         img-src data:\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" \
         href=\"data:,\">\n<title>{name}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n\
         <h1>{name}</h1>\n<p>{}</p>\n<p class=\"soft\">{}.</p>\n",
        markup(&report.about),
        markup(&summary(report)),
    );
    page.push_str("<h2>Effects</h2>\n");
    page.push_str(&drawing(&report.effects));
    page.push_str("<div class=\"scroll\"><table>\n<tr><th>level</th><th>against</th><th>effect</th><th>verdict</th></tr>\n");
    for effect in &report.effects {
        let shown = show(effect);
        let verdict =
            effect.words.strip_prefix(&shown).unwrap_or(&effect.words).trim_start_matches(", ");
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>",
            markup(&level(effect)),
            markup(&effect.baseline),
            markup(&shown),
            class(effect.verdict),
            markup(verdict),
        );
    }
    page.push_str("</table></div>\n<h2>Cells</h2>\n<div class=\"scroll\"><table>\n");
    let median = markup(&median_of(report));
    let _ = writeln!(page, "<tr><th>cell</th><th>{median}</th><th>least</th><th>most</th></tr>");
    for cell in &report.cells {
        let figures = cell.figure.map(|one| [one.median, one.min, one.max].map(show_figure));
        let [median, min, max] = figures.unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{median}</td><td>{min}</td><td>{max}</td></tr>",
            markup(&cell.label)
        );
    }
    page.push_str("</table></div>\n<h2>Notes</h2>\n<ul>\n");
    for note in notes(report) {
        let _ = writeln!(page, "<li>{}</li>", markup(&note));
    }
    let host = &report.host;
    let machine = format!(
        "{}, Linux {}, {} CPUs ({}); polyrail {}; seed {}",
        host.hostname,
        host.kernel,
        host.cpus,
        host.cpu_model.as_deref().unwrap_or("unknown CPU"),
        report.version,
        report.seed
    );
    let _ = writeln!(page, "<li>{}</li>\n</ul>\n</main>\n</body>\n</html>", markup(&machine));
    page
}

/// Each effect with its interval as a line, around zero.
fn drawing(effects: &[Effect]) -> String {
    let ends =
        || effects.iter().flat_map(|effect| [effect.low_percent, effect.high_percent]).flatten();
    let most = ends().map(f64::abs).fold(1.0, f64::max);
    let middle = LABELS + (WIDTH - LABELS) / 2.0;
    let at = |percent: f64| middle + percent / most * ((WIDTH - LABELS) / 2.0 - 16.0);
    let height = ROW * (effects.len() + 1) as f64;
    let mut svg = format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Effects with their intervals\">\n\
         <line class=\"grid\" x1=\"{middle}\" y1=\"0\" x2=\"{middle}\" y2=\"{height}\"/>\n"
    );
    for (row, effect) in effects.iter().enumerate() {
        let y = ROW * (row as f64 + 0.75);
        let _ = writeln!(
            svg,
            "<text class=\"strong\" x=\"12\" y=\"{:.1}\">{}</text>",
            y + 4.0,
            markup(&level(effect))
        );
        if let (Some(low), Some(high), Some(percent)) =
            (effect.low_percent, effect.high_percent, effect.percent)
        {
            let colour = match effect.verdict {
                Verdict::Better => "var(--good)",
                Verdict::Worse => "var(--bad)",
                Verdict::NoEffect => "var(--soft)",
                Verdict::Undecided => "var(--unclear)",
            };
            let _ = writeln!(
                svg,
                "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" style=\"stroke:{colour};stroke-width:4\"/>\
                 <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\" style=\"fill:{colour}\"/>",
                at(low),
                at(high),
                at(percent),
            );
        }
    }
    let y = height - 6.0;
    let _ = writeln!(
        svg,
        "<text x=\"{LABELS}\" y=\"{y}\">−{most:.1} %</text><text x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">+{most:.1} %</text>\n</svg></figure>"
    );
    svg
}

fn level(effect: &Effect) -> String {
    format!("{}={}", effect.factor, effect.level)
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "good",
        Verdict::Worse => "bad",
        Verdict::NoEffect => "",
        Verdict::Undecided => "unclear",
    }
}
