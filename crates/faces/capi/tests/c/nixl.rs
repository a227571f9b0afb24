//! The backend for NIXL, built with g++ and used by the agents of NIXL's package.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{archive, done, folder, has};

const RUN: &str = "apt-get install g++ make python3-venv && cargo test -p polyrail-capi --test c nixl, with the \
                   internet for `pip install nixl-cu12`";

/// The tested version. For others: `make -C integrations/nixl test PYTHON=…`.
const NIXL: &str = "nixl-cu12==1.5.1";

#[test]
fn agents_of_nixl_move_memory_through_the_backend() {
    if let Err(why) = ["g++", "make", "python3"].into_iter().try_for_each(has) {
        return polyrail_skip::skip(why, RUN);
    }
    if !cfg!(target_arch = "x86_64") {
        return polyrail_skip::skip(
            "the version of NIXL that is tested is the one for x86-64",
            RUN,
        );
    }
    let python = match environment() {
        Ok(python) => python,
        Err(why) => return polyrail_skip::skip(why, RUN),
    };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nixl");
    let test = std::env::current_exe().unwrap();
    let mut make = Command::new("make");
    make.args(["-s", "-C"]).arg(folder().join("../../../integrations/nixl"));
    make.arg(format!("ARCHIVE={}", archive(&test).display()));
    make.arg(format!("OUT={}", scratch.display())).args(["CXX=g++", "CXXFLAGS=-O1"]);
    done(&mut make);
    let mut tests = Command::new("timeout");
    tests.arg("500").arg(python).arg(folder().join("../../../integrations/nixl/tests/run.py"));
    tests.env("PLUGIN", scratch.join("libplugin_POLYRAIL.so"));
    let told = done(tests.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert!(told.lines().filter(|line| line.starts_with("ok ")).count() >= 8, "{told}");
}

/// A Python with NIXL, which is kept because its package is large.
fn environment() -> Result<PathBuf, String> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nixl-python");
    let python = environment.join("bin/python");
    let version = NIXL.rsplit('=').next().unwrap_or_default();
    let is_there = format!(
        "import importlib.metadata as m, numpy, sys; sys.exit(m.version('nixl-cu12') != '{version}')"
    );
    if runs(Command::new(&python).args(["-c", &is_there])).is_ok() {
        return Ok(python);
    }
    runs(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
    runs(Command::new(&python).args(pip).args([NIXL, "numpy"]))?;
    Ok(python)
}

fn runs(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", text.lines().last().unwrap_or_default()))
}
