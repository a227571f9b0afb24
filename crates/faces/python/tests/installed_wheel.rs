//! Tests of the package as users get it: a wheel, installed in a fresh environment, under pytest. The variable
//! `TEST_PYTHON` names an interpreter other than `python3`. The tests of PyTorch run with an interpreter that has it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

const RUN: &str =
    "apt-get install python3-venv, and cargo test -p polyrail-python, with the internet";

const RUN_TORCH: &str = "apt-get install python3-torch, and cargo test -p polyrail-python";

const PIP: &[&str] = &["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];

/// Packages that pip installs beside the wheel.
const NEEDED: &[&str] = &["maturin>=1.9.4,<2", "numpy", "pytest"];

/// Runs a command to its end. Returns its output on failure.
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

/// Checks that the interpreter can run this program.
fn can(python: &str, program: &str) -> Result<(), String> {
    run(python, &["-c", program]).map_err(|why| {
        let last = why.lines().last().unwrap_or_default();
        format!("{python} can't run `{program}`: {last}")
    })
}

/// Creates an environment with that name and installs these packages in it. Returns the reason on failure.
fn environment(
    base: &str,
    name: &str,
    options: &[&str],
    needed: &[&str],
) -> Result<PathBuf, String> {
    can(base, "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))")?;
    let folder = scratch().join(name);
    run(base, &[&["-m", "venv", "--clear", text(&folder)], options].concat())?;
    let python = folder.join("bin/python");
    run(&python, &[PIP, needed].concat()).map_err(|why| {
        let last = why.lines().last().unwrap_or_default();
        format!("pip can't install {needed:?}: {last}")
    })?;
    Ok(python)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the target folder's name is text")
}

/// Builds the wheel with the packages installed beside this interpreter.
fn build_wheel(python: &Path) -> PathBuf {
    let wheels = scratch().join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    let build = ["-m", "maturin", "build", "--profile", "dev", "--locked", "--out", text(&wheels)];
    run(python, &[&build[..], &["--interpreter", text(python)]].concat()).unwrap();
    fs::read_dir(&wheels).unwrap().next().expect("a wheel was built").unwrap().path()
}

/// Installs the wheel and runs these tests.
fn install_and_test(python: &Path, wheel: &Path, tests: &[&str]) {
    run(python, &[PIP, &["--no-index", text(wheel)]].concat()).unwrap();
    let pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"];
    run(python, &[&pytest, tests].concat()).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn the_installed_wheel_passes_its_tests() {
    let base = std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    // A distribution's package has PyTorch for its own interpreter only.
    let bases = [base.as_str(), "/usr/bin/python3"];
    let with_torch = bases.into_iter().find(|base| can(base, "import torch").is_ok());
    // Pip uses one CPU, and the compiler waits for it.
    let (built, torch) = thread::scope(|scope| {
        let torch = scope.spawn(|| {
            let base = with_torch.ok_or_else(|| format!("none of {bases:?} has PyTorch"))?;
            environment(base, "torch", &["--system-site-packages"], &["numpy", "pytest"])
        });
        let built = environment(&base, "python", &[], NEEDED).map(|python| {
            let wheel = build_wheel(&python);
            (python, wheel)
        });
        (built, torch.join().unwrap())
    });
    let (python, wheel) = match built {
        Ok(built) => built,
        Err(why) => return polyrail_skip::skip(why, RUN),
    };
    assert!(text(&wheel).contains("-cp311-abi3-"), "{wheel:?} is for every Python since 3.11");
    thread::scope(|scope| {
        scope.spawn(|| install_and_test(&python, &wheel, &[]));
        match torch {
            Ok(python) => install_and_test(&python, &wheel, &["tests/test_torch.py"]),
            Err(why) => polyrail_skip::skip(why, RUN_TORCH),
        }
    });
}
