//! Contents of a log, and files that it refuses.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use polyrail_config::{Config, LogFormat, Subsystems};
use polyrail_log::{Bounded, LogError, Settings};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

fn settings(file: &Path, pairs: &[(&str, &str)]) -> Settings {
    let file = ("log_file", file.to_str().unwrap());
    let builder = pairs
        .iter()
        .chain([&file])
        .try_fold(Config::builder(), |builder, (name, value)| builder.set(name, value));
    Settings::of(&builder.unwrap().build().unwrap())
}

/// Returns the log file's content after `say`.
fn written(pairs: &[(&str, &str)], say: impl FnOnce()) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let layer = settings(&file, pairs).layer().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
    fs::read_to_string(file).unwrap()
}

#[test]
fn a_record_is_one_line_whatever_a_stranger_puts_into_it() {
    let evil = "a\nERROR forged\r\u{1b}[2J\u{202e}\"}";
    let say =
        || tracing::warn!(target: "polyrail::peer", name = evil, why = %evil, "turned {evil}");
    let text = written(&[], say);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text:?}");
    assert!(text.contains("WARN polyrail::peer: turned a"), "{text}");

    let text = written(&[("log_format", "json")], say);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text:?}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["fields"]["name"], evil);
    assert_eq!(line["fields"]["why"], evil);
    assert_eq!((&line["subsystem"], &line["level"]), (&"peer".into(), &"warn".into()));
    assert_eq!(line["pid"], std::process::id());
}

#[test]
fn numbers_and_flags_keep_their_types_in_json() {
    let text = written(&[("log_format", "json")], || {
        let (rate, none) = (0.5, f64::NAN);
        tracing::error!(count = 7_u64, below = -1_i64, rate, none, is = true, "typed");
        tracing::error!(peer = ?Some("x"), "a library's");
    });
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields = serde_json::json!(
        {"count": 7, "below": -1, "rate": 0.5, "none": "NaN", "is": true}
    );
    assert_eq!((&lines[0]["message"], &lines[0]["fields"]), (&"typed".into(), &fields));
    assert_eq!(lines[1]["subsystem"], module_path!());
}

#[test]
fn level_and_subsystems_choose() {
    let say = || {
        tracing::info!(target: "polyrail::rail", "one");
        tracing::warn!(target: "polyrail::rail", "two");
        tracing::warn!(target: "polyrail::peer", "three");
        tracing::debug!(target: "polyrail::peer", "four");
    };
    let heard = |pairs: &[(&str, &str)]| {
        let text = written(pairs, say);
        text.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(heard(&[]), ["two", "three"]);
    assert_eq!(heard(&[("log_level", "debug")]), ["one", "two", "three", "four"]);
    assert_eq!(heard(&[("log_subsystems", "peer")]), ["three"]);
    assert_eq!(heard(&[("log_subsystems", "^peer"), ("log_level", "info")]), ["one", "two"]);
}

/// The plugin has two logs: NCCL's, and a file.
#[test]
fn of_two_logs_in_one_process_each_takes_its_own_level_and_subsystems() {
    struct Count(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let (few, many) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let of = |count: &Arc<AtomicUsize>, level, subsystems| {
        let subsystems = Subsystems::parse(subsystems).unwrap();
        Bounded::new(Count(count.clone()), level, subsystems)
    };
    let log = tracing_subscriber::registry().with(of(&few, LevelFilter::WARN, "peer")).with(of(
        &many,
        LevelFilter::DEBUG,
        "all",
    ));
    tracing::subscriber::with_default(log, || {
        tracing::debug!(target: "polyrail::peer", "one");
        tracing::info!(target: "polyrail::peer", "two");
        tracing::warn!(target: "polyrail::rail", "three");
        tracing::warn!(target: "polyrail::peer", "four");
        tracing::trace!(target: "polyrail::peer", "five");
    });
    assert_eq!((few.load(Ordering::Relaxed), many.load(Ordering::Relaxed)), (1, 4));
}

#[test]
fn a_storm_of_one_kind_hides_no_other_and_fills_no_disk() {
    let storm = || {
        for number in 0..100_000 {
            tracing::warn!(target: "polyrail::peer", number, "turned away");
        }
        tracing::warn!(target: "polyrail::peer", "another");
    };
    let text = written(&[], storm);
    assert_eq!(text.lines().count(), 101);
    assert!(text.ends_with("another\n"), "{text}");
}

#[test]
fn a_log_continues_its_file_and_host_and_process_are_in_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = format!("{}.{}.100%", host.trim(), std::process::id());
    fs::write(folder.path().join(&name), "before\n").unwrap();
    let layer = settings(&folder.path().join("%h.%p.100%%"), &[]).layer().unwrap();
    let log = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(log, || tracing::warn!("after"));
    let text = fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(text.starts_with("before\n") && text.ends_with("after\n"), "{text}");
}

#[test]
fn what_is_no_file_is_refused_with_field_value_and_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    let cases = [
        (folder.path().to_owned(), "is a folder; allowed: a file"),
        (at("socket"), "is a socket; allowed: a file"),
        (at("pipe"), "is a pipe; allowed: a file"),
        (at("nowhere/log"), "can't be opened for writing: No such file"),
        (at("file/log"), "can't be opened for writing: Not a directory"),
        // Not writable even for root.
        ("/proc/sys/kernel/osrelease".into(), "can't be opened for writing: Permission denied"),
    ];
    for (file, why) in cases {
        let refused = settings(&file, &[]).layer::<tracing_subscriber::Registry>().err().unwrap();
        let text = refused.to_string();
        assert!(text.starts_with(&format!("log_file = `{}` {why}", file.display())), "{text}");
        assert!(refused.help().contains("%h is the host's name"));
        assert!(matches!(refused, LogError::Open { .. } | LogError::NotAFile { .. }));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_full_disk_stops_no_program() {
    for format in LogFormat::NAMES {
        let layer = settings(Path::new("/dev/full"), &[("log_format", format)]).layer().unwrap();
        let log = tracing_subscriber::registry().with(layer);
        let mut said = 0;
        tracing::subscriber::with_default(log, || {
            for number in 0..10 {
                tracing::error!(number, "lost");
                said += 1;
            }
        });
        assert_eq!(said, 10);
    }
}
