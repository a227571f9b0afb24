//! Calls the plugin as NCCL's proxy thread does, by a harness in C with its own definition of the interface
//! (`harness/`). These tests build it and run it for every version, under the address sanitizer and under valgrind.
//! They are skipped without a C compiler, `make` or valgrind.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_sys::threads::thread_cpu_time;

/// Versions of the interface that the plugin exports.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;

/// Versions that run every case: the oldest and the newest.
const WHOLE: [u32; 2] = [6, 12];

/// Cases of the other versions: every function of their tables. Failures of an engine do not depend on the table.
const OF_TABLES: [&str; 14] = [
    "symbols",
    "properties",
    "sizes",
    "larger-receive",
    "zero",
    "optional",
    "depth",
    "ring",
    "alltoall",
    "self",
    "registration",
    "bad-handle",
    "contexts",
    "reload",
];

/// Maximum concurrent harnesses: each has several processes, but waits most of the time.
const AT_ONCE: usize = 4;

/// Rails of every test, independent of the machine's NICs.
const PLUGIN: (&str, &str) = ("POLYRAIL_RAILS", "127.0.0.1,127.0.0.2");

/// Held by the test whose harnesses run. Harnesses under valgrind would take the CPUs from others, which would distort
/// their measurements.
static TURN: Mutex<()> = Mutex::new(());

/// A harness and the libraries built with it.
struct Built {
    folder: PathBuf,
}

impl Built {
    fn plain() -> Result<&'static Self, String> {
        static BUILT: OnceLock<Result<Built, String>> = OnceLock::new();
        BUILT.get_or_init(|| Self::make("harness", &[])).as_ref().map_err(Clone::clone)
    }

    fn with_address_sanitizer() -> Result<Self, String> {
        Self::make("harness-asan", &["ASAN=1"])
    }

    /// Builds the harness. An error names a missing tool; a harness that can't be compiled is a failure.
    fn make(name: &str, variables: &[&str]) -> Result<Self, String> {
        for tool in ["make", "cc"] {
            has(tool)?;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut make = Command::new("make");
        make.args(["-j2", "-s", "-C"]).arg(harness_folder());
        make.arg(format!("OUT={}", folder.display())).args(variables);
        // The flags of a surrounding make are not meant for this one.
        let output = make.env_remove("MAKEFLAGS").output().expect("make was there just now");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make of the harness: {log}");
        assert!(log.is_empty(), "the compiler warns of the harness:\n{log}");
        Ok(Self { folder })
    }

    fn harness(&self) -> PathBuf {
        self.folder.join("nccl-harness")
    }

    /// A correct plugin, except for the injected fault.
    fn faulty(&self) -> String {
        text(&self.folder.join("libnccl-net-socketlike.so"))
    }
}

/// A run of the harness.
struct Job {
    name: String,
    command: Command,
}

impl Job {
    fn new(name: impl Into<String>, program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).envs([PLUGIN]);
        Self { name: name.into(), command }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Returns the failure, with all output.
    fn run(mut self) -> Option<String> {
        let output = match self.command.output() {
            Ok(output) => output,
            Err(error) => return Some(format!("{}: {error}", self.name)),
        };
        if output.status.success() {
            return None;
        }
        let mut text = format!("{}: {}\n", self.name, output.status);
        for stream in [&output.stdout, &output.stderr] {
            let _ = write!(text, "{}", String::from_utf8_lossy(stream));
        }
        Some(text)
    }
}

/// Maximum time of a call that posts or tests if all versions run at once. A call that waits for other threads takes
/// seconds. The 50 ms limit beside busy loops has its own test.
const POST_LIMIT_MS: &str = "250";

/// Runs all jobs, some at a time, and fails with the output of any failed one.
fn run_all(jobs: Vec<Job>) {
    let _turn = turn();
    run_at_once(jobs);
}

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_at_once(jobs: Vec<Job>) {
    let slots: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    let faults: Vec<String> = thread::scope(|scope| {
        let work = || {
            let mut faults = Vec::new();
            while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                let job = slot.lock().unwrap().take().expect("each index is given out once");
                faults.extend(job.run());
            }
            faults
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn harness_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("harness")
}

/// Library that NCCL would load. Cargo puts it beside the tests, without a hash in its name.
fn plugin() -> String {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libnccl_net_polyrail.so");
    assert!(path.exists(), "{} is not there", path.display());
    text(&path)
}

fn text(path: &Path) -> String {
    path.to_str().expect("target folders have names in UTF-8").to_owned()
}

fn has(tool: &str) -> Result<(), String> {
    match Command::new(tool).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no {tool}: {error}")),
    }
}

fn skipped(reason: &str) {
    polyrail_skip::skip(
        reason,
        "apt-get install gcc libc6-dev make valgrind && cargo test -p polyrail-nccl --test harness",
    );
}

#[test]
fn every_version_holds_its_cases() {
    let built = match Built::plain() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let (harness, plugin) = (built.harness(), plugin());
    let mut jobs: Vec<Job> = VERSIONS
        .map(|version| {
            let abi = version.to_string();
            let arguments = ["--abi", &abi, "--quick", "--post-limit-ms", POST_LIMIT_MS];
            let cases: &[&str] = if WHOLE.contains(&version) { &[] } else { &OF_TABLES };
            let arguments = [&[plugin.as_str()][..], &arguments, cases].concat();
            Job::new(format!("version {abi}"), &harness, &arguments)
        })
        .collect();
    let cases = ["properties", "sizes", "ring", "alltoall", "self", "contexts"];
    let fixed = [plugin.as_str(), "--quick", "--post-limit-ms", POST_LIMIT_MS];
    let arguments = [&fixed[..], &cases].concat();
    jobs.push(
        Job::new("a device for each NIC", &harness, &arguments).env("POLYRAIL_NCCL_DEVICES", "nic"),
    );
    run_all(jobs);
}

/// NCCL's own log continues separately, and a file that NCCL writes is not opened a second time.
#[test]
fn the_log_goes_to_the_file_of_our_settings_and_not_to_that_of_nccl() {
    let built = match Built::plain() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let (harness, plugin) = (built.harness(), plugin());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name));
    let job = || {
        Job::new("a log", &harness, &[&plugin, "--quick", "--abi", "11", "properties"])
            .env("POLYRAIL_LOG_LEVEL", "info")
            .env("POLYRAIL_LOG_FORMAT", "json")
    };
    let (ours, theirs) = (at("%p.log"), at("nccl.log"));
    run_all(vec![job().env("POLYRAIL_LOG_FILE", &ours), job().env("NCCL_DEBUG_FILE", &theirs)]);
    assert!(!Path::new(&theirs).exists());
    let mut lines = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let log = std::fs::read_to_string(file.unwrap().path()).unwrap();
        lines.extend(log.lines().map(str::to_owned));
    }
    let device = lines.iter().find(|line| line.contains("device ")).expect("a line per device");
    assert!(device.starts_with('{') && device.contains(r#""subsystem":"nccl""#), "{device}");

    let refused = job().env("POLYRAIL_LOG_FILE", &at(".")).run().expect("a folder is no file");
    assert!(refused.contains("is a folder; allowed: a file"), "{refused}");
}

/// Uses the variables of a job that used GPUDirect-TCPX.
#[test]
fn bindings_of_gpudirect_tcpx_give_sending_and_receiving_their_own_threads() {
    let built = match Built::plain() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let (harness, plugin) = (built.harness(), plugin());
    let arguments = [&plugin, "--quick", "--abi", "11", "properties", "ring"];
    let job = Job::new("bindings", &harness, &arguments);
    run_all(vec![
        job.env("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "lo:0-0")
            .env("NCCL_GPUDIRECTTCPX_RX_BINDINGS", "lo:1-1"),
    ]);
}

/// Shells that keep a CPU busy until this is dropped.
struct BusyLoops(Vec<std::process::Child>);

impl BusyLoops {
    fn start(count: usize) -> Self {
        // The loops also end with this process, which holds the other end of their input.
        let script = "while :; do :; done & read -r line; kill $!";
        let shell = || Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn();
        Self((0..count).map(|_| shell().expect("there is a shell")).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}

/// Estimates the number of busy loops of others from the CPU share of a thread that only computes. The best of ten
/// looks counts, because other tests compute at times.
fn busy_already(cpus: usize) -> usize {
    let look = || {
        let (begin, cpu) = (Instant::now(), thread_cpu_time());
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        (thread_cpu_time() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64()
    };
    let best = || (0..10).map(|_| look()).fold(0.0, f64::max);
    let shares: f64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(best)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    (cpus as f64 / shares - 1.0).round() as usize
}

/// NCCL's thread drives all connections, so one waiting call delays all of them. Waiting for a CPU that others use does
/// not count against a call; waiting after giving its CPU away does (`harness/calltime.c`).
#[test]
fn to_post_and_to_test_takes_50_ms_at_most_where_cpus_are_short() {
    let built = match Built::plain() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let (harness, plugin) = (built.harness(), plugin());
    let _turn = turn();
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    // Two loops for each CPU, including those of others.
    let _busy = BusyLoops::start(cpus * 2_usize.saturating_sub(busy_already(cpus)));
    for abi in ["9", "11"].repeat(3) {
        let fixed = [plugin.as_str(), "--quick", "--abi", abi, "--longest"];
        let arguments = [&fixed[..], &["--post-limit-ms", "50", "alltoall"]].concat();
        let fault = Job::new(format!("beside busy loops, version {abi}"), &harness, &arguments);
        assert_eq!(fault.run(), None);
    }
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let built = match Built::with_address_sanitizer() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let (harness, plugin) = (built.harness(), plugin());
    // Memory that is still in use when a process is killed looks lost to the others.
    let all = [plugin.as_str(), "--quick", "--patience", "2"];
    let orderly = [&all[..], &["sizes", "threads", "self", "contexts", "reload"]].concat();
    let job = |arguments: &[&str], options| {
        let name = format!("address sanitizer with {options}");
        Job::new(name, &harness, arguments).env("ASAN_OPTIONS", options)
    };
    run_all(vec![job(&all, "detect_leaks=0"), job(&orderly, "detect_leaks=1")]);

    let faulty = built.faulty();
    let faulty = job(&[&faulty, "--quick", "self"], "detect_leaks=0");
    let _turn = turn();
    let found = faulty.env("SOCKET_LIKE_FAULT", "frees-twice").run().unwrap_or_default();
    assert!(found.contains("attempting double-free"), "the sanitizer does not watch: {found}");
}

#[test]
fn valgrind_finds_nothing() {
    let built = match (has("valgrind"), Built::plain()) {
        (Ok(()), Ok(built)) => built,
        (Err(reason), _) | (_, Err(reason)) => return skipped(&reason),
    };
    let (harness, plugin) = (text(&built.harness()), plugin());
    let known = built.folder.join("known-to-valgrind.supp");
    std::fs::write(&known, known_to_valgrind()).unwrap();
    let known = format!("--suppressions={}", text(&known));
    let job = |library: &str, cases: &[&str]| {
        let options = ["-q", "--error-exitcode=99", &known];
        let case = [&*harness, library, "--quick", "--patience", "10"];
        let fixed = [&options[..], &case].concat();
        // Valgrind runs one thread of a process at a time, so a call waits for the other threads. That is not the
        // plugin's fault, and the kernel does not count it as waiting for a CPU.
        let limit = ["--post-limit-ms", "2000"];
        let arguments = [&fixed[..], &limit, cases].concat();
        let job = Job::new("valgrind", Path::new("valgrind"), &arguments);
        job.env("POLYRAIL_PEER_TIMEOUT_MS", "60000")
    };
    // Under valgrind a case takes half a minute on busy CPUs. The run with the address sanitizer has all cases.
    run_all(vec![
        job(&plugin, &["symbols", "properties", "self", "registration", "optional"]),
        job(&plugin, &["larger-receive", "threads"]),
    ]);

    let faulty = job(&built.faulty(), &["self"]).env("SOCKET_LIKE_FAULT", "reads-freed");
    let _turn = turn();
    let found = faulty.run().unwrap_or_default();
    assert!(found.contains("Invalid read"), "valgrind does not watch: {found}");
}

/// Valgrind treats the tags made by the cipher's assembly as uninitialised, though the other end opens the sealed data.
/// So it complains where they are compared, and where records are sent.
fn known_to_valgrind() -> String {
    let entry = |kind: &str, what: &str, function: &str| {
        format!("{{\n  tag\n  Memcheck:{kind}\n{what}  ...\n  fun:*{function}*\n  ...\n}}\n")
    };
    let pieces = (0..256).map(|piece| format!("sendmsg(msg.msg_iov[{piece}])"));
    let sent = pieces.chain(["socketcall.sendto(msg)".to_owned()]);
    let sent = sent.map(|sent| entry("Param", &format!("  {sent}\n"), "polyrail_sys"));
    entry("Cond", "", "verify_slices_are_equal") + &sent.collect::<String>()
}

/// The other tests prove little if the harness passes everything.
#[test]
fn the_harness_finds_each_fault_of_a_plugin() {
    let built = match Built::plain() {
        Ok(built) => built,
        Err(reason) => return skipped(&reason),
    };
    let script = harness_folder().join("self-test");
    run_all(vec![Job::new("self-test", &script, &[&text(&built.folder)])]);
}

/// Runs the tool that shows how NCCL's thread spends its time, with the harness in the role of NCCL.
#[test]
fn calls_to_the_plugin_are_noted_and_read() {
    let name = "calls_to_the_plugin_are_noted_and_read";
    let built = match (Built::plain(), has("python3")) {
        (Ok(built), Ok(())) => built,
        (Err(reason), _) | (_, Err(reason)) => return skipped(&reason),
    };
    // Each process keeps its last calls. If one had no CPU for long, the other's last calls are polls without a result,
    // and no message appears in both.
    let lines = ["receiving", "isend in process 0 until seen", "seen in process 1 until its next"];
    let mut said = String::new();
    let is_whole = (0..3).any(|_| {
        said = noted_calls(built, name);
        lines.iter().all(|line| said.contains(line))
    });
    assert!(is_whole, "not all of {lines:?} in\n{said}");
}

/// Runs once with its calls recorded, and returns the script's output.
fn noted_calls(built: &Built, name: &str) -> String {
    let notes = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&notes);
    std::fs::create_dir_all(&notes).unwrap();
    let library = text(&built.folder.join("libnccl-net-calls.so"));
    let options = "--bench --mode latency --abi 11 --sizes 8 --rounds 1 --time 0.3";
    let arguments = std::iter::once(library.as_str()).chain(options.split(' '));
    let job = Job::new("calls", &built.harness(), &arguments.collect::<Vec<_>>());
    let out = text(&notes.join("calls"));
    run_all(vec![job.env("CALLS_LIBRARY", &plugin()).env("CALLS_OUT", &out)]);

    let files: Vec<String> =
        std::fs::read_dir(&notes).unwrap().map(|entry| text(&entry.unwrap().path())).collect();
    assert_eq!(files.len(), 2, "one for each process: {files:?}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("measure/net_calls.py");
    let output = Command::new("python3").arg(script).args(&files).output().unwrap();
    let (said, faults) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{faults}");
    said.into_owned()
}
