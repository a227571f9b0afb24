//! Tells the command what it was built from, for `polyrail --version`.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    // Each commit writes to this log; a checkout without git has neither.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=BUILT_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    for (name, from) in [("BUILT_PROFILE", "PROFILE"), ("BUILT_TARGET", "TARGET")] {
        println!("cargo:rustc-env={name}={}", env::var(from).unwrap_or_default());
    }
    let features = env::vars().filter_map(|(name, _)| {
        Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-"))
    });
    let mut features: Vec<String> = features.filter(|name| name != "default").collect();
    features.sort();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    println!("cargo:rustc-env=BUILT_FEATURES={features}");
}

/// What git says about this checkout, if there is git and this is one.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
