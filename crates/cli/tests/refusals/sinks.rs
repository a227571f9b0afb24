//! Sends one malicious name through every place that shows text from outside.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use polyrail::{Config, Engine, Explain};
use polyrail_analyze::PageHead;
use polyrail_config::MetricsListen;
use polyrail_metrics::families::engine as families;
use polyrail_metrics::{Exporter, Samples, Source, serve};
use polyrail_report::{Align, Table, cell, csv_line};

/// Begins as a formula, forges a line, clears the screen in two ways, reverses the writing direction, and ends a C
/// string, a cell, a string, an attribute and a script.
const NAME: &str = "=1+1\n9 forged eth0: cut\r\u{1b}[2J\u{9b}2J\u{202e}\u{2066}\u{2028}\0\t|\"'<script>alert(1)</script>";

/// Returns whether a character moves what a terminal or a browser shows. Independent of the tested function.
fn steers(one: char) -> bool {
    one.is_control() && one != '\n'
        || "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{2028}\u{2029}"
            .contains(one)
}

/// Checks the text of a sink, which has `lines` lines without forged ones.
fn check(sink: &str, text: &str, lines: usize) {
    assert!(!text.contains(steers), "{sink}: {text:?}");
    assert_eq!(text.lines().count(), lines, "{sink}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("9 forged")), "{sink}: {text:?}");
}

/// The log of this process.
static WRITTEN: Mutex<String> = Mutex::new(String::new());

/// An engine with this name, whose peer, rail and thread have it, too.
struct Vicious;

impl Source for Vicious {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.count(&families::REGIONS, &[], 1);
        samples.count(&families::QUOTA_REFUSALS, &[NAME], 1);
        samples.number(&families::PROXY_CPU, &[NAME], 1.0);
    }
}

fn get(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The page of an exporter with this folder.
fn exported(folder: &Path) -> String {
    let exporter = Exporter::start("127.0.0.1:0".parse().unwrap(), Some(folder), "test").unwrap();
    get(TcpStream::connect(exporter.address()).unwrap())
}

#[test]
fn a_table_and_a_spreadsheet_have_one_row_of_it() {
    let mut table = Table::default().column("name", Align::Left).column("GB/s", Align::Right);
    table.row([NAME.to_owned(), "1".to_owned()]);
    check("table", &table.to_string(), 2);
    let csv = csv_line([cell(NAME).as_ref(), "1"]);
    check("spreadsheet", &csv, 1);
    assert!(csv.starts_with("\"'=1+1"), "{csv}");
}

#[test]
fn a_page_has_no_script_of_it() {
    let json = serde_json::to_string(NAME).unwrap();
    let mut head = PageHead { title: NAME.to_owned(), ..PageHead::default() };
    head.verdict.text = NAME.to_owned();
    head.verdict.more = vec![NAME.to_owned()];
    head.tiles.push((NAME.to_owned(), NAME.to_owned()));
    head.fact(NAME, Some(NAME));
    let page = polyrail_analyze::page(&head, &json, "");
    let own = polyrail_analyze::page(&PageHead::default(), "", "");
    assert!(!page.contains("<script>alert"), "{page}");
    assert_eq!(page.matches("<script").count(), own.matches("<script").count());
    assert_eq!(page.matches("</script").count(), own.matches("</script").count());
    let begin = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let data = page[begin..].split("</script>").next().unwrap();
    assert_eq!(serde_json::from_str::<String>(data).unwrap(), NAME, "a program reads it whole");
    let title = page.split("<title>").nth(1).unwrap().split("</title>").next().unwrap();
    check("title", title, 1);
}

#[test]
fn metrics_have_it_in_labels_and_in_no_line_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let place = MetricsListen::Folder(folder.path().display().to_string());
    let served = serve(&place, "host", Arc::new(Vicious)).unwrap();
    let socket = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let own = get(std::os::unix::net::UnixStream::connect(&socket).unwrap());
    check("exposition", &own, own.lines().count());
    assert!(own.contains("engine=\"=1+1\\\\u000a9 forged"), "{own}");
    let page = exported(folder.path());
    check("exporter", &page, page.lines().count());
    assert!(page.contains("\"=1+1\\\\u000a9 forged"), "the engine is served: {page}");
    drop(served);
}

#[test]
fn a_process_that_writes_it_raw_is_left_out_and_its_socket_is_named_harmlessly() {
    let folder = tempfile::tempdir().unwrap();
    let name = NAME.replace(['\0', '/'], "");
    let listener = UnixListener::bind(folder.path().join(format!("{name:.40}.sock"))).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let label = NAME.replace('\n', "\\n").replace('"', "\\\"");
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\n\r\n# TYPE polyrail_regions gauge\n\
                 polyrail_regions{{engine=\"{label}\"}} 1\n# EOF\n"
            );
        }
    });
    let settings = polyrail_log::Settings::of(&Config::default());
    polyrail_log::start_to(&settings, |line| WRITTEN.lock().unwrap().push_str(line)).unwrap();
    let page = exported(folder.path());
    check("exporter", &page, page.lines().count());
    let written = WRITTEN.lock().unwrap().clone();
    check("log", &written, written.lines().count());
    assert!(written.contains("no metrics") && written.contains("u000a9 forged"), "{written:?}");
    assert!(!page.contains("polyrail_regions{"), "{page}");
    assert!(page.contains("polyrail_up{") && page.contains("} 0\n"), "{page}");
}

#[test]
fn no_engine_has_it_for_a_name() {
    let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
    let build = |name: &str| Engine::builder().config(config.clone()).name(name).build();
    for name in [NAME, "", "a\u{202e}b", "a\u{1b}b", &"x".repeat(129)] {
        let error = build(name).unwrap_err();
        let text = error.to_string();
        check("error", &text, 1);
        assert!(text.starts_with("name = `") && text.contains("allowed: 1 to 128 bytes"), "{text}");
        assert!(error.help().is_some() && error.exit_code() == 2, "{text}");
    }
    let engine = build(&"ü".repeat(64)).unwrap();
    check("dump", &engine.dump(), engine.dump().lines().count());
}
