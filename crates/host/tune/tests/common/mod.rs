//! A machine made of files that injects faults.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_host::fixtures::{Device, Fixture, Machine as Shape};
use polyrail_host::{Sysroot, Topology};
use polyrail_tune::irq::{Policy, PolicyOptions};
use polyrail_tune::{Disk, Fault, Machine, Plan, RealDisk, Step, SysMachine, Target, VectorId};

/// The effect of a write to one vector.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// The file can't even be opened.
    Closed(i32),
    /// The write fails with this code.
    Fails(i32),
    /// The write fails this many times, then works.
    FailsTimes(i32, usize),
    /// The write reports success, and changes nothing.
    Ignored,
}

/// The files of a fixture with faults, by the names of handlers.
pub(crate) struct Shaky {
    inner: SysMachine,
    pub(crate) troubles: BTreeMap<String, Trouble>,
    /// Whether interrupts arrive at their new CPUs at once.
    pub(crate) moves: bool,
    /// Panics before the write of this number, as if the process were killed there.
    pub(crate) dies_at: Option<usize>,
    pub(crate) writes: usize,
    /// Total time that the code asked to wait; the tests never wait.
    pub(crate) paused: Duration,
}

impl Shaky {
    pub(crate) fn new(root: Sysroot) -> Self {
        Self {
            inner: SysMachine::new(root),
            troubles: BTreeMap::new(),
            moves: true,
            dies_at: None,
            writes: 0,
            paused: Duration::ZERO,
        }
    }

    pub(crate) fn with(mut self, action: &str, trouble: Trouble) -> Self {
        self.troubles.insert(action.to_owned(), trouble);
        self
    }

    fn trouble(&self, target: &Target) -> Option<Trouble> {
        let Target::Irq(id) = target else { return None };
        self.troubles.get(&id.action).copied()
    }

    fn fault(&mut self, target: &Target, step: Step, code: i32) -> Fault {
        let source = io::Error::from_raw_os_error(code);
        Fault { what: self.inner.place(target), step, source, said: None }
    }
}

impl Machine for Shaky {
    fn read(&mut self, target: &Target) -> Result<Option<String>, Fault> {
        self.inner.read(target)
    }

    fn write(&mut self, target: &Target, value: &str) -> Result<(), Fault> {
        assert_ne!(self.dies_at, Some(self.writes), "killed");
        self.writes += 1;
        match self.trouble(target) {
            Some(Trouble::Closed(code)) => return Err(self.fault(target, Step::Open, code)),
            Some(Trouble::Fails(code)) => return Err(self.fault(target, Step::Write, code)),
            Some(Trouble::FailsTimes(code, times)) if times > 0 => {
                let Target::Irq(id) = target else { unreachable!("troubles are of vectors") };
                self.troubles.insert(id.action.clone(), Trouble::FailsTimes(code, times - 1));
                return Err(self.fault(target, Step::Write, code));
            }
            Some(Trouble::Ignored) => return Ok(()),
            _ => {}
        }
        self.inner.write(target, value)?;
        if self.moves && matches!(target, Target::Irq(_)) {
            let place = PathBuf::from(self.inner.place(target));
            let effective = place.with_file_name("effective_affinity_list");
            fs::write(self.inner.root().path(effective), format!("{value}\n")).unwrap();
        }
        Ok(())
    }

    fn try_open(&mut self, target: &Target) -> Result<(), Fault> {
        match self.trouble(target) {
            Some(Trouble::Closed(code)) => Err(self.fault(target, Step::Open, code)),
            _ => self.inner.try_open(target),
        }
    }

    fn effective(&mut self, vector: &VectorId) -> Result<Option<String>, Fault> {
        self.inner.effective(vector)
    }

    fn place(&mut self, target: &Target) -> String {
        self.inner.place(target)
    }

    fn root(&self) -> &Sysroot {
        self.inner.root()
    }

    fn pause(&mut self, duration: Duration) {
        self.paused += duration;
    }
}

/// A machine that stores the values of some targets itself: those of drivers and programs, which
/// are not in files.
pub(crate) struct Standin {
    pub(crate) inner: Shaky,
    pub(crate) is_mine: fn(&Target) -> bool,
    pub(crate) values: BTreeMap<Target, String>,
    /// The errno with which every write to a stored value fails, if set.
    pub(crate) refuses: Option<i32>,
    /// Whether writes are accepted and ignored.
    pub(crate) ignores: bool,
    /// Targets of all writes, in order.
    pub(crate) log: Vec<Target>,
}

impl Standin {
    pub(crate) fn new(root: Sysroot, is_mine: fn(&Target) -> bool) -> Self {
        let (values, log) = (BTreeMap::new(), Vec::new());
        Self { inner: Shaky::new(root), is_mine, values, refuses: None, ignores: false, log }
    }

    pub(crate) fn with(mut self, target: Target, value: &str) -> Self {
        self.values.insert(target, value.to_owned());
        self
    }

    pub(crate) fn value(&self, target: &Target) -> Option<&str> {
        self.values.get(target).map(String::as_str)
    }
}

impl Machine for Standin {
    fn read(&mut self, target: &Target) -> Result<Option<String>, Fault> {
        match (self.is_mine)(target) {
            true => Ok(self.values.get(target).cloned()),
            false => self.inner.read(target),
        }
    }

    fn write(&mut self, target: &Target, value: &str) -> Result<(), Fault> {
        self.log.push(target.clone());
        if !(self.is_mine)(target) {
            return self.inner.write(target, value);
        }
        if let Some(code) = self.refuses {
            return Err(self.inner.fault(target, Step::Write, code));
        }
        if !self.ignores {
            self.values.insert(target.clone(), value.to_owned());
        }
        Ok(())
    }

    fn try_open(&mut self, target: &Target) -> Result<(), Fault> {
        match (self.is_mine)(target) {
            true => Ok(()),
            false => self.inner.try_open(target),
        }
    }

    fn effective(&mut self, vector: &VectorId) -> Result<Option<String>, Fault> {
        self.inner.effective(vector)
    }

    fn place(&mut self, target: &Target) -> String {
        self.inner.place(target)
    }

    fn root(&self) -> &Sysroot {
        self.inner.root()
    }

    fn pause(&mut self, duration: Duration) {
        self.inner.pause(duration);
    }
}

/// A disk that is full after this many bytes.
pub(crate) struct FullDisk {
    pub(crate) left: usize,
}

impl Disk for FullDisk {
    fn make_folder(&mut self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)
    }

    fn create(&mut self, path: &Path) -> io::Result<fs::File> {
        RealDisk.create(path)
    }

    fn append(&mut self, file: &mut fs::File, bytes: &[u8]) -> io::Result<()> {
        let fits = bytes.len().min(self.left);
        self.left -= fits;
        // The part that fits is written, as on a real disk.
        RealDisk.append(file, &bytes[..fits])?;
        match fits == bytes.len() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(28)),
        }
    }
}

/// 16 CPUs on two nodes with two threads per core, `eth1` on node 0 and `eth10` on node 1 with four
/// queues each, and a disk.
pub(crate) fn two_nics(first_irq: u32) -> Fixture {
    let nodes = [(0, "0-3,8-11"), (1, "4-7,12-15")];
    let mut shape = Shape::with_cpus(16).with_siblings(8).with_nodes(&nodes);
    shape.first_irq = first_irq;
    for (node, (bus, name)) in
        [("0000:10:00.0", "eth1"), ("0000:40:00.0", "eth10")].iter().enumerate()
    {
        let mut vectors = vec![(format!("virtio{node}-config"), 0)];
        for queue in 0..4 {
            vectors.push((format!("virtio{node}-input.{queue}"), queue));
            vectors.push((format!("virtio{node}-output.{queue}"), queue));
        }
        shape.devices.push(Device {
            path: format!("pci0000:{}/{bus}", &bus[5..7]),
            node: node as i32,
            class: 0x02_0000,
            vendor: 0x1af4,
            id: 0x1041,
            driver: "virtio_net",
            interfaces: vec![(*name).to_owned()],
            child: format!("virtio{node}"),
            speed_mbps: -1,
            queues: 4,
            vectors,
            ..Device::default()
        });
    }
    shape.devices.push(Device {
        path: "pci0000:00/0000:00:03.0".to_owned(),
        node: -1,
        class: 0x01_0000,
        vendor: 0x1af4,
        id: 0x1042,
        driver: "virtio_blk",
        child: "virtio9".to_owned(),
        vectors: vec![("virtio9-config".to_owned(), 0), ("virtio9-req.0".to_owned(), 1)],
        ..Device::default()
    });
    named(shape.build(), "fixture", "1f0c0b52-0000-4000-8000-000000000001")
}

/// Gives a machine a name and a boot.
pub(crate) fn named(fixture: Fixture, hostname: &str, boot_id: &str) -> Fixture {
    fixture.write("/proc/sys/kernel/hostname", &format!("{hostname}\n"));
    fixture.write("/proc/sys/kernel/random/boot_id", &format!("{boot_id}\n"));
    fixture.write("/proc/sys/kernel/osrelease", "6.12.0\n");
    fixture
}

/// Makes a plan by policy, for all interfaces.
pub(crate) fn plan_of(machine: &mut dyn Machine, policy: Policy) -> Plan {
    let topology = Topology::read(machine.root()).unwrap();
    polyrail_tune::irq::plan(machine, &topology, policy, &PolicyOptions::default()).unwrap()
}

/// Reads every file below `/proc/irq` and `/sys/class/net`, except those in which the kernel only
/// reports.
pub(crate) fn files(root: &Sysroot) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    collect(&root.path("/proc/irq"), &mut found);
    collect(&root.path("/proc/sys"), &mut found);
    found.retain(|path, _| !path.to_string_lossy().contains("effective_affinity"));
    found
}

fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, found),
            false => {
                found.insert(path.clone(), fs::read_to_string(&path).unwrap());
            }
        }
    }
}
