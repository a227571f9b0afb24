//! A process has one log. Each process can start one, so this single test has its own file.

use std::fs;

use polyrail_config::Config;
use polyrail_log::{LogError, Settings, start};

#[test]
fn the_first_decides_and_others_who_want_another_log_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, format: &str| {
        let file = folder.path().join(name);
        let builder = Config::builder().set("log_file", file.to_str().unwrap()).unwrap();
        Settings::of(&builder.set("log_format", format).unwrap().build().unwrap())
    };
    // A failed start decides nothing.
    assert!(matches!(start(&of("nowhere/log", "text")), Err(LogError::Open { .. })));
    start(&of("one", "text")).unwrap();
    start(&of("one", "text")).unwrap();
    tracing::warn!("first");
    let refused = start(&of("two", "text")).unwrap_err().to_string();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let expected = format!(
        "log_file = `{}` comes too late: the log of this process began with `{}`",
        two.display(),
        one.display()
    );
    assert_eq!(refused, expected);
    let refused = start(&of("one", "json")).unwrap_err().to_string();
    assert!(refused.starts_with("log_format = `json` comes too late"), "{refused}");
    tracing::warn!("second");
    assert!(!two.exists());
    let lines = fs::read_to_string(one).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
}
