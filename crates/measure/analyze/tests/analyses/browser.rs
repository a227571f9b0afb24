//! The report in a real browser.

use std::fs;
use std::path::Path;

use crate::common::{analyse, machine};
use polyrail_analyze::{Analysis, Comparison, Judgement, html, read_predictions};
use polyrail_browser::{Browser, MISSING};
use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;
use polyrail_skip::skip;
use serde_json::json;

/// Commands to run these tests.
const RUN: &str =
    "apt-get install chromium && cargo test -p polyrail-analyze --test analyses browser";

/// Analyses a profile with everything that a report can show, and with names that try to be markup.
fn full_analysis(root: &Path) -> Analysis {
    let machine = Machine::default();
    let (_base_root, _, base) = analyse(&Machine { seed: 9, slowness: 0.95, ..machine.clone() });
    let (_root, _, mut analysis) = analyse(&machine);
    let comparison = Comparison::of(&analysis, &base).unwrap();
    analysis.comparison = Some(Comparison { base: "run0".into(), ..comparison });
    let mut text = String::from("src,dst,size_bytes,predicted_time_ns,path,simulator\n");
    for one in &analysis.configurations {
        let time_ns = 3_000.0 + one.size_bytes as f64 / 370.0;
        text += &format!(
            "{},{},{},{time_ns},{},two-parameter\n",
            one.src, one.dst, one.size_bytes, one.path
        );
    }
    let file = root.join("predictions.csv");
    fs::write(&file, text).unwrap();
    let predictions = read_predictions(&file).unwrap();
    analysis.predictions =
        Some(Judgement::of(&analysis, Path::new("predictions.csv"), &predictions).unwrap());
    analysis.about.dir = "run1".into();
    analysis.about.kernel = Some("6.12.9".into());
    analysis
}

#[test]
fn every_chart_is_drawn_without_complaint_and_nothing_is_asked_of_a_network() {
    let Some(mut browser) = Browser::start() else { return skip(MISSING, RUN) };
    let root = tempfile::tempdir().unwrap();
    let report = root.path().join("report.html");
    fs::write(&report, html(&full_analysis(root.path()))).unwrap();
    browser.size(1_180, 1_000);
    browser.open(&report);

    // 2 curves, 2 variations, change, 2 of predictions, drift, 2 of devices, clocks; pairs and regimes for each path.
    assert_eq!(browser.value("document.querySelectorAll('svg').length"), 15);
    assert_eq!(browser.value("document.documentElement.dataset.drawn"), "15");
    let empty = "[...document.querySelectorAll('svg')].filter(svg => \
                 !svg.querySelector('path.curve, circle[cx], rect.cell')).length";
    assert_eq!(browser.value(empty), 0, "every chart shows data");
    let broken = "/NaN|undefined|Infinity/.test(document.getElementById('report').outerHTML)";
    assert_eq!(browser.value(broken), false);
    let lines =
        browser.value("document.querySelector('svg').querySelectorAll('path.curve').length");
    assert_eq!(lines, 2 * 12, "one line per pair and path");
    let wide = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.value(wide), true, "nothing sticks out");
    verdict_and_words(&mut browser);

    let marks = |values: &str| {
        format!("axis({values}, {{ zero: true, least: -100, fenced: true }}, 0, 100).marks.join()")
    };
    // One outlier does not flatten the others, and no change is below -100 %.
    assert_eq!(browser.value(&marks("[-2, -1, 0, 1, 2, 900]")), "-2,-1,0,1,2");
    assert_eq!(browser.value(&marks("[-90, 0, 100, 200, 300, 900]")), "0,200,400,600,800,1000");
    // Adjacent numbers have marks, and a finite number of them.
    let count = |values: &str| format!("axis({values}, {{}}, 0, 100).marks.length");
    for values in ["[1e17, 1e17 + 16]", "[-1e100, -1e100]", "[5, 5 + 1e-15]", "[0, 1e-100]"] {
        let marks = browser.value(&count(values)).as_u64();
        assert!(marks.is_some_and(|marks| (2..20).contains(&marks)), "{values}: {marks:?}");
    }
    if let Some(path) = std::env::var_os("ANALYZE_SCREENSHOT") {
        fs::write(path, browser.screenshot(1_500)).unwrap();
    }
    hover_and_choices(&mut browser);
    dark(&mut browser);

    let (complaints, requests) = browser.complaints_and_requests();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let foreign: Vec<_> = requests
        .iter()
        .filter(|url| **url != format!("file://{}", report.display()) && *url != "data:,")
        .collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    assert!(!requests.is_empty(), "requests were watched");
}

/// Checks that the verdict comes first, and that words are explained where they are used.
fn verdict_and_words(browser: &mut Browser) {
    let banner = browser.value("document.querySelector('.banner').textContent");
    assert!(banner.as_str().unwrap().contains("nccl: "), "{banner}");
    // A long table is inside a fold.
    let before = "(() => { const table = [...document.querySelectorAll('table')].find(table => \
                  [...table.querySelectorAll('th')].some(head => head.textContent === 'L')); \
                  return (table.closest('details') ?? table.parentNode).previousElementSibling.textContent; })()";
    let explained = browser.value(before);
    assert!(explained.as_str().unwrap().contains("L: time of an empty transfer"), "{explained}");
    let below = "document.querySelector('[data-term=\"two states\"]').textContent";
    let explained = browser.value(below);
    assert!(explained.as_str().unwrap().starts_with("two states: "), "{explained}");
    let cut = "[...document.querySelectorAll('table.words')].filter(table => \
               table.scrollWidth > table.parentNode.clientWidth).length";
    assert_eq!(browser.value(cut), 0, "definitions wrap");
    let figures = "[...document.querySelectorAll('figure')].map(one => \
                   [one.querySelector('figcaption')?.textContent, \
                   [...one.querySelectorAll('rect.cell')].map(cell => cell.getAttribute('style'))]) \
                   .find(([caption]) => caption?.includes('shades from '))";
    let heat_map = browser.value(figures);
    let cells = heat_map[1].as_array().unwrap();
    let share = |cell: &serde_json::Value| -> u32 {
        let style = cell.as_str().unwrap();
        let digits = style.split("--heat-high) ").nth(1).unwrap().split('%').next().unwrap();
        digits.parse().unwrap()
    };
    // The lowest value is the palest, and the highest the darkest, so extremes stand out.
    let shares: Vec<u32> = cells.iter().map(share).collect();
    assert_eq!((shares.iter().max(), shares.iter().min()), (Some(&100), Some(&10)), "{shares:?}");
    let even = "shadesOf([1, 1.04], digits)";
    assert_eq!(browser.value(&format!("{even}.share(1) === {even}.share(1.04)")), true);
    assert_eq!(browser.value(&format!("{even}.words")), "all within 5 %: 1.00 to 1.04");
}

fn hover_and_choices(browser: &mut Browser) {
    let place = browser.value(
        "(() => { const svg = document.querySelector('svg'); svg.scrollIntoView(); \
         const box = svg.getBoundingClientRect(); \
         const path = svg.querySelector('path.curve'); const at = path.getPointAtLength(0); \
         return [box.left + at.x, box.top + at.y]; })()",
    );
    let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
    let hover = browser.value("document.getElementById('hover').textContent");
    let hover = hover.as_str().unwrap();
    assert!(hover.contains("→") && hover.contains("1 B: "), "{hover}");
    assert!(hover.contains("95 % interval") && hover.contains("CV "), "{hover}");
    assert_eq!(browser.value("document.querySelectorAll('.lit').length"), 1);

    let chosen = browser.value(
        "(() => { const select = document.querySelector('select'); select.value = 'nccl'; \
         select.dispatchEvent(new Event('change')); \
         return document.querySelector('svg').querySelectorAll('path.curve').length; })()",
    );
    assert_eq!(chosen, 12, "the lines of one path");
}

fn dark(browser: &mut Browser) {
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(paper);
    let features = json!([{"name": "prefers-color-scheme", "value": "dark"}]);
    browser.call("Emulation.setEmulatedMedia", json!({"features": features}));
    let dark = browser.value(paper);
    assert_eq!((light, dark), ("rgb(255, 255, 255)".into(), "rgb(20, 23, 27)".into()));
}

#[test]
fn nothing_is_cut_or_small_at_any_width_in_light_and_dark() {
    let Some(mut browser) = Browser::start() else { return skip(MISSING, RUN) };
    let root = tempfile::tempdir().unwrap();
    let report = root.path().join("report.html");
    let mut analysis = full_analysis(root.path());
    fs::write(&report, html(&analysis)).unwrap();
    browser.open(&report);
    assert_eq!(browser.faults(), [""; 0]);
    // In a narrow window, a table has its heading in front of each value.
    let card = "(() => { const cell = document.querySelector('td'); \
                return [getComputedStyle(cell.parentNode).display, cell.dataset.label]; })()";
    assert_eq!(browser.value(card), json!(["grid", "path"]));
    let head = html(&analysis);
    let head = head.split("<div id=\"report\">").next().unwrap();
    assert!(
        head.contains("class=\"banner ") && head.contains("<dt>kernel</dt>"),
        "without a script: {head}"
    );
    analysis.links.truncate(2);
    let few = root.path().join("few.html");
    fs::write(&few, html(&analysis)).unwrap();
    let mut browser = Browser::start().unwrap();
    browser.open(&few);
    let curves = "[document.querySelectorAll('svg')[0].querySelectorAll('.label').length, \
                  document.querySelectorAll('svg')[0].querySelectorAll('.band').length]";
    assert_eq!(browser.value(curves), json!([2, 2]), "a label and a band of each line");
}

#[test]
fn axes_have_units_of_their_length() {
    let Some(mut browser) = Browser::start() else { return skip(MISSING, RUN) };
    let root = tempfile::tempdir().unwrap();
    let report = root.path().join("report.html");
    fs::write(&report, html(&full_analysis(root.path()))).unwrap();
    browser.open(&report);
    let mut of = |expression: &str| browser.value(expression).as_str().unwrap().to_owned();
    assert_eq!(of("timeAxis(1.2).label"), "seconds since the start");
    assert_eq!(of("timeAxis(600).label"), "minutes since the start");
    assert_eq!(of("timeAxis(20000).label"), "hours since the start");
    assert_eq!(
        of("[1e-5, 1e-3, 1, 100].map(one => brief(showRate(one))).join()"),
        "10 kB/s,1 MB/s,1 GB/s,100 GB/s"
    );
    assert_eq!(of("[0.00004, 123456, 0].map(digits).join(' ')"), "0.00004 123,456 0");
    assert_eq!(of("apart([50, 50, 50, 200], 10, 200).join()"), "50,63,76,200");
}

#[test]
fn text_of_a_profile_never_becomes_markup() {
    let Some(mut browser) = Browser::start() else { return skip(MISSING, RUN) };
    let root = tempfile::tempdir().unwrap();
    let (_root, _, mut analysis) = analyse(&Machine { endpoints: 2, ..Machine::default() });
    let evil = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>";
    analysis.about.hostname = evil.into();
    analysis.about.dir = evil.into();
    analysis.warnings.push(evil.into());
    analysis.endpoints[0].name = evil.into();
    let report = root.path().join("report.html");
    fs::write(&report, html(&analysis)).unwrap();
    browser.open(&report);
    assert_eq!(browser.value("typeof window.evil"), "undefined");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    let title = browser.value("document.querySelector('h1').textContent");
    assert_eq!(title, format!("Profile of {evil}"));
}

#[test]
fn a_profile_with_next_to_nothing_has_a_report_too() {
    let Some(mut browser) = Browser::start() else { return skip(MISSING, RUN) };
    let root = tempfile::tempdir().unwrap();
    let tcp = machine(PathKind::Tcp);
    let machine = Machine { endpoints: 2, has_gpus: false, repetitions: 1, ..tcp };
    let (_root, _, analysis) = analyse(&machine);
    assert!(analysis.thermals.is_empty() && analysis.clocks.clocks.is_empty());
    let report = root.path().join("report.html");
    fs::write(&report, html(&analysis)).unwrap();
    browser.open(&report);
    let drawn = browser.value("Number(document.documentElement.dataset.drawn)");
    assert!(drawn.as_u64().unwrap() >= 6, "{drawn}");
    let (complaints, _) = browser.complaints_and_requests();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn links_of_two_sizes_have_their_line_in_place_of_empty_tables() {
    if Browser::start().is_none() {
        return skip(MISSING, RUN);
    }
    let root = tempfile::tempdir().unwrap();
    let (_root, _, mut analysis) = analyse(&Machine { endpoints: 2, ..machine(PathKind::Nccl) });
    let report = root.path().join("report.html");
    let regimes = "(() => { const all = [...document.querySelectorAll('#report > *')]; \
                   const first = all.findIndex(one => one.textContent === 'Regimes'); \
                   const next = all.findIndex((one, place) => place > first && one.tagName === 'H2'); \
                   const part = all.slice(first, next); \
                   const many = what => part.reduce((sum, one) => \
                   sum + one.querySelectorAll(what).length, 0); \
                   return [part.map(one => one.textContent).join(' '), many('table'), \
                   many('tr'), many('svg')]; })()";
    let shown = |analysis: &Analysis| {
        fs::write(&report, html(analysis)).unwrap();
        // Each report gets a new browser.
        let mut browser = Browser::start().unwrap();
        browser.open(&report);
        let shown = browser.value(regimes);
        (shown[0].as_str().unwrap().to_owned(), [1, 2, 3].map(|at| shown[at].as_u64().unwrap()))
    };
    let (text, counts) = shown(&analysis);
    assert!(text.contains("latency-bound") && counts[2] == 1, "{counts:?} {text}");
    for link in &mut analysis.links {
        (link.model, link.loggp) = (None, Vec::new());
        link.alpha_beta.as_mut().unwrap().refused = None;
    }
    let (text, counts) = shown(&analysis);
    assert!(text.contains("fewer than 3 sizes") && text.contains("gpu0 → gpu1"), "{text}");
    assert!(!text.contains("latency-bound"), "no legend without links: {text}");
    assert_eq!(counts, [1, 3, 0], "a head and a row of each link: {text}");
    for link in &mut analysis.links {
        link.alpha_beta = None;
    }
    let (text, counts) = shown(&analysis);
    assert!(text.contains("no LogGP parameters: 2."), "{text}");
    assert_eq!(counts, [0, 0, 0], "{text}");
}
