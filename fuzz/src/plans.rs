//! The body of the fuzzer `plans`; `cargo test -p polyrail-tune` runs it on the corpus, too.

use polyrail_tune::irq::IrqMap;
use polyrail_tune::profile::Profile;
use polyrail_tune::{Plan, Session, TuneError};

/// Longest message about a text of any length, in bytes.
const MESSAGE_LIMIT_BYTES: usize = 4096;

/// Any text as a plan, a journal, a map and a profile. A plan that is accepted is written so that it
/// reads back; what is wrong is said in one short line.
pub(crate) fn plans(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Plan::parse(text) {
        Ok(plan) => assert_eq!(Plan::parse(&plan.to_json()).expect("it reads back"), plan),
        Err(error) => check(&error),
    }
    match Session::parse(text) {
        Ok(Some(session)) => assert!(session.old.len() <= text.lines().count()),
        Ok(None) => assert!(!text.contains('\n'), "a whole line is read or refused"),
        Err(error) => check(&error),
    }
    if let Err(error) = IrqMap::parse(text, "fuzz") {
        check(&error);
    }
    if let Err(error) = Profile::parse(text, "fuzz", "fuzz") {
        check(&error);
    }
}

fn check(error: &TuneError) {
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < MESSAGE_LIMIT_BYTES, "{message}");
    assert!(!message.chars().any(char::is_control), "{message:?}");
    assert_ne!(error.help().as_deref(), Some(""));
}
