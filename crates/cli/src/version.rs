//! Identification of this build of the command.

/// Version, with the commit, the profile, the target and the features of the build.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("BUILT_COMMIT"),
    ", ",
    env!("BUILT_PROFILE"),
    ", ",
    env!("BUILT_TARGET"),
    ", features: ",
    env!("BUILT_FEATURES"),
    ")"
);

/// Returns the identification of this build.
pub(crate) fn build() -> String {
    build_of(VERSION)
}

/// Returns version, commit and profile from the text that `--version` prints after the name. The rest, target and
/// features, may differ between hosts of one cluster.
pub(crate) fn build_of(version: &str) -> String {
    match version.match_indices(',').nth(1) {
        Some((end, _)) => format!("{})", &version[..end]),
        None => version.to_owned(),
    }
}
