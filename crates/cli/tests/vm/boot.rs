//! Boots a kernel in QEMU and keeps the guest's output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::initramfs::Archive;

/// Kernel and console output of a guest.
pub(crate) struct Boot {
    kernel: String,
    text: String,
}

/// The reason why nothing can be booted here.
pub(crate) struct Missing(pub(crate) String);

/// Kernel modules, in the order in which they need each other. Kernels have some of them built in.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
];

/// The clock is declared unstable, so that the kernel need not patch code for it while all CPUs run. Mitigations for
/// real CPUs slow an emulated one down and protect nothing here. With random addresses, the emulator would translate
/// programs again each time. (Half of the time, together.)
const KERNEL_LINE: &str =
    "console=ttyS0 quiet panic=-1 oops=panic tsc=unstable mitigations=off norandmaps";
/// Attempts to boot a kernel on which the emulator failed.
const ATTEMPTS: u32 = 3;
/// Limit for a guest, in seconds. One that hangs must fail; one that runs next to other work is slow.
const LIMIT_S: u32 = 500;

impl Boot {
    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The time at which the guest printed this word, in seconds since its kernel started.
    pub(crate) fn at(&self, word: &'static str) -> f64 {
        let said = self.marked(word).next().and_then(|said| said.split(' ').next());
        let said = said.unwrap_or_else(|| panic!("the guest never said {word}:\n{}", self.text));
        said.parse().unwrap()
    }

    /// Lines that say when each scenario ended.
    pub(crate) fn times(&self) -> String {
        let lines = self.text.lines().filter(|line| line.ends_with(" s since boot"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Names of the scenarios that ended.
    pub(crate) fn scenarios(&self) -> Vec<&str> {
        let ended = |line: &'static str| self.marked(line).collect::<Vec<_>>();
        [ended("passed "), ended("failed ")].concat()
    }

    pub(crate) fn has_passed(&self, scenario: &str) -> bool {
        self.marked("passed ").any(|name| name == scenario)
    }

    /// Output of a failed scenario; the whole output if it did not end.
    pub(crate) fn about(&self, scenario: &str) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_end = |line: &&str| line.starts_with("@@ passed ") || line.starts_with("@@ failed ");
        let Some(end) = lines.iter().position(|line| *line == format!("@@ failed {scenario}"))
        else {
            return self.text.clone();
        };
        let begin = lines[..end].iter().rposition(is_end).map_or(0, |at| at + 1);
        lines[begin..=end].join("\n")
    }

    fn marked<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("@@ "));
        lines.filter_map(move |line| line.strip_prefix(word))
    }
}

/// Boots every kernel in the folder.
pub(crate) fn all() -> Result<Vec<Boot>, Missing> {
    let kernels = kernels()?;
    for program in ["qemu-system-x86_64", "ethtool", "ip", "unshare", "xz", "timeout"] {
        if find_program(program).is_none() {
            return Err(Missing(format!("{program} is not installed")));
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Missing("taps in a network namespace need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Missing("/dev/net/tun is not there".to_owned()));
    }
    let busybox = find_program("busybox").filter(|path| is_static(path));
    let busybox =
        busybox.ok_or_else(|| Missing("busybox is not installed, or not static".into()))?;
    Ok(kernels.iter().map(|kernel| boot_well(kernel, &busybox)).collect())
}

/// Boots again if the emulator failed. Failures of the guest's own programs are not retried.
fn boot_well(kernel: &Path, busybox: &Path) -> Boot {
    let mut last = boot(kernel, busybox);
    for _ in 1..ATTEMPTS {
        // While one CPU of the guest patches its kernel's code, another may hit the breakpoint that the patching kernel
        // has set and already removed: QEMU emulates CPUs with threads.
        if !last.text.contains("Oops: int3") {
            break;
        }
        println!("{}: the emulator lost a breakpoint of the kernel; once more", last.kernel);
        last = boot(kernel, busybox);
    }
    last
}

fn kernels() -> Result<Vec<PathBuf>, Missing> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/vm-kernel");
    let folder = std::env::var_os("VM_TEST_KERNELS").map_or(own, PathBuf::from);
    let entries = fs::read_dir(&folder);
    let entries = entries.map(|entries| entries.map(|entry| entry.unwrap().path()));
    let mut kernels: Vec<PathBuf> = match entries {
        Ok(paths) => paths.filter(|path| path.join("boot").is_dir()).collect(),
        Err(_) => Vec::new(),
    };
    kernels.sort();
    match kernels.is_empty() {
        true => Err(Missing("no kernel is there to boot".to_owned())),
        false => Ok(kernels),
    }
}

fn boot(kernel: &Path, busybox: &Path) -> Boot {
    let folder = tempfile::tempdir().unwrap();
    let initramfs = folder.path().join("initramfs");
    fs::write(&initramfs, archive(kernel, busybox)).unwrap();
    let disk = folder.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let boot_folder = fs::read_dir(kernel.join("boot")).unwrap();
    let images = boot_folder.map(|entry| entry.unwrap().path());
    let is_image =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("vmlinuz");
    let image = images.into_iter().find(is_image).unwrap();

    let taps: String = (0..4)
        .map(|nic| {
            format!(
                "ip tuntap add tap{nic} mode tap multi_queue && ip link set tap{nic} up && \
                 ip addr add 10.9.{nic}.1/24 dev tap{nic} && "
            )
        })
        .collect();
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c"])
        .arg(format!("{taps}exec timeout {LIMIT_S} qemu-system-x86_64 \"$@\""))
        .arg("sh")
        .args(machine(&disk))
        .arg("-kernel")
        .arg(&image)
        .arg("-initrd")
        .arg(&initramfs)
        .args(["-append", KERNEL_LINE])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // The firmware writes escape codes, and the console ends lines in its own way.
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let text = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let kernel = kernel.file_name().unwrap().to_str().unwrap().to_owned();
    Boot { kernel, text }
}

/// 16 CPUs on two nodes; two NICs with four queues on each node; a disk with managed vectors.
fn machine(disk: &Path) -> Vec<String> {
    let mut words: Vec<String> = "-machine q35 -accel tcg,thread=multi \
        -cpu max,vendor=GenuineIntel -smp 16,sockets=2,cores=4,threads=2 -m 2G \
        -nodefaults -no-reboot -display none -serial stdio \
        -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
        -numa node,nodeid=0,cpus=0-7,memdev=m0 -numa node,nodeid=1,cpus=8-15,memdev=m1 \
        -numa dist,src=0,dst=1,val=21 \
        -device pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=0x10,numa_node=0 \
        -device pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=0x40,numa_node=1"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    // Higher buses are found first: the guest's eth0 is the first one here, on node 1.
    for (nic, bus) in [1, 1, 0, 0].into_iter().enumerate() {
        let slot = nic + 1;
        words.extend([
            "-device".to_owned(),
            format!("pcie-root-port,id=rp{nic},bus=pxb{bus},chassis={slot},slot={slot}"),
            "-netdev".to_owned(),
            format!("tap,id=n{nic},ifname=tap{nic},script=no,downscript=no,queues=4,vhost=off"),
            "-device".to_owned(),
            format!(
                // The last NIC has an RSS table, which QEMU applies itself.
                "virtio-net-pci,netdev=n{nic},bus=rp{nic},mq=on,vectors=10,romfile=,\
                 mac=52:54:00:00:00:0{nic},rss={}",
                if nic == 3 { "on" } else { "off" }
            ),
        ]);
    }
    words.extend([
        "-drive".to_owned(),
        format!("if=none,id=d0,format=raw,file={}", disk.display()),
        "-device".to_owned(),
        // Without `bus`, QEMU would put it where only bridges may be.
        "virtio-blk-pci,drive=d0,bus=pcie.0,num-queues=4".to_owned(),
    ]);
    words
}

fn archive(kernel: &Path, busybox: &Path) -> Vec<u8> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "run", "tmp", "var"] {
        archive.add_folder(folder);
    }
    archive.add("init", include_bytes!("guest.sh"));
    archive.add("bin/busybox", &fs::read(busybox).unwrap());
    archive.add_program("bin/polyrail", Path::new(env!("CARGO_BIN_EXE_polyrail")));
    archive.add("experiment.yml", experiment().as_bytes());
    archive.add_program("bin/ethtool", &find_program("ethtool").unwrap());
    for (place, name) in MODULES.iter().enumerate() {
        if let Some(module) = module(&kernel.join("lib/modules"), name) {
            archive.add(&format!("modules/{place}-{name}.ko"), &module);
        }
    }
    archive.finish()
}

/// The shipped experiment, or the one that `VM_TEST_EXPERIMENT` names. Emulated CPUs are slow, so the shipped one is
/// reduced to a block of small cells.
fn experiment() -> String {
    if let Some(path) = std::env::var_os("VM_TEST_EXPERIMENT") {
        return fs::read_to_string(path).unwrap();
    }
    let smaller = [
        ("bench: ", "bench: --sizes 64KiB --iters 20 --warmup 1ms --rounds 1 --verify off"),
        ("  channels: ", ""),
        ("design: ", "design: one-at-a-time"),
        ("time: ", "time: 1s"),
    ];
    let ships = include_str!("../../../../experiments/irq-bindings.yml");
    let lines = ships.lines().map(|line| {
        let found = smaller.iter().find(|(start, _)| line.starts_with(start));
        found.map_or(line, |(_, smaller)| smaller)
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// The content of a kernel module, unpacked; `None` if it is built in.
fn module(folder: &Path, name: &str) -> Option<Vec<u8>> {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if let Some(found) = module(&path, name) {
                return Some(found);
            }
            continue;
        }
        let file = path.file_name().unwrap().to_str().unwrap();
        if file == format!("{name}.ko") {
            return Some(fs::read(&path).unwrap());
        }
        if file == format!("{name}.ko.xz") {
            let unpacked = Command::new("xz").arg("-dc").arg(&path).output().unwrap();
            assert!(unpacked.status.success(), "{} can't be unpacked", path.display());
            return Some(unpacked.stdout);
        }
    }
    None
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn is_static(program: &Path) -> bool {
    let listed = Command::new("ldd").arg(program).output();
    listed.is_ok_and(|listed| !String::from_utf8_lossy(&listed.stdout).contains("=>"))
}
