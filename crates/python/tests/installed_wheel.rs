//! The package as users get it: a wheel, installed in a fresh environment, under pytest. The variable `TEST_PYTHON`
//! names another interpreter than `python3`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUN: &str =
    "apt-get install python3-venv, and cargo test -p polyrail-python, with the internet";

/// What pip installs beside the wheel.
const NEEDED: &[&str] = &["maturin>=1.9.4,<2", "numpy", "pytest"];

/// Runs a command to its end; what it wrote, if it failed.
fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, words: &[S]) -> Result<(), String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(program.as_ref());
    command.args(words).current_dir(package).env("PYTHONDONTWRITEBYTECODE", "1");
    // Compiles into the folder of this very build, which has nearly all of it.
    command.env("CARGO_TARGET_DIR", scratch().parent().expect("it is in the target folder"));
    polyrail_skip::forget_package(&mut command);
    let output = command.output().map_err(|error| format!("{:?}: {error}", program.as_ref()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&text)))
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned()
}

#[test]
fn the_installed_wheel_passes_its_tests() {
    let base = std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let can_make = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))";
    if let Err(why) = run(&base, &["-c", can_make]) {
        return polyrail_skip::skip(
            format!("{base} is no Python 3.11 or newer with venv: {why}"),
            RUN,
        );
    }
    let (environment, wheels) = (scratch().join("python"), scratch().join("wheels"));
    let path = |path: &Path| path.to_str().expect("the target folder's name is text").to_owned();
    run(&base, &["-m", "venv", "--clear", &path(&environment)]).unwrap();
    let python = environment.join("bin/python");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    if let Err(why) = run(&python, &[&pip, NEEDED].concat()) {
        let last = why.lines().last().unwrap_or_default();
        return polyrail_skip::skip(format!("pip can't install {NEEDED:?}: {last}"), RUN);
    }

    let _ = fs::remove_dir_all(&wheels);
    let wheels = path(&wheels);
    let build = ["-m", "maturin", "build", "--profile", "dev", "--locked", "--out", &wheels];
    run(&python, &[&build[..], &["--interpreter", &path(&python)]].concat()).unwrap();
    let wheel = fs::read_dir(&wheels).unwrap().next().expect("a wheel was built").unwrap().path();
    let name = path(&wheel);
    assert!(name.contains("-cp311-abi3-"), "{name} is for every Python since 3.11");
    run(&python, &[&pip[..], &["--no-index", &name]].concat()).unwrap();
    run(&python, &["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .unwrap_or_else(|why| panic!("{why}"));
}
