//! A program with its own subscriber. Each process can have one, so this single test has its own file.

use polyrail_config::Config;
use polyrail_log::{LogError, Settings, start};

#[test]
fn a_program_with_a_subscriber_of_its_own_keeps_it_and_no_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    let config = Config::builder().set("log_file", file.to_str().unwrap()).unwrap();
    let refused = start(&Settings::of(&config.build().unwrap())).unwrap_err();
    assert!(matches!(refused, LogError::Foreign { .. }), "{refused}");
    assert!(refused.to_string().starts_with(&format!("log_file = `{}`", file.display())));
    assert!(!file.exists());
}
