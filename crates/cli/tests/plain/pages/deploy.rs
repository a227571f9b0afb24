//! The files in `deploy`, and the pages about them: commands, variables, and the effects of the scripts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use polyrail::Config;
use polyrail_host::fixtures;
use polyrail_yaml::Node;

use super::{calls, refusal, shell};
use crate::common::{PROGRAM, repository, run, write_program};

/// Variables of NCCL, GPUDirect-TCPX and loaders that manifests and pages name and Polyrail does not read.
const OF_OTHERS: &[&str] = &[
    "LD_LIBRARY_PATH",
    "NCCL_ALGO",
    "NCCL_CROSS_NIC",
    "NCCL_DYNAMIC_CHUNK_SIZE",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV",
    "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME",
    "NCCL_P2P_NVL_CHUNKSIZE",
    "NCCL_P2P_PCI_CHUNKSIZE",
    "NCCL_P2P_PXN_LEVEL",
    "NCCL_PROTO",
];

fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|found| found == end));
    assert!(!found.is_empty(), "{folder} has no .{end}");
    found
}

/// The value of a key of a mapping.
fn at<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    node.map("").ok()?.iter().find(|entry| entry.name == key).map(|entry| &entry.node)
}

/// Calls `see` on this node and all nodes below it.
fn each<'a>(node: &'a Node, see: &mut dyn FnMut(&'a Node)) {
    see(node);
    node.map("").into_iter().flatten().for_each(|entry| each(&entry.node, see));
    node.list("").into_iter().flatten().for_each(|one| each(one, see));
}

/// Variables that `polyrail nccl env` prints for machines with eight GPUs.
fn nccl_env() -> BTreeMap<String, String> {
    let output = run(&["nccl", "env", "--conf", "--gpus", "8"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let pairs = text.lines().filter(|line| !line.starts_with('#'));
    pairs.filter_map(|line| line.split_once('=')).map(|(n, v)| (n.into(), v.into())).collect()
}

/// The variables that a container gets.
fn env(container: &Node) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for one in at(container, "env").and_then(|env| env.list("").ok()).into_iter().flatten() {
        let text = |key: &str| at(one, key).unwrap().text(key).unwrap().to_owned();
        assert!(found.insert(text("name"), text("value")).is_none(), "{} twice", text("name"));
    }
    found
}

#[test]
fn manifests_are_yaml_with_commands_and_variables_that_are_read() {
    let (mut commands, mut jobs) = (0, 0);
    for path in files("deploy/gke", "yaml") {
        let text = fs::read_to_string(&path).unwrap();
        let manifest = polyrail_yaml::parse(&text)
            .unwrap_or_else(|fault| panic!("{}: {fault}", path.display()))
            .unwrap();
        for key in ["apiVersion", "kind", "metadata", "spec"] {
            assert!(at(&manifest, key).is_some(), "{} lacks {key}", path.display());
        }
        each(&manifest, &mut |node| {
            let words = at(node, "command").and_then(|command| command.list("").ok());
            let words: Vec<String> =
                words.into_iter().flatten().map(|word| word.text("").unwrap().to_owned()).collect();
            if words.first().is_some_and(|program| program.ends_with("/polyrail")) {
                assert_eq!(refusal(&words[1..]), None, "{}: {words:?}", path.display());
                commands += 1;
            }
            let env = env(node);
            if env.is_empty() {
                return;
            }
            let unset = nccl_env().into_iter().find(|(name, value)| env.get(name) != Some(value));
            assert_eq!(unset, None, "{}: not as `polyrail nccl env` has it", path.display());
            let config = Config::builder().env_from(env).build();
            let config = config.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(config.rails, "=eth1,eth2,eth3,eth4");
            // NCCL uses another interface than the rails on purpose.
            let is_known = |text: &String| text.contains("hides env NCCL_SOCKET_IFNAME");
            assert!(config.warnings().iter().all(is_known), "{:?}", config.warnings());
            jobs += 1;
        });
    }
    assert_eq!((commands, jobs), (4, 1));
}

#[test]
fn variables_on_the_pages_and_in_the_files_are_settings_or_those_of_nccl() {
    let documented = fs::read_to_string(repository().join("docs/config.md")).unwrap();
    let printed = nccl_env();
    let paths =
        [files("docs/deploy", "md"), files("deploy/gke", "yaml"), files("deploy/slurm", "sh")];
    let paths = paths.concat().into_iter().chain(files("deploy/slurm", "sbatch"));
    let mut count = 0;
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let is_of_name = |one: char| one.is_ascii_uppercase() || one.is_ascii_digit() || one == '_';
        let names = text.split(|one| !is_of_name(one));
        for name in names.filter(|name| name.starts_with("NCCL_") || name.starts_with("POLYRAIL_"))
        {
            count += 1;
            let is_known = documented.contains(&format!("`{name}`"))
                || printed.contains_key(name)
                || OF_OTHERS.contains(&name);
            assert!(is_known, "{}: {name}", path.display());
        }
    }
    assert!(count > 30, "only {count} variables");
}

#[test]
fn commands_of_scripts_are_ones_that_the_program_reads() {
    let mut count = 0;
    for path in files("deploy/slurm", "sh").into_iter().chain(files("deploy/slurm", "sbatch")) {
        let checked = Command::new("bash").arg("-n").arg(&path).output().unwrap();
        assert!(checked.status.success(), "{}: {checked:?}", path.display());
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.contains("polyrail ") && !line.starts_with('#'))
        {
            let commands = shell::commands(line).unwrap();
            for words in calls(&commands) {
                assert_eq!(refusal(words), None, "{}: {line}", path.display());
                count += 1;
            }
        }
    }
    assert_eq!(count, 3);
}

#[test]
fn commands_of_the_unit_on_the_page_are_ones_that_the_program_reads() {
    let page = fs::read_to_string(repository().join("docs/deploy/bare-metal.md")).unwrap();
    let mut count = 0;
    for line in page.lines().filter(|line| line.starts_with("Exec")) {
        let commands = shell::commands(line.split_once('=').unwrap().1).unwrap();
        let own = calls(&commands);
        assert_eq!(own.len(), 1, "{line}");
        assert_eq!(refusal(own[0]), None, "{line}");
        count += 1;
    }
    assert_eq!(count, 4);
}

/// A node of Slurm: copies of the scripts with their files in a folder, and a machine to tune.
struct SlurmNode {
    folder: tempfile::TempDir,
    machine: fixtures::Fixture,
}

impl SlurmNode {
    fn new() -> Self {
        let (folder, machine) = (tempfile::tempdir().unwrap(), fixtures::mlx5_four_nodes());
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for script in ["prolog.sh", "epilog.sh"] {
            let text = fs::read_to_string(repository().join("deploy/slurm").join(script)).unwrap();
            let text = text
                .replace("/run/polyrail-jobs", &at("marks"))
                .replace("/var/log/polyrail-slurm.log", &at("log"))
                .replace("PATH=", &format!("PATH={}:", at("bin")));
            fs::write(at(script), text).unwrap();
        }
        machine.write("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        fs::create_dir(at("bin")).unwrap();
        let program = format!(
            "#!/bin/sh\necho \"$@\" >>{}\nexport POLYRAIL_STATE_DIR={}\nexec {} \"$@\" --sysroot {}\n",
            at("calls"),
            at("state"),
            PROGRAM,
            machine.path().display(),
        );
        write_program(at("bin/polyrail").as_ref(), &program);
        Self { folder, machine }
    }

    fn run(&self, script: &str, job: u32) {
        let output: Output = Command::new("sh")
            .arg(self.folder.path().join(script))
            .env("SLURM_JOB_ID", job.to_string())
            .output()
            .unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn largest_receive_window(&self) -> String {
        let file = self.machine.path().join("proc/sys/net/ipv4/tcp_rmem");
        fs::read_to_string(file).unwrap().split_whitespace().last().unwrap().to_owned()
    }
}

#[test]
fn the_first_job_of_a_node_tunes_it_and_the_last_one_undoes_that() {
    let node = SlurmNode::new();
    let before = node.largest_receive_window();
    node.run("epilog.sh", 7);
    assert_eq!(node.calls(), [""; 0], "job 7 has left no mark");
    node.run("prolog.sh", 8);
    let log = fs::read_to_string(node.folder.path().join("log")).unwrap();
    assert_eq!(node.largest_receive_window(), "33554432", "{log}");
    node.run("prolog.sh", 9);
    node.run("epilog.sh", 8);
    assert_eq!(node.largest_receive_window(), "33554432");
    node.run("epilog.sh", 9);
    assert_eq!(node.largest_receive_window(), before);
    node.run("epilog.sh", 9);
    assert_eq!(node.calls(), ["host apply tune throughput", "host undo tune throughput"]);
}

#[test]
fn a_node_that_cannot_be_tuned_takes_its_jobs() {
    let node = SlurmNode::new();
    write_program(&node.folder.path().join("bin/polyrail"), "#!/bin/sh\nexit 3\n");
    node.run("prolog.sh", 8);
    node.run("epilog.sh", 8);
    assert!(!node.folder.path().join("marks/job.8").exists());
}
