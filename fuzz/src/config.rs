//! The body of the fuzzer `config`; `cargo test -p polyrail-testkit` runs it on the corpus, too.

use polyrail_config::{Config, ConfigError};

/// Longest message about a text of any length, in bytes.
const MESSAGE_LIMIT_BYTES: usize = 4096;

/// Any text as a config file. The error of an invalid one is one short line; a valid one can be shown, and the shown
/// text reads back as the same values.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for pair in text.lines().take(4) {
        if let Err(error) = Config::builder().set_pair(pair) {
            check(&error);
        }
    }
    let config = match Config::builder().yaml(text, "fuzz").and_then(|builder| builder.build()) {
        Ok(config) => config,
        Err(error) => return check(&error),
    };
    let rows = config.rows();
    let mut again = Config::builder();
    for row in &rows {
        again = match again.set(row.name, &row.value) {
            Ok(again) => again,
            Err(error) => panic!("{}={} does not read back: {error}", row.name, row.value),
        };
    }
    let again = again.build().expect("the same values do not conflict");
    for (before, after) in rows.iter().zip(again.rows()) {
        assert_eq!(before.value, after.value, "{}", before.name);
    }
}

fn check(error: &ConfigError) {
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < MESSAGE_LIMIT_BYTES, "{message}");
    assert!(!message.chars().any(char::is_control), "{message:?}");
    assert_ne!(error.help().as_deref(), Some(""));
}
