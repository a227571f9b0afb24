//! Contents of the packages that `scripts/packages` builds: the files exist, the program takes the units' commands and
//! they do what they are for, and docs/install.md names only what there is. `scripts/packages-check` builds and tries
//! the packages.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use polyrail_host::fixtures;
use polyrail_tune::StateDir;
use serde_json::Value;

use crate::common::{polyrail, repository};

const STAGED: &str = "target/release/packaging/";
const PROGRAM: &str = "/usr/bin/polyrail";

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `package.metadata` of this crate, as cargo reads it.
fn metadata() -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = all["packages"].as_array().unwrap();
    let cli = packages.iter().find(|one| one["name"] == env!("CARGO_PKG_NAME")).unwrap();
    cli["metadata"].clone()
}

/// A file of a package: its source, relative to the root of the repository, and its destination.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asset {
    source: String,
    to: String,
}

/// The files of the .deb, as `[source, folder or file, mode]`, and of the .rpm, as tables.
fn assets(kind: &str) -> Vec<Asset> {
    let text = |value: &Value| value.as_str().unwrap().trim_start_matches('/').to_owned();
    let list = metadata()[kind]["assets"].as_array().unwrap().clone();
    let of = |one: &Value| match one {
        Value::Array(parts) => Some(Asset { source: text(&parts[0]), to: text(&parts[1]) }),
        // A link has no source.
        table if table["source"].is_null() => None,
        table => Some(Asset { source: text(&table["source"]), to: text(&table["dest"]) }),
    };
    let mut assets: Vec<Asset> = list.iter().filter_map(of).collect();
    for asset in &mut assets {
        // cargo-deb starts in the crate's folder, cargo-generate-rpm in the current one.
        if let Some(rest) = asset.source.strip_prefix("../../") {
            asset.source = rest.to_owned();
        } else if let Some(rest) = asset.source.strip_prefix("../") {
            asset.source = format!("crates/{rest}");
        }
    }
    assert!(assets.len() > 15, "{kind}: {assets:?}");
    assets
}

/// Names of the files that match a pattern with at most one `*` in its last part.
fn matching(pattern: &str) -> Vec<String> {
    let (folder, file) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    let Some((begin, end)) = file.split_once('*') else {
        let is_there = repository().join(pattern).is_file();
        return if is_there { vec![file.to_owned()] } else { Vec::new() };
    };
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(begin) && name.ends_with(end)).collect()
}

/// Paths of the installed files of a package.
fn installed(kind: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for Asset { source, to } in assets(kind) {
        if !to.ends_with('/') {
            paths.insert(format!("/{to}"));
            continue;
        }
        let names = match source.strip_prefix(STAGED) {
            Some(staged) => vec![staged.rsplit('/').next().unwrap().to_owned()],
            None => matching(&source),
        };
        paths.extend(names.iter().map(|name| format!("/{to}{name}")));
    }
    paths
}

/// Command lines of a unit by key, with its variables and the instance `mine` filled in.
fn commands(unit: &str) -> Vec<(String, String)> {
    let values = |wanted: &'static str| {
        let pairs = unit.lines().filter_map(|line| line.split_once('='));
        pairs.filter(move |(key, _)| key.starts_with(wanted))
    };
    let variables: Vec<(&str, &str)> =
        values("Environment").filter_map(|(_, pair)| pair.split_once('=')).collect();
    let fill = |line: &str| {
        variables.iter().fold(line.replace("%i", "mine"), |line, (name, value)| {
            line.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
        })
    };
    values("Exec").map(|(key, line)| (key.to_owned(), fill(line))).collect()
}

/// Arguments of a line that calls the program, with the host's folders replaced by this one.
fn arguments(line: &str, folder: &Path) -> Option<Vec<String>> {
    let words = line.strip_prefix(PROGRAM)?.strip_prefix(' ')?.split_whitespace();
    let folder = folder.to_str().unwrap();
    let moved = |word: &str| {
        let places = ["/etc/polyrail", "/run/polyrail"];
        places.iter().fold(word.to_owned(), |word, place| word.replace(place, folder))
    };
    Some(words.map(moved).collect())
}

fn parse(words: &[String]) -> Result<(), String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    polyrail_cli::check(&words)
}

#[test]
fn the_dependency_that_the_guide_names_is_there() {
    let named = "[dependencies.polyrail]\npath = \"../polyrail/crates/engine/polyrail\"\n";
    assert!(read("docs/rust.md").contains(named));
    assert!(read("crates/engine/polyrail/Cargo.toml").contains("name = \"polyrail\""));
}

#[test]
fn every_file_of_a_package_exists_or_is_made_by_the_script() {
    let script = read("scripts/packages");
    for kind in ["deb", "generate-rpm"] {
        for Asset { source, .. } in assets(kind) {
            match source.strip_prefix(STAGED) {
                Some(staged) => {
                    let made = format!("\"$staged/{}\"", staged.trim_end_matches("/*.1.gz"));
                    assert!(script.contains(&made), "{kind}: {source}: the script lacks {made}");
                }
                None => assert!(!matching(&source).is_empty(), "{kind}: {source} is not there"),
            }
        }
    }
    let metadata = metadata();
    for script in ["post_install_script", "pre_uninstall_script", "post_uninstall_script"] {
        let path = metadata["generate-rpm"][script].as_str().unwrap();
        assert!(repository().join(path).is_file(), "{script}: {path}");
    }
    let triggers = metadata["deb"]["triggers-file"].as_str().unwrap();
    let triggers =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(triggers)).unwrap();
    assert!(triggers.contains("ldconfig"), "programs would not find libpolyrail.so.0: {triggers}");
    // cargo-deb adds its own part there.
    for script in ["prerm", "postrm"] {
        assert!(read(&format!("deploy/deb/{script}")).contains("#DEBHELPER#"), "{script}");
    }
}

/// The .rpm has files and no folders, so its script must remove the package's own folders.
#[test]
fn the_rpm_leaves_no_folder_of_its_own() {
    let script = read("deploy/rpm/postun");
    let removed: Vec<&str> = script.split_whitespace().collect();
    for path in installed("generate-rpm") {
        for folder in Path::new(&path).ancestors().skip(1).filter_map(Path::to_str) {
            let is_own = folder.contains("polyrail");
            assert!(!is_own || removed.contains(&folder), "{folder} stays, as {path} is in it");
        }
    }
}

#[test]
fn the_deb_and_the_rpm_have_the_same_files() {
    let sources = |kind| assets(kind).into_iter().map(|one| one.source).collect::<BTreeSet<_>>();
    let mut of_deb = sources("deb");
    for only_there in
        [format!("{STAGED}changelog.Debian.gz"), "deploy/deb/lintian-overrides".into()]
    {
        assert!(of_deb.remove(&only_there), "{only_there}");
    }
    assert_eq!(of_deb, sources("generate-rpm"));
    let own = |kind| {
        let mut paths = installed(kind);
        // Each kind of system has its own folders for these.
        let differs = ["/lib", "completions", "site-functions", "LICENSE", "Debian", "lintian"];
        paths.retain(|path| !differs.iter().any(|part| path.contains(part)));
        paths
    };
    assert_eq!(own("deb"), own("generate-rpm"));
    let units = |kind| {
        let paths = installed(kind).into_iter();
        paths.filter(|path| path.starts_with("/usr/lib/systemd")).collect::<Vec<_>>()
    };
    assert_eq!(units("deb"), units("generate-rpm"));
    assert_eq!(
        units("deb").len(),
        fs::read_dir(repository().join("deploy/systemd")).unwrap().count()
    );
}

#[test]
fn the_commands_of_the_units_are_ones_that_the_program_takes() {
    assert!(installed("deb").contains(PROGRAM) && installed("generate-rpm").contains(PROGRAM));
    // This folder stands for /etc/polyrail.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.yaml"), read("crates/host/tune/profiles/throughput.yaml"))
        .unwrap();
    for unit in ["polyrail-exporter.service", "polyrail-tune@.service"] {
        let text = read(&format!("deploy/systemd/{unit}"));
        let commands = commands(&text);
        assert!(commands.iter().any(|(key, _)| key == "ExecStart"), "{unit}");
        for (key, line) in commands {
            assert!(!line.contains(['$', '%']), "{unit}: {key}: {line}");
            let words = arguments(&line, folder.path()).unwrap_or_else(|| panic!("{key}: {line}"));
            assert_eq!(parse(&words), Ok(()), "{unit}: {line}");
        }
        let page = text.lines().find_map(|line| line.strip_prefix("Documentation=man:")).unwrap();
        let mut command = polyrail_cli::command();
        for name in page.strip_suffix("(1)").unwrap().split('-').skip(1) {
            command = command.find_subcommand(name).unwrap_or_else(|| panic!("{page}")).clone();
        }
    }
}

#[test]
fn the_unit_for_settings_keeps_its_journal_where_the_program_does() {
    let unit = read("deploy/systemd/polyrail-tune@.service");
    let folder = unit.lines().find_map(|line| line.strip_prefix("StateDirectory=")).unwrap();
    assert_eq!(StateDir::DEFAULT, format!("/var/lib/{folder}"));
}

#[test]
fn the_unit_for_settings_applies_a_profile_and_takes_it_back() {
    let machine = fixtures::mlx5_four_nodes();
    let (setting, another) = ("/proc/sys/net/core/somaxconn", "/proc/sys/net/core/rmem_max");
    let content = |path: &str| fs::read_to_string(machine.path().join(&path[1..])).unwrap();
    let value = || content(setting);
    let folder = tempfile::tempdir().unwrap();
    let write_profile = |name: &str, file: &str| {
        let profile = format!(
            "about: one setting\nsettings:\n  - file: {file}\n    at_least: 4096\n    \
             why: it is for this test\n    source: this test\n"
        );
        fs::write(folder.path().join(name), profile).unwrap();
    };
    write_profile("mine.yaml", setting);
    let commands = commands(&read("deploy/systemd/polyrail-tune@.service"));
    let run = |wanted: &str, profile: &str| -> Output {
        let (_, line) = commands.iter().find(|(key, _)| key == wanted).unwrap();
        let line = &line.replace("mine", profile);
        let mut command = polyrail(arguments(line, folder.path()).unwrap());
        command.arg("--sysroot").arg(machine.path());
        command.arg("--state-dir").arg(folder.path().join("state")).output().unwrap()
    };
    let succeed = |wanted: &str| {
        let output = run(wanted, "mine");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{wanted}: {words}");
    };
    machine.write(setting, "128\n");
    succeed("ExecStart");
    assert_eq!(value().trim(), "4096");
    // Changes of another instance meanwhile stay.
    machine.write(another, "512\n");
    write_profile("another.yaml", another);
    assert!(run("ExecStart", "another").status.success());
    succeed("ExecStop");
    assert_eq!((value().trim(), content(another).trim()), ("128", "4096"));

    // If the profile finds nothing to change, stopping has nothing to undo and succeeds.
    fs::rename(folder.path().join("mine.yaml"), folder.path().join("other.yaml")).unwrap();
    assert_eq!(run("ExecStop", "mine").status.code(), Some(2), "a profile that is not there");
    fs::rename(folder.path().join("other.yaml"), folder.path().join("mine.yaml")).unwrap();
    fs::remove_dir_all(folder.path().join("state")).unwrap();
    machine.write(setting, "8192\n");
    succeed("ExecStart");
    succeed("ExecStop");
    assert_eq!(value().trim(), "8192");
}

#[test]
fn systemd_takes_the_units_and_finds_them_little_exposed() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (unit, name) in [
        ("polyrail-exporter.service", "polyrail-exporter.service"),
        ("polyrail-tune@.service", "polyrail-tune@mine.service"),
    ] {
        // systemd-analyze checks that the program exists.
        let text = read(&format!("deploy/systemd/{unit}")).replace(PROGRAM, "/bin/true");
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        paths.push(path);
    }
    let analyze =
        |arguments: &[&str]| Command::new("systemd-analyze").args(arguments).args(&paths).output();
    let verified = match analyze(&["verify", "--man=no"]) {
        Ok(verified) => verified,
        Err(error) => {
            return polyrail_skip::skip(
                format!("no systemd-analyze: {error}"),
                "apt-get install systemd; cargo test -p polyrail-cli --test plain packages::",
            );
        }
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    // systemd-analyze also warns about units of this machine that ours are ordered after.
    assert!(verified.status.success() && !said.contains("polyrail"), "{said}");
    // docs/install.md has the figures; 10 is the worst.
    let secure = analyze(&["security", "--offline=true", "--no-pager", "--threshold=28"]).unwrap();
    assert!(secure.status.success(), "{}", String::from_utf8_lossy(&secure.stdout));
}

/// Lines of the page's blocks of commands, without comments. `pages` tries those that call the program.
fn lines(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines = blocks.flat_map(str::lines);
    lines.map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect()
}

#[test]
fn the_page_about_installing_names_what_there_is() {
    let page = read("docs/install.md");
    let version = env!("CARGO_PKG_VERSION");
    let image = format!("localhost/polyrail:{version} ");
    let script = read("scripts/packages");
    let mut containers = 0;
    for line in lines(&page) {
        if let Some((_, call)) = line.split_once(&image) {
            let call = call.replace("/run/polyrail", "/run");
            let words: Vec<String> = call.split(' ').map(str::to_owned).collect();
            let told = parse(&words);
            assert!(told.is_ok() || call == "--version", "{line}: {told:?}");
            containers += 1;
        }
        for kind in line.strip_prefix("scripts/packages ").unwrap_or("").split_whitespace() {
            assert!(script.contains(&format!("\n        {kind})")), "{kind}");
        }
    }
    assert!(containers >= 3, "{containers}");

    let (deb, rpm) = (installed("deb"), installed("generate-rpm"));
    let mut files = 0;
    for word in page.split(|one: char| one.is_whitespace() || one == '`') {
        let word = word.trim_end_matches([',', '.', ':', ';']);
        if word.starts_with("/usr/") {
            assert!(deb.contains(word) || rpm.contains(word), "no package has {word}");
            files += 1;
        }
        if let Some((_, rest)) = word.split_once("polyrail-").filter(|_| word.contains("x86_64")) {
            let end = rest.strip_prefix(&format!("{version}-x86_64"));
            let end = end.unwrap_or_else(|| panic!("{word} is not of {version}"));
            assert!(script.contains(&format!("$out/$name{end}")), "{word} is not made");
            files += 1;
        }
    }
    assert!(files >= 6, "{files}");
}
