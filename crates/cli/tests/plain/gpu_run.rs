//! Tests that `scripts/gpu-run` recognizes a survivor that serves the next client, on machines without a GPU.

use std::path::Path;
use std::process::Command;

use crate::common::repository;

/// Loads the script as a module.
const LOAD: &str = r#"
import importlib.util, mmap, os, pathlib, sys, types
from importlib.machinery import SourceFileLoader
sys.dont_write_bytecode = True
loader = SourceFileLoader("gpu_run", sys.argv[1])
gpu_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
loader.exec_module(gpu_run)
"#;

/// Runs these lines of Python after [`LOAD`], if there is an interpreter.
fn python(lines: &str, more: &[&Path]) {
    let script = repository().join("scripts/gpu-run");
    let program = format!("{LOAD}{lines}");
    let mut command = Command::new("python3");
    match command.args(["-c", &program]).arg(script).args(more).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        Err(error) => println!("skipped: python3 can't be started: {error}"),
    }
}

#[test]
fn the_page_that_an_engine_keeps_is_not_taken_for_a_ring() {
    python(
        r#"
def show(size):
    file = os.memfd_create("polyrail")
    os.ftruncate(file, size)
    return mmap.mmap(file, size)
assert not gpu_run.has_ring(os.getpid())
page = show(2 * 4096)
assert not gpu_run.has_ring(os.getpid()), "a page"
ring = show(4096 + (64 << 10))
assert gpu_run.has_ring(os.getpid()), "the smallest ring that there is"
ring.close()
assert not gpu_run.has_ring(os.getpid()), "it is let go of"
"#,
        &[],
    );
}

#[test]
fn a_client_that_was_refused_was_not_served_though_it_writes_a_report() {
    let folder = tempfile::tempdir().unwrap();
    python(
        r#"
out = pathlib.Path(sys.argv[2])
program = out / "polyrail"
program.write_text('#!/bin/sh\necho "{\\"results\\": []}" >"$5"\nexit $3\n')
program.chmod(0o755)
options = types.SimpleNamespace(out=out, polyrail=str(program), bench="", budget=60, timeout=60)
run = gpu_run.Run(options)
assert run.tried("refused", ["--code", "4"]) is None
assert not (out / ".refused.json").exists() and not run.raw["reports"]
assert run.tried("served", ["--code", "0"]) == {"results": []}
"#,
        &[folder.path()],
    );
}
