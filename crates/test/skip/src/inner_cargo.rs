//! For tests that call cargo, in the target folder of the cargo that runs them.

use std::env;
use std::process::Command;

/// Removes from `command`, which is cargo or calls it, the variables by which the outer cargo described this test's
/// package. Build scripts of crates like `ring` declare those variables as input, so with other values they and all
/// dependent crates would be compiled again, and once more by the next outer cargo.
pub fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}
