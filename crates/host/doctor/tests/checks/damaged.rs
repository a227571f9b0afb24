//! Runs every tool on machines with damaged files; each tool must return a result.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_doctor::{Context, Options, examine};
use polyrail_host::bindings::{self, Facts, suggest};
use polyrail_host::fixtures::{self, Device, Fixture, Machine};
use polyrail_host::snapshot::{self, Answers};
use polyrail_host::{Sysroot, Topology};
use polyrail_tune::irq::{self, Policy, PolicyOptions};
use polyrail_tune::profile::{self, Profile};
use polyrail_tune::{SysMachine, TuneError};

const INTERRUPTS: &str = "/proc/interrupts";

/// Runs the library of `host show`, `host plan`, `host snapshot` and `doctor`.
fn every_tool(root: &Sysroot) -> Result<Topology, String> {
    let said = |error: &dyn std::error::Error| error.to_string();
    let topology = Topology::read(root).map_err(|error| said(&error))?;
    suggest(&topology, &bindings::Options::default());
    Facts::read(root).map_err(|error| said(&error))?;
    let mut machine = SysMachine::new(root.clone());
    // Without the table of interrupts, there is nothing to show or plan.
    let has_table = |error: String| match error.contains(INTERRUPTS) {
        true => Ok(()),
        false => Err(error),
    };
    let shown = irq::show(root, &topology, &[], Duration::ZERO).map(drop);
    shown.or_else(|error| has_table(error.to_string()))?;
    let options = PolicyOptions::default();
    let planned = irq::plan(&mut machine, &topology, Policy::Numa, &options).map(drop);
    planned.or_else(|error: TuneError| has_table(error.to_string()))?;
    let profile = Profile::named("throughput").map_err(|error| said(&error))?;
    profile::plan(&mut machine, &topology, &profile, &[]).map_err(|error| said(&error))?;
    let context = Context::read(root, Options::default()).map_err(|error| said(&error))?;
    examine(&context);
    snapshot::write(root, "copy", &Answers::default(), io::sink()).map_err(|error| said(&error))?;
    Ok(topology)
}

type Damage = fn(&Path) -> io::Result<()>;

/// Damaged files that copies of machines have instead of a file that the kernel wrote.
const DAMAGES: &[(&str, Damage)] = &[
    ("empty", |path| fs::write(path, "")),
    ("NUL at the end", |path| {
        let mut text = fs::read(path)?;
        text.push(0);
        fs::write(path, text)
    }),
    ("not UTF-8", |path| fs::write(path, b"\xff\xfe\x80\n")),
    ("negative", |path| fs::write(path, "-1\n")),
    ("huge", |path| fs::write(path, "99999999999999999999\n")),
    ("a label with a slash", |path| fs::write(path, "CPU0 CPU1\n I/O: 1 2 x/y\n 1 2\n")),
    ("missing", |path| fs::remove_file(path)),
    ("a folder", |path| fs::remove_file(path).and_then(|()| fs::create_dir(path))),
    ("a link to nowhere", |path| fs::remove_file(path).and_then(|()| symlink("none", path))),
    // Reading the path fails with ELOOP, which stands for EIO and EACCES: a file that can't be read.
    ("unreadable", |path| {
        fs::remove_file(path)?;
        symlink(path.file_name().unwrap_or_default(), path)
    }),
];

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() {
            files_below(&path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

fn card(slot: u32, node: i32, driver: &'static str, names: &[&str]) -> Device {
    Device {
        path: format!("pci0000:00/0000:00:{slot:02x}.0"),
        node,
        class: 0x02_0000,
        vendor: 0x15b3,
        id: 0x1021,
        driver,
        interfaces: vec![format!("eth{slot}")],
        speed_mbps: 100_000,
        queues: 2,
        vectors: names.iter().map(|name| ((*name).to_owned(), 1)).collect(),
        link: Some(("16.0 GT/s PCIe", 16)),
        ..Device::default()
    }
}

fn small_machine() -> Fixture {
    let mut machine = Machine::with_cpus(4).with_nodes(&[(0, "0-1"), (1, "2-3")]);
    machine.devices.push(card(3, 0, "ice", &["ice-eth3-TxRx-0", "ice-0000:00:03.0:misc"]));
    machine.devices.push(card(4, 1, "sfc", &["eth4-0"]));
    machine.build()
}

#[test]
fn each_file_damaged_in_each_way_ends_no_tool() {
    let fixture = small_machine();
    let before = every_tool(&fixture.root()).unwrap();
    assert_eq!(before.unread, None);
    let mut files = Vec::new();
    files_below(fixture.path(), &mut files);
    assert!(files.len() > 100, "{}", files.len());
    for file in files {
        let content = fs::read(&file).unwrap();
        for (name, damage) in DAMAGES {
            damage(&file).unwrap();
            let result = every_tool(&fixture.root());
            let shown = file.display();
            assert!(result.is_ok(), "{shown}, {name}: {}", result.err().unwrap_or_default());
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir(&file));
            fs::write(&file, &content).unwrap();
        }
    }
    assert_eq!(every_tool(&fixture.root()).unwrap(), before);
}

#[test]
fn a_damaged_file_of_any_kind_of_machine_ends_no_tool() {
    for (number, kind) in fixtures::kinds().into_iter().enumerate() {
        // The largest machines have nothing that the others lack.
        if kind.cpus > 100 || kind.nics > 100 {
            continue;
        }
        let fixture = kind.build();
        let mut files = Vec::new();
        files_below(fixture.path(), &mut files);
        files.sort_unstable();
        let (what, damage) = DAMAGES[number % DAMAGES.len()];
        let file = &files[number * 7919 % files.len()];
        damage(file).unwrap();
        let result = every_tool(&fixture.root());
        let (shown, name) = (file.display(), kind.name);
        assert!(result.is_ok(), "{name}, {shown}, {what}: {}", result.err().unwrap_or_default());
    }
    for (name, build) in fixtures::ALL {
        assert!(every_tool(&build().root()).is_ok(), "{name}");
    }
}
