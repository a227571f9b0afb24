//! Linker flags of the plugin.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // NCCL 2.28 and later unload plugins between communicators. Threads and thread-local destructors of a Rust library
    // don't survive that.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
