//! GPUDirect-TCPX gets the engine's settings in its variables before it is initialized, and other plugins don't. The
//! test builds a plugin (`crates/engine/nccl-abi/tests/plugin.c`) with that name or another.

use std::path::{Path, PathBuf};
use std::process::Command;

use polyrail_carrier::{CpusOf, Host, Wishes};

/// Set in the child process, which runs the body.
const INSIDE: &str = "TCPX_INSIDE";
const TX: &str = "NCCL_GPUDIRECTTCPX_TX_BINDINGS";
const RX: &str = "NCCL_GPUDIRECTTCPX_RX_BINDINGS";

fn build(name: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libnccl-net-{name}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-w", "-O1", "-fPIC", "-shared", "-pthread"]);
    compiler.args(["-fvisibility=hidden".to_owned(), format!("-DNAME=\"{name}\"")]);
    compiler
        .arg("-I")
        .arg(crates.join("faces/nccl/harness"))
        .arg(crates.join("engine/nccl-abi/tests/plugin.c"));
    let status = compiler.arg("-o").arg(&library).status();
    assert!(status.expect("a C compiler").success());
    library
}

fn load(name: &str) -> Result<Host, polyrail_carrier::HostError> {
    let bound = |interface: &str| CpusOf { interface: interface.to_owned(), cpus: vec![0] };
    let wishes = Wishes { tx: vec![bound("eth1")], rx: vec![bound("eth1")], ..Wishes::default() };
    Host::load(build(name).to_str().unwrap(), wishes)
}

#[test]
fn bindings_reach_the_plugin_unless_the_user_has_set_them() {
    if std::env::var_os(INSIDE).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["bindings_reach_the_plugin_unless_the_user_has_set_them", "--exact"]);
        // The test plugin fails to initialize if the variable is missing.
        command.env(INSIDE, "1").env("TEST_PLUGIN", "init=unbound").env_remove(TX);
        let output = command.env(RX, "eth9:2-3").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let error = load("Another").expect_err("it is told nothing").to_string();
    assert!(error.contains("init"), "{error}");
    load("GPUDirectTCPX_v7").unwrap();
    let said = [TX, RX].map(|name| std::env::var(name).unwrap());
    assert_eq!(said, ["eth1:0-0", "eth9:2-3"]);
}
