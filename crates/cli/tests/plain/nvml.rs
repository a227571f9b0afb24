//! Locked clocks and busy GPUs, with a fake NVML that only logs its calls: no GPU is needed, and none is changed. The
//! test compiles the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use polyrail_gpu::{Identity, PciAddress};
use polyrail_profiler::{ClockLock, busy_devices};
use tempfile::TempDir;

use crate::common::polyrail;

/// Source of the fake NVML: all functions that are called.
const NVML: &str = r#"
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;

fn say(text: &str) {
    let log = std::env::var("FAKE_NVML_LOG").unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    file.write_all(format!("{text}\n").as_bytes()).unwrap();
}

fn refuses(what: &str) -> c_int {
    const NO_PERMISSION: c_int = 4;
    let refused = std::env::var("FAKE_NVML_REFUSES").is_ok_and(|refused| refused == what);
    if refused { NO_PERMISSION } else { 0 }
}

#[no_mangle] pub extern "C" fn nvmlInit_v2() -> c_int { 0 }
#[no_mangle] pub extern "C" fn nvmlShutdown() -> c_int { 0 }
#[no_mangle] pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    if code == 4 { c"Insufficient Permissions".as_ptr() } else { std::ptr::null() }
}
#[no_mangle] pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char, device: *mut *mut c_void) -> c_int {
    let name = unsafe { CStr::from_ptr(uuid) }.to_owned();
    unsafe { *device = name.into_raw().cast() };
    0
}
#[no_mangle] pub unsafe extern "C" fn nvmlDeviceSetGpuLockedClocks(
    device: *mut c_void, least: c_uint, most: c_uint) -> c_int {
    let name = unsafe { CStr::from_ptr(device.cast()) }.to_str().unwrap();
    let refused = refuses("lock");
    say(&format!("lock {name} {least} {most} {refused}"));
    refused
}
#[no_mangle] pub unsafe extern "C" fn nvmlDeviceResetGpuLockedClocks(device: *mut c_void) -> c_int {
    let name = unsafe { CStr::from_ptr(device.cast()) }.to_str().unwrap();
    say(&format!("reset {name}"));
    refuses(&format!("reset {name}"))
}

#[repr(C)]
pub struct ProcessInfo { pid: c_uint, used: u64, instance: c_uint, compute: c_uint }

/// Itself, and whom the test names.
#[no_mangle] pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    _: *mut c_void, count: *mut c_uint, processes: *mut ProcessInfo) -> c_int {
    const INSUFFICIENT_SIZE: c_int = 7;
    let room = unsafe { *count };
    unsafe { *count = 2 };
    if room < 2 {
        return INSUFFICIENT_SIZE;
    }
    let other = std::env::var("FAKE_NVML_PID").unwrap().parse().unwrap();
    for (place, pid) in [std::process::id(), other].into_iter().enumerate() {
        unsafe { processes.add(place).write(ProcessInfo { pid, used: 1, instance: 0, compute: 0 }) };
    }
    0
}
"#;

/// Set in processes that a test started to play its part.
const INSIDE: &str = "POLYRAIL_TEST_INSIDE";
const NAMES: [&str; 2] = ["GPU-one", "GPU-two"];

struct FakeNvml {
    dir: TempDir,
    log: PathBuf,
}

impl FakeNvml {
    fn build() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, log) = (dir.path().join("nvml.rs"), dir.path().join("log"));
        fs::write(&source, NVML).unwrap();
        let mut compiler = Command::new(option_env!("RUSTC").unwrap_or("rustc"));
        compiler.args(["--edition", "2021", "--crate-type", "cdylib", "-o"]);
        let built = compiler.arg(dir.path().join("libnvidia-ml.so.1")).arg(&source).output();
        let built = built.expect("the compiler that built this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { dir, log }
    }

    fn apply<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("LD_LIBRARY_PATH", self.dir.path()).env("FAKE_NVML_LOG", &self.log)
    }

    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the log has at least this many lines.
    fn log_of(&self, lines: usize) -> Vec<String> {
        let begin = Instant::now();
        while self.log().len() < lines {
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", self.log());
            // Polls: another process writes the log.
            std::thread::sleep(Duration::from_millis(10));
        }
        self.log()
    }

    /// Starts this test program again, as a separate process that plays this test's part.
    fn again(&self, test: &str) -> Command {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
        self.apply(&mut again);
        again
    }

    /// A process that holds a lock until it is killed.
    fn holder(&self) -> Command {
        self.again("nvml::a_process_that_holds_a_lock")
    }
}

fn guard() -> Command {
    polyrail(["profile", "--restore-clocks", &NAMES.join(",")])
}

fn locked(child: &mut Child, nvml: &FakeNvml) {
    let log = nvml.log_of(2);
    assert_eq!(log, ["lock GPU-one 1500 1500 0", "lock GPU-two 1500 1500 0"]);
    assert!(child.try_wait().unwrap().is_none(), "it holds the lock");
}

#[test]
fn another_process_on_a_gpu_is_named() {
    if std::env::var_os(INSIDE).is_some() {
        let pci = PciAddress { domain: 0, bus: 1, device: 0, function: 0 };
        let (index, name, uuid, memory_bytes) = (3, "x".into(), [7; 16], 1);
        let identity = Identity { index, name, pci, uuid, memory_bytes };
        for found in busy_devices(&[identity]) {
            println!("FOUND cuda:{} {} {:?}", found.device, found.pid, found.name);
        }
        return;
    }
    let nvml = FakeNvml::build();
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    // The process gets its name a moment after it was started.
    let name = || fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap();
    let start = Instant::now();
    while name() != "sleep\n" && start.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    let mut looks = nvml.again("nvml::another_process_on_a_gpu_is_named");
    let output = looks.env("FAKE_NVML_PID", other.id().to_string()).output().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("FOUND")).collect();
    assert_eq!(found, [format!("FOUND cuda:3 {} Some(\"sleep\")", other.id())], "and not itself");
}

/// Does nothing by itself: other tests start it as a separate process.
#[test]
fn a_process_that_holds_a_lock() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let names = NAMES.map(str::to_owned);
    match ClockLock::lock(guard(), &names, 1500) {
        Ok(lock) => {
            let until = Path::new(&std::env::var("FAKE_NVML_LOG").unwrap()).with_extension("end");
            let begin = Instant::now();
            while !until.exists() && begin.elapsed() < Duration::from_secs(60) {
                // Polls: another process makes the file.
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(lock);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn clocks_are_restored_when_it_is_over() {
    let nvml = FakeNvml::build();
    let mut holder = nvml.holder().spawn().unwrap();
    locked(&mut holder, &nvml);
    fs::write(nvml.log.with_extension("end"), "").unwrap();
    assert!(holder.wait().unwrap().success());
    assert_eq!(nvml.log()[2..], ["reset GPU-one", "reset GPU-two"]);
}

#[test]
fn clocks_are_restored_when_the_process_that_locked_them_is_killed() {
    let nvml = FakeNvml::build();
    let mut holder = nvml.holder().spawn().unwrap();
    locked(&mut holder, &nvml);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(nvml.log_of(4)[2..], ["reset GPU-one", "reset GPU-two"]);
}

#[test]
fn without_permission_nothing_is_locked_and_the_reason_is_told() {
    let nvml = FakeNvml::build();
    let output = nvml.holder().env("FAKE_NVML_REFUSES", "lock").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("can't lock the clocks at 1500 MHz: GPU-one")
    );
    assert!(error.to_lowercase().contains("permission"), "{error}");
    let log = nvml.log();
    assert_eq!(log[0], "lock GPU-one 1500 1500 4");
    assert!(!log.iter().any(|line| line.starts_with("lock GPU-two")), "{log:?}");
}

#[test]
fn a_device_that_refuses_leaves_no_other_locked() {
    let nvml = FakeNvml::build();
    let mut guard = guard();
    nvml.apply(&mut guard).env("FAKE_NVML_REFUSES", "reset GPU-one");
    let output = guard.stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(nvml.log(), ["reset GPU-one", "reset GPU-two"]);
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("can't restore the clocks: GPU-one"), "{error}");
}
