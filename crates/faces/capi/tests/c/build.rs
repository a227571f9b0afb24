//! Builds programs in C with the files that `make install` puts into a folder, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Command that installs the tests' tools and runs them.
const RUN: &str = "apt-get install gcc g++ make pkg-config valgrind && cargo test -p polyrail-capi";

/// A compiler of this machine, and the standard that it checks programs against.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    pub(crate) name: &'static str,
    standard: &'static [&'static str],
}

const COMPILERS: [Compiler; 4] = [
    Compiler { name: "gcc", standard: &["-std=c99"] },
    Compiler { name: "g++", standard: &["-x", "c++", "-std=c++17"] },
    Compiler { name: "clang", standard: &["-std=c99"] },
    Compiler { name: "clang++", standard: &["-x", "c++", "-std=c++17"] },
];

/// The option of [`build`] that takes the static library.
pub(crate) const STATIC: &str = "-static-libgcc";

const STRICT: [&str; 6] =
    ["-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn skipped(reason: &str) {
    polyrail_skip::skip(reason, RUN);
}

/// Compilers of this machine. gcc and g++ are required, and clang is used if it is installed.
pub(crate) fn compilers() -> Result<Vec<Compiler>, String> {
    ["gcc", "g++", "make", "pkg-config"].into_iter().try_for_each(has)?;
    Ok(COMPILERS.into_iter().filter(|compiler| has(compiler.name).is_ok()).collect())
}

pub(crate) fn has(program: &str) -> Result<(), String> {
    match Command::new(program).arg("--version").stdout(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the program {program} is missing: {error}")),
    }
}

/// Folder into which `make install` has put everything, once for all tests of a program.
pub(crate) fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("polyrail-capi");
        let variable = |name: &str, path: &Path| format!("{name}={}", path.display());
        let mut make = Command::new("make");
        make.args(["-s", "-C"]).arg(folder()).arg("install");
        make.args([
            variable("ARCHIVE", &archive(&test)),
            variable("OUT", &prefix.join("out")),
            variable("PREFIX", &prefix),
            "CC=gcc".to_owned(),
        ]);
        done(&mut make);
        prefix
    })
}

/// The static library. Cargo puts it beside the tests, and builds it before them: the latest one.
pub(crate) fn archive(test: &Path) -> PathBuf {
    let entries = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libpolyrail_capi") && name.ends_with(".a")
    });
    let changed = |path: &PathBuf| -> SystemTime { path.metadata().unwrap().modified().unwrap() };
    paths.max_by_key(changed).expect("the library is built before its tests")
}

/// Builds a source, for instance `examples/hello`, and returns the program.
pub(crate) fn build(source: &str, compiler: &Compiler, options: &[&str]) -> PathBuf {
    // Two folders may each have a source with this name, and both are built at the same time.
    let stem = source.replace('/', "-");
    let source = folder().join(source).with_extension("c");
    let kind: String = options.concat().chars().filter(char::is_ascii_alphanumeric).collect();
    let program = installed().join(format!("{stem}-{}{kind}", compiler.name));
    let is_static = options.contains(&STATIC);
    let mut command = Command::new(compiler.name);
    command.args(compiler.standard).args(STRICT).args(options).arg(&source).args(["-x", "none"]);
    for option in package(is_static) {
        // Both kinds of library are in the folder.
        command.arg(if is_static {
            option.replace("-lpolyrail", "-l:libpolyrail.a")
        } else {
            option
        });
    }
    done(command.args(["-pthread", "-ldl", "-o"]).arg(&program));
    program
}

fn package(is_static: bool) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "polyrail"]);
    if is_static {
        command.arg("--static");
    }
    let folder = installed().join("lib/pkgconfig");
    let said = done(command.env("PKG_CONFIG_PATH", folder).env_remove("PKG_CONFIG_LIBDIR"));
    said.split_whitespace().map(str::to_owned).collect()
}

/// Command for a program of [`build`] with these arguments, under another program if `under` is not empty.
pub(crate) fn command(program: &Path, under: &[&str], arguments: &[&str]) -> Command {
    let words: Vec<String> = under
        .iter()
        .map(|word| (*word).to_owned())
        .chain([program.to_str().unwrap().to_owned()])
        .chain(arguments.iter().map(|word| (*word).to_owned()))
        .collect();
    // A hanging program is a failure, and must not block all tests.
    let mut command = Command::new("timeout");
    command.arg("300").args(words).env("LD_LIBRARY_PATH", installed().join("lib"));
    command
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
