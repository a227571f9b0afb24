//! Cost of sampling on a machine of 208 CPUs whose every counter moves: a separate process samples a copy of such a
//! machine, while this one keeps changing it.
//!
//! The copy lies in files, so that reading is as cheap as copying; `docs/sample.md` measures the kernel's cost of
//! making the text.
//!
//! CPU time differs between machines and with their other load. So the test compares two costs of the same moments:
//! that of the sampler, and that of a plain reader of the same files.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use polyrail_host::{Sysroot, fixtures};
use polyrail_sample::record::End;
use polyrail_sample::{Options, Record, Sampler, run};
use rustix::time::{ClockId, clock_gettime};

const CPUS: u32 = 208;
const THREADS: u32 = 64;
const PID: u32 = 4711;
const SAMPLES: u64 = 4;
const ROOT: &str = "POLYRAIL_TEST_ROOT";

/// Writes the state of the machine after `step` changes. Numbers keep their width, so that each
/// file is overwritten in one piece and never read half.
fn change(root: &Sysroot, irqs: &[String], step: u64) {
    let mut stat = String::from("cpu  1 0 1 1 0 0 1 0 0 0\n");
    let mut softnet = String::new();
    let mut softirqs = String::from("      ");
    let mut row = String::new();
    for cpu in 0..CPUS {
        let ticks = 1_000 + 30 * step;
        let _ = writeln!(stat, "cpu{cpu} {ticks:08} 0 {ticks:08} {ticks:08} 0 0 {ticks:08} 0 0 0");
        let packets = 5_000 * step;
        let _ = writeln!(
            softnet,
            "{packets:08x} 00000000 {step:08x}{} {cpu:08x} 00000000 00000000",
            " 00000000".repeat(9)
        );
        let _ = write!(softirqs, " CPU{cpu}");
        let _ = write!(row, " {:010}", 900 * step);
    }
    let _ = write!(softirqs, "\nNET_TX:{row}\nNET_RX:{row}\n");
    put(root, "/proc/stat", &stat);
    put(root, "/proc/net/softnet_stat", &softnet);
    put(root, "/proc/softirqs", &softirqs);
    for (at, irq) in irqs.iter().enumerate() {
        // As on a real machine, a vector fires on the few CPUs that it may go to.
        let count = |cpu: u32| if cpu as usize / 2 == at % 104 { 70_000 * step } else { 0 };
        let counts: Vec<String> = (0..CPUS).map(|cpu| format!("{:010}", count(cpu))).collect();
        put(root, &format!("/sys/kernel/irq/{irq}/per_cpu_count"), &counts.join(","));
    }
    for thread in 0..THREADS {
        let ticks = 40 * step;
        let text = format!(
            "{PID} (pr-rx{thread}) R 1 1 1 0 -1 0 1 0 0 0 {ticks:08} {ticks:08}{} 17 {thread} 0 0\n",
            " 0".repeat(22)
        );
        put(root, &format!("/proc/{PID}/task/{}/stat", PID + thread), &text);
    }
}

fn put(root: &Sysroot, path: &str, text: &str) {
    use std::os::unix::fs::FileExt;
    let path = root.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    if file.metadata().unwrap().len() != text.len() as u64 {
        file.set_len(0).unwrap();
    }
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

/// Main function of the sampling process. Before each sample a separate thread reads the same files
/// plainly.
fn sample(folder: &Path) {
    let root = Sysroot::at(folder);
    let files = files(&root);
    let options = Options { pids: vec![PID], ..Options::default() };
    let mut sampler = Sampler::open(&root, options).unwrap();
    let mut left = SAMPLES;
    let mut plain_us = 0;
    let pause = |time: Duration| {
        if left == 0 {
            return false;
        }
        left -= 1;
        // The sampler must run at its real pace, which affects its cost.
        thread::sleep(time);
        plain_us += thread::scope(|scope| scope.spawn(|| plain(&files)).join().unwrap());
        true
    };
    run(&mut sampler, &mut io::stderr().lock(), "standard error", pause).unwrap();
    eprintln!("{PLAIN}{plain_us}");
}

/// Prefix of the line in which the sampling process reports the plain reader's cost.
const PLAIN: &str = "plain reader, µs: ";

/// Returns the files that a sample reads.
fn files(root: &Sysroot) -> Vec<PathBuf> {
    let tables = ["/proc/stat", "/proc/net/softnet_stat", "/proc/softirqs"].map(String::from);
    let irqs = root.list("/sys/kernel/irq").unwrap();
    let irqs = irqs.iter().map(|irq| format!("/sys/kernel/irq/{irq}/per_cpu_count"));
    let threads = (0..THREADS).map(|thread| format!("/proc/{PID}/task/{}/stat", PID + thread));
    tables.into_iter().chain(irqs).chain(threads).map(|path| root.path(path)).collect()
}

/// Reads every file once and adds its numbers. Returns the CPU time of the calling thread, in µs.
fn plain(files: &[PathBuf]) -> u64 {
    let sum: u64 = files
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
            words.filter_map(|word| word.parse::<u64>().ok()).fold(0, u64::wrapping_add)
        })
        .fold(0, u64::wrapping_add);
    assert!(sum > 0, "the files have numbers");
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000 + u64::try_from(time.tv_nsec).unwrap() / 1_000
}

/// Other load on the machine can make one run more expensive than another, so the best run counts.
const RUNS: usize = 3;
/// Maximum cost of sampling, as a multiple of the plain reader's.
const MOST: f64 = 5.0;

#[test]
fn sampling_208_cpus_costs_little_more_than_reading_their_files_and_16_mib() {
    if let Some(folder) = env::var_os(ROOT) {
        return sample(Path::new(&folder));
    }
    let host = fixtures::a3_high();
    let costs: Vec<f64> = (0..RUNS).map(|_| sampled(&host)).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(least < MOST, "{costs:.2?} times the plain reader");
}

/// Samples the host in a separate process, while everything in the host changes. Returns the cost as a multiple of the
/// plain reader's CPU time.
fn sampled(host: &fixtures::Fixture) -> f64 {
    let root = host.root();
    let irqs = root.list("/sys/kernel/irq").unwrap();
    assert!(irqs.len() > 100, "five NICs have many vectors: {}", irqs.len());
    change(&root, &irqs, 1);
    let mut child = Command::new(env::current_exe().unwrap());
    child.env(ROOT, host.path()).args(["--exact", "--nocapture", "--quiet"]);
    child.arg("sampling_208_cpus_costs_little_more_than_reading_their_files_and_16_mib");
    // Records go to standard error, because standard output belongs to the test harness.
    let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let output = thread::spawn(|| child.wait_with_output());
    for step in 2.. {
        if output.is_finished() {
            break;
        }
        change(&root, &irqs, step);
        // Several changes fall into each interval of the sampler.
        thread::sleep(Duration::from_millis(200));
    }
    let output = output.join().unwrap().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");

    let records: Vec<Record> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let samples: Vec<_> = records
        .iter()
        .filter_map(|record| if let Record::Sample(sample) = record { Some(sample) } else { None })
        .collect();
    assert_eq!(samples.len() as u64, SAMPLES);
    assert!(samples.iter().all(|sample| sample.missing.is_empty()), "{text}");
    // On a busy machine the changes may come too late for some samples.
    let full = samples.iter().find(|sample| sample.cpus.len() as u32 == CPUS);
    let full = full.unwrap_or_else(|| panic!("no sample has all CPUs: {text}"));
    assert!(full.cpus.iter().all(|cpu| cpu.net_rx > 0 && cpu.packets > 0));
    assert_eq!(full.threads.len() as u32, THREADS);
    assert!(full.irqs.len() > 100, "{}", full.irqs.len());
    let Some(Record::End(End { cpu_percent, peak_rss_bytes: Some(rss), cpu_us, .. })) =
        records.last()
    else {
        panic!("no end: {text}")
    };
    let mib = *rss as f64 / (1 << 20) as f64;
    let plain = text.lines().find_map(|line| line.strip_prefix(PLAIN)?.parse::<u64>().ok());
    let plain_us = plain.unwrap_or_else(|| panic!("no cost of the plain reader: {text}"));
    let times = *cpu_us as f64 / plain_us as f64;
    println!(
        "{cpu_percent} % of a core ({cpu_us} µs for {SAMPLES} samples), {times:.2} times the plain reader's \
         {plain_us} µs, {mib:.1} MiB"
    );
    assert!(mib < 16.0, "{mib:.1} MiB");
    times
}
