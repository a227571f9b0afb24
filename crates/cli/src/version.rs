//! Which build of the command this is.

/// The version with the commit that it was built from, how, and with which features.
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

/// Which build this is.
pub(crate) fn build() -> String {
    build_of(VERSION)
}

/// Version, commit and profile in what `--version` says behind the name. The rest, for which machine and with which
/// features, may differ between hosts of one cluster.
pub(crate) fn build_of(version: &str) -> String {
    match version.match_indices(',').nth(1) {
        Some((end, _)) => format!("{})", &version[..end]),
        None => version.to_owned(),
    }
}
