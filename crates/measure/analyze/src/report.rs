//! The report: one self-contained HTML file.

use polyrail_report::{json_in_markup, markup};

use crate::analysis::Analysis;

/// The report of an analysis. It holds its data, style and script, asks nothing of any network, and
/// follows the reader's choice of light or dark.
pub fn html(analysis: &Analysis) -> String {
    // Numbers and text of an analysis always have a JSON form.
    let json = serde_json::to_string(analysis).unwrap_or_default();
    page(&format!("Profile of {}", analysis.about.hostname), &json, PAGE)
}

/// A self-contained page that shows `json` by `script`, in the look of all reports.
///
/// The script finds the data as text of the element `data`, draws into the element `report`, and may call the
/// drawing functions of `report/charts.js`. It must be the caller's own text; title and data may be anybody's.
pub fn page(title: &str, json: &str, script: &str) -> String {
    let json = json_in_markup(json);
    let title = markup(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <main id=\"report\"><noscript>The charts need JavaScript, which is in this \
         file.</noscript></main>\n<div id=\"hover\" hidden></div>\n\
         <script type=\"application/json\" id=\"data\">{json}</script>\n\
         <script>\n{CHARTS}{script}</script>\n</body>\n</html>\n"
    )
}

/// The style of reports: colours for light and dark, tables, drawings.
pub const STYLE: &str = include_str!("report/style.css");
const CHARTS: &str = include_str!("report/charts.js");
const PAGE: &str = include_str!("report/page.js");
