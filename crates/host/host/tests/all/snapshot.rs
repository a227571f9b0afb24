//! Snapshots replay as the machine that they were taken of, and reveal nothing else.

use std::fs;
use std::io;
use std::process::Command;

use polyrail_host::snapshot::Answers;
use polyrail_host::{Sysroot, Topology, fixtures, snapshot};

fn archive_of(
    root: &Sysroot,
) -> (tempfile::TempDir, std::path::PathBuf, snapshot::SnapshotSummary) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.tar");
    let summary =
        snapshot::write(root, "machine", &Answers::default(), fs::File::create(&path).unwrap())
            .unwrap();
    (folder, path, summary)
}

#[test]
fn a_snapshot_replays_as_the_machine_it_was_taken_of() {
    for fixture in [fixtures::a3_high(), fixtures::cpu_holes(), fixtures::unknown_nodes()] {
        let (_folder, path, summary) = archive_of(&fixture.root());
        assert!(summary.files > 100 && summary.links > 3 && summary.bytes > 1000, "{summary:?}");
        let replayed = snapshot::open(&path).unwrap();
        let before = Topology::read(&fixture.root()).unwrap();
        assert_eq!(Topology::read(&replayed).unwrap(), before);
        // The files stay on the disk as long as a reader of the archive exists.
        let on_disk = replayed.on_disk("/").unwrap();
        assert_eq!(Topology::read(&Sysroot::at(&on_disk)).unwrap(), before);
        let clone = replayed.clone();
        drop(replayed);
        assert!(on_disk.is_dir());
        drop(clone);
        assert!(!on_disk.exists());
    }
}

#[test]
fn a_snapshot_of_this_machine_replays_and_holds_none_of_its_addresses() {
    let live = Sysroot::live();
    let (_folder, path, _) = archive_of(&live);
    let replayed = Topology::read(&snapshot::open(&path).unwrap()).unwrap();
    let mut now = Topology::read(&live).unwrap();
    now.allowed_cpus = None;
    assert_eq!(replayed.cpus, now.cpus);
    assert_eq!(replayed.nodes.len(), now.nodes.len());
    // Meanwhile, other tests make and remove virtual interfaces, but devices stay.
    assert_eq!(replayed.nics.len(), now.nics.len());
    assert_eq!(replayed.gpus, now.gpus);

    let content = fs::read(&path).unwrap();
    let mut secrets = Vec::new();
    for name in live.list("/sys/class/net").unwrap() {
        let address = live.read_optional(format!("/sys/class/net/{name}/address")).unwrap();
        secrets.extend(address.filter(|address| !address.starts_with("00:00:00:00:00")));
    }
    secrets.extend(live.read_optional("/proc/sys/kernel/random/boot_id").unwrap());
    secrets.extend(live.read_optional("/etc/machine-id").unwrap().filter(|id| !id.is_empty()));
    assert!(!secrets.is_empty());
    for secret in secrets {
        let is_there = content.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_there, "{secret} is in the archive");
    }
}

#[test]
fn addresses_uuids_and_keys_stay_out() {
    let fixture = fixtures::a3_high();
    fixture.write("/proc/sys/net/ipv4/tcp_fastopen_key", "SECRET-1");
    fixture.write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 33554432");
    let gpu = "/proc/driver/nvidia/gpus/0000:04:00.0/information";
    fixture.write(gpu, "Model: \t NVIDIA H100\nGPU UUID: \t GPU-SECRET-2\n");
    fixture.write("/sys/devices/pci0000:00/0000:00:0b.0/net/eth0/ifalias", "SECRET-3");
    fixture.write("/sys/class/dmi/id/product_serial", "SECRET-4");
    fixture.write("/sys/class/dmi/id/product_name", "a3-highgpu-8g");
    let (_folder, path, _) = archive_of(&fixture.root());
    let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    assert!(!content.contains("SECRET") && !content.contains("42:01:0a:80"));
    assert!(content.contains("NVIDIA H100") && content.contains("a3-highgpu-8g"));
    assert!(content.contains("33554432"));
}

#[test]
fn programs_and_control_groups_lose_their_names_and_keep_what_matters() {
    let fixture = fixtures::laptop();
    for (pid, name) in [(1, "secret-init"), (7, "irqbalance"), (8, "secret-job")] {
        fixture.write(&format!("/proc/{pid}/comm"), &format!("{name}\n"));
    }
    fixture.write("/proc/self/cgroup", "3:cpu:/secret/one\n0::/secret/two\n");
    fixture.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    fixture.write("/sys/fs/cgroup/secret/cpu.max", "max 100000\n");
    fixture.write("/sys/fs/cgroup/secret/two/cpu.max", "400000 100000\n");
    fixture.write("/sys/fs/cgroup/secret/two/cpu.stat", "nr_periods 10\n");
    fixture.write("/sys/fs/cgroup/secret/two/cgroup.procs", "4711\n");
    let (_folder, path, _) = archive_of(&fixture.root());
    assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("secret"));
    let root = snapshot::open(&path).unwrap();
    let text = |path: &str| root.read_optional(path).unwrap();
    assert_eq!(text("/proc/1/comm").as_deref(), Some("init"));
    assert_eq!(text("/proc/7/comm").as_deref(), Some("irqbalance"));
    assert_eq!(text("/proc/8/comm"), None);
    assert_eq!(text("/proc/self/cgroup").as_deref(), Some("3:cpu:/\n0::/group1/group2"));
    let group = "/sys/fs/cgroup/group1/group2";
    assert_eq!(text(&format!("{group}/cpu.max")).as_deref(), Some("400000 100000"));
    assert_eq!(text(&format!("{group}/cpu.stat")).as_deref(), Some("nr_periods 10"));
    assert_eq!(text("/sys/fs/cgroup/group1/cpu.max").as_deref(), Some("max 100000"));
}

#[test]
fn what_an_archive_lacks_is_absent_and_named_with_the_archive() {
    let (_folder, path, _) = archive_of(&fixtures::laptop().root());
    let root = snapshot::open(&path).unwrap();
    assert!(!root.is_live() && root.root() == path);
    assert_eq!(root.read_optional("/proc/none").unwrap(), None);
    assert!(root.list_optional("/sys/none").unwrap().is_empty() && !root.exists("/etc/passwd"));
    let error = root.read("/proc/none").unwrap_err();
    assert!(error.is_absent() && error.to_string().contains("machine.tar/proc/none"), "{error}");
    // Names are sorted by the numbers in them, like those of folders.
    assert_eq!(
        root.list("/proc/irq").unwrap(),
        fixtures::laptop().root().list("/proc/irq").unwrap()
    );
}

#[test]
fn a_folder_opens_as_it_is_and_anything_else_is_refused() {
    let fixture = fixtures::laptop();
    assert_eq!(snapshot::open(fixture.path()).unwrap().root(), fixture.path());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "no archive, but long enough to be taken for a header ".repeat(30)).unwrap();
    for path in [&path, &folder.path().join("missing")] {
        let error = snapshot::open(path).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(error.help().unwrap().contains("host snapshot"));
        assert!(!error.to_string().contains("long enough"), "it quotes the file: {error}");
    }
    fs::write(&path, []).unwrap();
    assert!(snapshot::open(&path).unwrap_err().to_string().contains("no folder in it holds sys"));
    let nothing = Sysroot::at(folder.path());
    assert!(snapshot::write(&nothing, "x", &Answers::default(), io::sink()).is_err());
}

#[test]
fn an_archive_that_leads_out_of_its_folder_does_not_get_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil.tar");
    let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, "machine/sys", folder.path()).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    tar.append_data(&mut header, "machine/sys/planted", b"evil".as_slice()).unwrap();
    tar.finish().unwrap();
    assert!(snapshot::open(&path).is_err());
    assert!(!folder.path().join("planted").exists());
}

#[test]
fn lstopo_opens_a_snapshot_and_sees_the_same_machine() {
    if Command::new("lstopo-no-graphics").arg("--version").output().is_err() {
        return polyrail_skip::skip("lstopo is not installed", "apt-get install hwloc-nox");
    }
    let fixture = fixtures::a3_high();
    let (_folder, path, _) = archive_of(&fixture.root());
    let replayed = snapshot::open(&path).unwrap();
    let output = Command::new("lstopo-no-graphics")
        .arg("-i")
        .arg(replayed.on_disk("/").unwrap())
        .args(["--of", "xml", "--filter", "io:all"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let xml = String::from_utf8(output.stdout).unwrap();
    assert_eq!(xml.matches("type=\"PU\"").count(), 208);
    assert_eq!(xml.matches("type=\"Core\"").count(), 104);
    assert_eq!(xml.matches("<object type=\"NUMANode\"").count(), 2);
    assert_eq!(xml.matches("type=\"L3Cache\"").count(), 2);
    // Devices that hwloc puts behind one bridge are at distance PIX: the depth of the XML shows it.
    let topology = Topology::read(&fixture.root()).unwrap();
    for choice in topology.choices() {
        let gpu = topology.gpus[choice.gpu].pci.address.to_string();
        let nic = choice.nic.unwrap();
        let address = topology.nic(&nic).unwrap().address().unwrap().to_string();
        assert_eq!(switch_in(&xml, &gpu), switch_in(&xml, &address), "GPU {gpu} and {nic}");
        assert!(xml.contains(&format!("name=\"{nic}\"")));
    }
    assert_ne!(switch_in(&xml, "0000:04:00.0"), switch_in(&xml, "0000:0c:00.0"));
}

/// Returns the upstream port of the innermost switch above a device: the bridge above the bridge above it.
fn switch_in(xml: &str, address: &str) -> Option<String> {
    let mut above: Vec<Option<String>> = Vec::new();
    for line in xml.lines().map(str::trim) {
        if line.starts_with("<object ") {
            let id = line.split_once("pci_busid=\"").map(|(_, rest)| rest[..12].to_owned());
            if id.as_deref() == Some(address) {
                return above.get(above.len().checked_sub(2)?)?.clone();
            }
            if !line.ends_with("/>") {
                above.push(id);
            }
        } else if line == "</object>" {
            above.pop();
        }
    }
    None
}
