//! The shape of the workspace: allowed dependencies of crates, where unsafe code may be, and forbidden content of
//! files. ARCHITECTURE.md has the picture; failures here say what to do.

#[path = "architecture/groups.rs"]
mod groups;
#[path = "architecture/outsiders.rs"]
mod outsiders;
#[path = "architecture/writes.rs"]
mod writes;

use std::fs;
use std::path::{Path, PathBuf};

use groups::{file, from_crate, group_of};

/// A crate, as in the picture.
struct Rule {
    /// Name of its folder in its group's folder.
    name: &'static str,
    /// Crates that it may use.
    below: &'static [&'static str],
    /// Crates that only its tests, benches and examples may use.
    for_tests: &'static [&'static str],
    /// True if it may contain unsafe code.
    may_be_unsafe: bool,
    /// True if it makes no operating-system calls, so that it runs the same everywhere.
    is_pure: bool,
}

const RULES: &[Rule] = &[
    Rule {
        name: "cli",
        // Uses thread CPU times from `sys`, for baselines without an engine.
        below: &[
            "analyze",
            "carrier",
            "collective",
            "config",
            "doctor",
            "experiment",
            "gpu",
            "host",
            "lab",
            "log",
            "metrics",
            "nccl-abi",
            "nccl-ref",
            "netlink",
            "nic",
            "pattern",
            "polyrail",
            "profile",
            "profiler",
            "rendezvous",
            "report",
            "sample",
            "sys",
            "tune",
        ],
        // Examples of an unauthenticated client; a test that reads manifests.
        for_tests: &["browser", "proto", "secure", "yaml"],
        ..Rule::ORDINARY
    },
    Rule {
        name: "polyrail",
        below: &["carrier", "config", "gpu", "metrics", "netlink", "proto", "secure", "sys"],
        // The tests turn the checks of wake-ups on; one compares engines with the simulated world.
        for_tests: &["polyrail", "testkit"],
        ..Rule::ORDINARY
    },
    // Shares the grammar of bindings with the settings. Its tests use its own fixtures, which are behind a feature.
    Rule {
        name: "host",
        below: &["config", "nvml", "sys"],
        for_tests: &["host"],
        ..Rule::ORDINARY
    },
    Rule { name: "pattern", is_pure: true, ..Rule::ORDINARY },
    Rule {
        name: "doctor",
        below: &["host", "netlink", "nic", "sys", "text", "tune"],
        ..Rule::ORDINARY
    },
    Rule { name: "sample", below: &["host", "netlink"], ..Rule::ORDINARY },
    // Foreign code calls it and passes pointers.
    Rule {
        name: "nccl",
        below: &["config", "host", "log", "metrics", "nccl-abi", "polyrail", "sys"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    // C calls it and passes pointers. Its examples and most of its tests are in C.
    Rule {
        name: "capi",
        below: &["config", "polyrail", "rendezvous", "sys"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    // Registers memory owned by Python objects, by pointer.
    Rule {
        name: "python",
        below: &["polyrail", "rendezvous"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    Rule { name: "nccl-abi", may_be_unsafe: true, ..Rule::ORDINARY },
    // Passes addresses of its memory to plugins.
    Rule {
        name: "carrier",
        below: &["gpu", "nccl-abi", "sys", "text"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    // Calls plugins, which get pointers to its memory.
    Rule { name: "collective", below: &["nccl-abi"], may_be_unsafe: true, ..Rule::ORDINARY },
    // Calls two foreign libraries.
    Rule { name: "nccl-ref", below: &["gpu"], may_be_unsafe: true, ..Rule::ORDINARY },
    // Calls a foreign library.
    Rule { name: "nvml", may_be_unsafe: true, ..Rule::ORDINARY },
    // Forks and enters namespaces, unlike all other crates.
    Rule { name: "lab", below: &["netlink", "sys"], may_be_unsafe: true, ..Rule::ORDINARY },
    Rule {
        name: "analyze",
        below: &["profile", "report"],
        for_tests: &["browser"],
        ..Rule::ORDINARY
    },
    // Plans and evaluates; the command runs the cells.
    Rule {
        name: "experiment",
        below: &["config", "report", "yaml"],
        is_pure: true,
        ..Rule::ORDINARY
    },
    // Pure data; of the system it uses files only.
    Rule { name: "profile", below: &["report", "sys", "yaml"], ..Rule::ORDINARY },
    // The tests use a device that needs no GPU, which is behind a feature.
    Rule {
        name: "profiler",
        below: &["gpu", "nccl-ref", "nvml", "polyrail", "profile", "report", "sys"],
        for_tests: &["gpu"],
        ..Rule::ORDINARY
    },
    // Interfaces come from the kernel over netlink, as the facts from which the protocol chooses rails.
    Rule { name: "sys", below: &["netlink", "proto"], may_be_unsafe: true, ..Rule::ORDINARY },
    // Calls the driver. Its tests use its own device that needs no GPU, which is behind a feature.
    Rule {
        name: "gpu",
        below: &["sys"],
        for_tests: &["gpu", "report"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    // Serves data that engines pass in, and depends on none, so that every engine can use it. From `sys` it uses the
    // identification of a connection's other end.
    Rule { name: "metrics", below: &["config", "sys"], ..Rule::ORDINARY },
    // Built on the public API only; no other crate uses it.
    Rule { name: "otel", below: &["polyrail"], ..Rule::ORDINARY },
    // Built on the public API only. The engine does not depend on it.
    Rule { name: "rendezvous", below: &["config", "polyrail", "proto", "sys"], ..Rule::ORDINARY },
    // For programs that own their log; the engine only emits `tracing` events.
    Rule { name: "log", below: &["config", "sys"], ..Rule::ORDINARY },
    Rule { name: "tune", below: &["host", "nic", "sys", "yaml"], ..Rule::ORDINARY },
    // The old ethtool call and fanotify.
    Rule { name: "nic", below: &["netlink"], may_be_unsafe: true, ..Rule::ORDINARY },
    // Options of netlink sockets.
    Rule { name: "netlink", below: &["text"], may_be_unsafe: true, ..Rule::ORDINARY },
    // From `sys` it uses the check that a settings file may be obeyed.
    Rule { name: "config", below: &["sys", "yaml"], is_pure: true, ..Rule::ORDINARY },
    Rule { name: "yaml", below: &["text"], is_pure: true, ..Rule::ORDINARY },
    Rule {
        name: "proto",
        below: &["secure", "text"],
        for_tests: &["testkit"],
        is_pure: true,
        ..Rule::ORDINARY
    },
    // Keys and handshakes take random bits from the system.
    Rule { name: "secure", below: &["text"], for_tests: &["testkit"], ..Rule::ORDINARY },
    Rule { name: "text", is_pure: true, ..Rule::ORDINARY },
    // Shares the grammar of sizes and times with the settings.
    Rule { name: "report", below: &["config"], is_pure: true, ..Rule::ORDINARY },
    // The example `chaos` runs engines in a lab.
    Rule {
        name: "testkit",
        below: &["proto", "secure"],
        for_tests: &["config", "lab", "polyrail"],
        is_pure: true,
        ..Rule::ORDINARY
    },
    // Foreign code calls it and passes pointers; tests of plugin hosts load it.
    Rule {
        name: "testkit-plugin",
        below: &["gpu", "nccl-abi", "sys"],
        // Engines that host it, and their parts.
        for_tests: &["carrier", "host", "polyrail"],
        may_be_unsafe: true,
        ..Rule::ORDINARY
    },
    // Tests of reports open them in a browser.
    Rule { name: "browser", ..Rule::ORDINARY },
    Rule { name: FOR_ALL_TESTS, ..Rule::ORDINARY },
];

/// For use by all tests, and nothing else.
const FOR_ALL_TESTS: &str = "skip";

/// Crates that other projects' programs may build on, and their dependencies. No others are published.
const PUBLIC: &[&str] = &[
    "carrier", "config", "gpu", "metrics", "nccl-abi", "netlink", "polyrail", "proto", "secure",
    "sys", "text", "yaml",
];

/// Crates through which a pure crate could reach the operating system.
const NOT_PURE: &[&str] =
    &["getrandom", "libc", "memmap2", "mio", "nix", "rand", "rustix", "signal-hook", "socket2"];

/// Items that the protocol core and its simulation get passed in, and must not take themselves.
const NOT_SANS_IO: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
];

/// Words that sources must not contain, and what to do instead. Split in halves, because this file is a source.
const BANNED: &[(&str, &str, &str)] = &[
    ("to", "do!", "write the code, or leave the feature out and say so in the documentation"),
    ("unimple", "mented!", "write the code, or return an error that says what is missing"),
    ("FIX", "ME", "mend it, or open an issue"),
    ("db", "g!(", "use `tracing`, or take it out"),
    ("/wo", "rk/", "take the path of one machine out"),
];

const LINES_MAX: usize = 700;

/// Access to other processes, and the only sources that may use it. The engine's access goes through `ProvenProcess`,
/// which only `device/host_proof.rs` requests from the kernel. `lab` and `sample` look at processes for their own user.
const INTO_PROCESSES: &[(&str, &[&str])] = &[
    ("pidfd_getfd", &["sys/src/badge.rs"]),
    ("pidfd_open", &["lab/src/processes.rs", "sys/src/badge.rs", "tune/src/balancer.rs"]),
    ("process_vm_", &["sys/src/foreign_copy.rs", "sys/src/foreign_memory.rs", "sys/src/memory.rs"]),
    (
        "/fd/{",
        &[
            // Only the process's own descriptors.
            "cli/src/cmd/nccl/trial/left.rs",
            "cli/src/files.rs",
            "lab/src/holder.rs",
            "nic/src/writers.rs",
            "sys/src/badge.rs",
            "sys/src/files/tests.rs",
            "sys/src/files/folder.rs",
            "sys/src/shared_memory.rs",
        ],
    ),
    (
        "/fd\"",
        &[
            "cli/src/cmd/nccl/trial/left.rs",
            "lab/src/holder.rs",
            // Only lists the sockets of a process.
            "metrics/src/local.rs",
            "sample/src/flows.rs",
        ],
    ),
    ("/mem\"", &[]),
    ("ptrace(", &[]),
    ("shm_open", &[]),
    ("ProvenProcess::with_name(", &["polyrail/src/device/host_proof.rs", "sys/src/badge.rs"]),
    (
        "SharedMemory::open(",
        &[
            "polyrail/src/device/shared_memory.rs",
            "sys/src/shared_memory.rs",
            "sys/src/shared_word.rs",
        ],
    ),
];

impl Rule {
    const ORDINARY: Self =
        Self { name: "", below: &[], for_tests: &[], may_be_unsafe: false, is_pure: false };

    fn of(name: &str) -> &'static Self {
        let known = RULES.iter().find(|rule| rule.name == name);
        known.unwrap_or_else(|| panic!("no rule for {name}"))
    }

    /// Path from the root of the workspace, as `crates/engine/sys`.
    fn place(&self) -> String {
        let group = group_of(self.name).map(|group| format!("{group}/"));
        format!("crates/{}{}", group.unwrap_or_default(), self.name)
    }

    fn folder(&self) -> PathBuf {
        workspace().join(self.place())
    }

    fn manifest(&self) -> Manifest {
        Manifest::read(&self.folder().join("Cargo.toml"))
    }
}

/// Part of a `Cargo.toml` that the rules need.
struct Manifest {
    /// Sections and the keys in them, as `("dependencies", "polyrail-proto")`.
    keys: Vec<(String, String)>,
}

impl Manifest {
    fn read(path: &Path) -> Self {
        Self::parse(&read(path))
    }

    fn parse(text: &str) -> Self {
        let mut keys = Vec::new();
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(heading) = line.strip_prefix('[') {
                section = heading.trim_matches(['[', ']']).to_owned();
                // `[dependencies.name]` is a dependency, too.
                if let Some((outer, name)) = section.rsplit_once('.')
                    && outer.ends_with("dependencies")
                {
                    keys.push((outer.to_owned(), name.to_owned()));
                }
            } else if let Some((key, _)) = line.split_once('=')
                && !line.starts_with('#')
            {
                let name = key.trim().split('.').next().unwrap_or(key);
                keys.push((section.clone(), name.trim_matches('"').to_owned()));
            }
        }
        Self { keys }
    }

    /// Dependencies for tests, or all others.
    fn dependencies(&self, for_tests: bool) -> Vec<&str> {
        let of_kind = |section: &str| {
            section.ends_with("dependencies") && section.ends_with("dev-dependencies") == for_tests
        };
        let named = self.keys.iter().filter(|(section, _)| of_kind(section));
        named.map(|(_, name)| name.as_str()).collect()
    }

    fn has(&self, section: &str, key: &str) -> bool {
        self.keys.iter().any(|(s, k)| s == section && k == key)
    }
}

fn workspace() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.ancestors().nth(3).expect("the testkit is in a group of crates").to_owned()
}

fn crates() -> PathBuf {
    workspace().join("crates")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folder of a package, if it belongs to this workspace.
fn folder_of(package: &str) -> Option<&str> {
    if package == "polyrail" { Some(package) } else { package.strip_prefix("polyrail-") }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true if path.ends_with("target") => Vec::new(),
            true => rust_files(&path),
            false if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}

fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn only_the_modules_named_here_reach_into_other_processes() {
    let mut faults = Vec::new();
    for (way, allowed) in INTO_PROCESSES {
        for rule in RULES {
            for path in rust_files(&rule.folder().join("src")) {
                let name = from_crate(&path);
                if read(&path).contains(way) && !allowed.contains(&name) {
                    faults.push(format!(
                        "{name} has `{way}`: take a `ProvenProcess` and what `polyrail-sys` does with it"
                    ));
                }
            }
        }
        for name in *allowed {
            if !read(&file(name)).contains(way) {
                faults.push(format!("{name} has no `{way}` any more: take it out of the list"));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn dependencies_point_down_only() {
    let mut faults = Vec::new();
    for rule in RULES {
        let manifest = rule.manifest();
        for (for_tests, allowed) in [
            (false, rule.below.to_vec()),
            (true, [rule.below, rule.for_tests, &[FOR_ALL_TESTS]].concat()),
        ] {
            for package in manifest.dependencies(for_tests) {
                let Some(folder) = folder_of(package) else { continue };
                if !allowed.contains(&folder) {
                    faults.push(format!(
                        "{} depends on {package}; allowed: {allowed:?}. Move the code to \
                         where it may be used, or change the picture in ARCHITECTURE.md and here",
                        rule.place()
                    ));
                }
            }
        }
    }
    assert_none(faults);
}

#[test]
fn the_rules_have_no_circle() {
    let mut placed: Vec<&str> = Vec::new();
    while placed.len() < RULES.len() {
        let next = RULES.iter().find(|rule| {
            !placed.contains(&rule.name) && rule.below.iter().all(|below| placed.contains(below))
        });
        placed.push(next.expect("each crate must have a place above all those it uses").name);
    }
}

#[test]
fn pure_crates_cannot_reach_the_operating_system() {
    let mut faults = Vec::new();
    for rule in RULES.iter().filter(|rule| rule.is_pure) {
        for package in rule.manifest().dependencies(false) {
            if NOT_PURE.contains(&package) {
                faults.push(format!(
                    "{} is pure, but depends on {package}: take what it gives as an \
                     argument instead",
                    rule.place()
                ));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn the_protocol_core_and_its_simulation_take_no_clock_socket_or_thread() {
    let mut faults = Vec::new();
    for name in ["proto", "testkit"] {
        for path in rust_files(&Rule::of(name).folder().join("src")) {
            let text = read(&path);
            for word in NOT_SANS_IO.iter().filter(|word| text.contains(**word)) {
                faults.push(format!(
                    "{} uses {word}: time and everything else from outside are arguments there, \
                     or a seed would not replay",
                    path.display()
                ));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn unsafe_code_is_forbidden_but_for_the_crates_that_call_the_system() {
    let mut faults = Vec::new();
    for rule in RULES {
        let roots = ["lib.rs", "main.rs"].map(|file| rule.folder().join("src").join(file));
        for root in roots.into_iter().filter(|root| root.exists()) {
            let forbids = read(&root).lines().any(|line| line == "#![forbid(unsafe_code)]");
            if !forbids && !rule.may_be_unsafe {
                faults.push(format!(
                    "{} must say #![forbid(unsafe_code)]; unsafe calls belong in crates/engine/sys, \
                     behind a safe type",
                    root.display()
                ));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let without = RULES.iter().filter(|rule| !rule.manifest().has("lints", "workspace"));
    let name = |rule: &Rule| format!("{}/Cargo.toml needs [lints] workspace = true", rule.place());
    assert_none(without.map(name).collect());

    let workspace = Manifest::read(&workspace().join("Cargo.toml"));
    for lint in ["undocumented_unsafe_blocks", "missing_safety_doc"] {
        assert!(workspace.has("workspace.lints.clippy", lint), "the workspace must deny {lint}");
    }
}

#[test]
fn what_is_published_is_complete_and_nothing_else_is_published() {
    let workspace = read(&workspace().join("Cargo.toml"));
    let version = workspace.lines().find(|line| line.starts_with("version = ")).unwrap();
    let mut faults = Vec::new();
    for rule in RULES {
        let text = read(&rule.folder().join("Cargo.toml"));
        let is_public = PUBLIC.contains(&rule.name);
        let publish = if is_public { "publish = true" } else { "publish.workspace = true" };
        let mut needs = vec![publish.to_owned()];
        if is_public {
            needs.extend(
                ["description = ", "license.workspace = true", "readme = \"README.md\""]
                    .map(str::to_owned),
            );
            needs.push("[package.metadata.docs.rs]".to_owned());
        }
        for need in needs {
            if !text.lines().any(|line| line.starts_with(&need)) {
                faults.push(format!("{}/Cargo.toml must say `{need}`", rule.place()));
            }
        }
        if !is_public {
            continue;
        }
        if !rule.place().starts_with("crates/engine/") {
            faults.push(format!("{} is public: its place is crates/engine", rule.place()));
        }
        if !read(&rule.folder().join("src/lib.rs")).contains("\n#![warn(missing_docs)]\n") {
            faults.push(format!("{}/src/lib.rs must say #![warn(missing_docs)]", rule.place()));
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !rule.folder().join(file).exists() {
                faults.push(format!("{} has no {file}; licences are links", rule.place()));
            }
        }
        // Files that the sources include must be packaged with the crate. Only tests include files from outside.
        for file in rust_files(&rule.folder().join("src")) {
            for included in read(&file).split("include_str!(\"").skip(1) {
                let path = file.parent().unwrap().join(included.split('"').next().unwrap());
                let path = path.canonicalize().unwrap_or(path);
                let within = path.strip_prefix(rule.folder().canonicalize().unwrap());
                let top = within.ok().and_then(|path| path.iter().next()?.to_str());
                if top.is_some_and(|top| !text.contains(&format!("\"/{top}\""))) {
                    faults.push(format!("{} is included and not packaged", path.display()));
                }
            }
        }
        // A registry knows no paths: it takes the version, and that of the others only.
        let in_workspace = format!("{{ {version}, path = \"{}\" }}", rule.place());
        if !workspace.lines().any(|line| line.ends_with(&in_workspace)) {
            faults.push(format!("the workspace must have `= {in_workspace}`"));
        }
        for folder in rule.manifest().dependencies(false).into_iter().filter_map(folder_of) {
            if !PUBLIC.contains(&folder) {
                faults.push(format!("{} is public and uses {folder}, which is not", rule.place()));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn no_file_is_too_long_to_read() {
    let lengths = rust_files(&crates()).into_iter().map(|path| (read(&path).lines().count(), path));
    let long = lengths.filter(|(lines, _)| *lines > LINES_MAX);
    assert_none(
        long.map(|(lines, path)| {
            format!(
                "{} has {lines} lines of at most {LINES_MAX}: split it by what its parts do",
                path.display()
            )
        })
        .collect(),
    );
}

#[test]
fn nothing_is_left_half_done() {
    let files = rust_files(&crates());
    assert!(files.len() > 50, "the walk found no more than {} files", files.len());
    let mut faults = Vec::new();
    for path in files {
        for (number, line) in read(&path).lines().enumerate() {
            for (head, tail, remedy) in BANNED {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    faults.push(format!("{}:{}: `{word}`: {remedy}", path.display(), number + 1));
                }
            }
        }
    }
    assert_none(faults);
}

/// The characters that steer a terminal are more than the control characters, and a second list would lack some.
#[test]
fn one_function_decides_which_characters_steer_a_terminal() {
    let word = ["is_", "control"].concat();
    let is_of_program = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "src");
    let files: Vec<PathBuf> = rust_files(&crates()).into_iter().filter(is_of_program).collect();
    assert!(files.len() > 50, "the walk found no more than {} files", files.len());
    let has_own = |path: &&PathBuf| read(path).contains(&word);
    let faults = files.iter().filter(has_own);
    assert_none(
        faults.map(|it| format!("{}: use `steers` of crates/engine/text", it.display())).collect(),
    );
}

#[test]
fn the_reader_of_manifests_sees_every_kind_of_dependency() {
    let manifest = Manifest::parse(
        "[package]\nname = \"x\"\n[dependencies]\n# a = 1\nb.workspace = true\n\
         c = { version = \"1\" }\n[dependencies.d]\nversion = \"1\"\n[build-dependencies]\ne = \"1\"\n\
         [target.'cfg(unix)'.dependencies]\nf = \"1\"\n[dev-dependencies]\n\"g\" = \"1\"\n\
         [lints]\nworkspace = true\n",
    );
    assert_eq!(manifest.dependencies(false), ["b", "c", "d", "e", "f"]);
    assert_eq!(manifest.dependencies(true), ["g"]);
    assert!(manifest.has("lints", "workspace") && !manifest.has("lints", "b"));
}
