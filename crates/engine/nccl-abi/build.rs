//! Compiles the logger for plugins, which is in C because it is variadic.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/logger.c");
    let mut build = cc::Build::new();
    build.file("src/logger.c").std("c11").flag("-fvisibility=hidden");
    build.compile("polyrail_nccl_logger");
}
