//! Compiles the baseline of the plugin's harness.

use std::fs;

const HARNESS: &str = "../../faces/nccl/harness";

fn main() {
    let sources = ["socket_like_setup", "socket_like_data", "socket_like_tables", "base"];
    let sources = sources.map(|name| format!("{HARNESS}/{name}.c"));
    let mut build = cc::Build::new();
    build.files(&sources).include(HARNESS);
    build.std("c11").define("_GNU_SOURCE", None).flag("-pthread").flag("-fvisibility=hidden");
    // Programs that also link the plugin define these names already.
    for version in 6..=12 {
        let name = format!("socket_like_v{version}");
        build.define(&format!("ncclNetPlugin_v{version}"), name.as_str());
    }
    println!("cargo:rerun-if-changed=build.rs");
    for file in fs::read_dir(HARNESS).into_iter().flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "c" || ending == "h") {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    build.compile("socket_like");
}
