//! NVML's additions to a machine. Reports are plain data here, so no GPU is needed.

use std::fs;
use std::path::Path;

use polyrail_host::nvml::{self, GpuFacts, NvLink, NvLinkAccess, NvmlGpu, NvmlReport};
use polyrail_host::snapshot::Answers;
use polyrail_host::{GpuPath, PciAddress, Sysroot, Topology, fixtures, snapshot};

/// Returns a report about these GPUs, each with the ends of its links: `None` for a hidden switch.
fn report(gpus: &[(PciAddress, Vec<Option<PciAddress>>)]) -> NvmlReport {
    let gpus = gpus.iter().map(|(address, ends)| NvmlGpu {
        address: Some(*address),
        facts: GpuFacts {
            name: Some("NVIDIA H200".to_owned()),
            uuid: Some(format!("GPU-SECRET-{address}")),
            memory_bytes: Some(150_754_820_096),
            pcie_generation: Some(5),
            pcie_width_lanes: Some(16),
            ..GpuFacts::default()
        },
        nvlinks: Some(
            ends.iter().map(|end| NvLink { is_active: Some(true), remote: *end }).collect(),
        ),
        ..NvmlGpu::default()
    });
    NvmlReport {
        schema_version: nvml::SCHEMA_VERSION,
        driver_version: Some("570.86.15".to_owned()),
        cuda_version: Some("12.8".to_owned()),
        gpus: gpus.collect(),
        ..NvmlReport::default()
    }
}

fn addresses(topology: &Topology) -> Vec<PciAddress> {
    topology.gpus.iter().map(|gpu| gpu.pci.address).collect()
}

/// Returns a report in which each GPU has 18 links to switches that the virtual machine hides.
fn switched(topology: &Topology) -> NvmlReport {
    let hidden: PciAddress = "0000:ff:1f.0".parse().unwrap();
    let ends = |at: usize| vec![at.is_multiple_of(2).then_some(hidden); 18];
    let all = addresses(topology);
    report(&all.iter().enumerate().map(|(at, gpu)| (*gpu, ends(at))).collect::<Vec<_>>())
}

#[test]
fn links_to_switches_join_every_gpu_with_every_other() {
    let mut topology = Topology::read(&fixtures::a3_high().root()).unwrap();
    assert_eq!(topology.nvml, None);
    assert_eq!(topology.gpu_matrix()[0][1].unwrap().word(), "PIX");
    let mut report = switched(&topology);
    // GPU 3 has lost two links: every pair with it has only as many links as GPU 3 has.
    for link in report.gpus[3].nvlinks.as_mut().unwrap().iter_mut().take(2) {
        link.is_active = Some(false);
    }
    // The library has its own order.
    report.gpus.reverse();
    topology.add_nvml(&report);
    assert_eq!(topology.nvml.as_ref().unwrap().cuda_version.as_deref(), Some("12.8"));
    let matrix = topology.gpu_matrix();
    for (a, row) in matrix.iter().enumerate() {
        for (b, path) in row.iter().enumerate().filter(|(b, _)| *b != a) {
            let links = if a == 3 || b == 3 { 16 } else { 18 };
            assert_eq!(*path, Some(GpuPath::NvLink(links)), "GPU {a} to GPU {b}");
        }
    }
    assert_eq!(matrix[5][5].unwrap().word(), "LOC");
    let details = topology.gpus[3].details.as_ref().unwrap();
    assert_eq!(details.nvlinks_active, Some(16));
    assert_eq!(details.facts.memory_bytes, Some(150_754_820_096));
    let peer = details.nvlink_peers.as_ref().unwrap()[0];
    assert!(peer.gpu == 0 && peer.links == 16 && peer.is_switched, "{peer:?}");
    assert_eq!(topology.gpus[3].model.as_deref(), Some("NVIDIA H100 80GB HBM3"), "as before");
}

#[test]
fn direct_links_are_counted_by_pair_and_others_go_over_the_bus() {
    let mut topology = Topology::read(&fixtures::a3_high().root()).unwrap();
    let gpu = addresses(&topology);
    let pairs = report(&[
        (gpu[0], vec![Some(gpu[1]), Some(gpu[1]), Some(gpu[4])]),
        (gpu[1], vec![Some(gpu[0]), Some(gpu[0])]),
        (gpu[4], vec![Some(gpu[0])]),
    ]);
    topology.add_nvml(&pairs);
    let word = |a: usize, b: usize| {
        topology.gpu_path(&topology.gpus[a], &topology.gpus[b]).unwrap().word()
    };
    assert_eq!([word(0, 1), word(1, 0), word(0, 4), word(4, 0)], ["NV2", "NV2", "NV1", "NV1"]);
    assert_eq!([word(1, 4), word(0, 2), word(6, 7)], ["SYS", "NODE", "PIX"]);
    // GPUs that the library did not list count as unknown.
    assert_eq!(topology.gpus[2].details, None);
    let unlisted = topology.unknown.iter().filter(|line| line.contains("NVML does not list it"));
    assert_eq!(unlisted.count(), 5, "{:?}", topology.unknown);
}

#[test]
fn hidden_ends_are_no_way_to_a_gpu_that_the_driver_keeps_apart() {
    let mut topology = Topology::read(&fixtures::a3_high().root()).unwrap();
    let mut report = switched(&topology);
    let address = report.gpus[1].address.unwrap();
    report.gpus[0].nvlink_access.push(NvLinkAccess { address, is_possible: false });
    let address = report.gpus[2].address.unwrap();
    report.gpus[0].nvlink_access.push(NvLinkAccess { address, is_possible: true });
    topology.add_nvml(&report);
    let peers = topology.gpus[0].details.as_ref().unwrap().nvlink_peers.as_ref().unwrap();
    assert_eq!(peers.iter().map(|peer| peer.gpu).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
    assert_eq!((peers[0].is_accessible, peers[1].is_accessible), (Some(true), None));
}

#[test]
fn what_the_library_does_not_tell_stays_unknown() {
    let mut topology = Topology::read(&fixtures::a3_high().root()).unwrap();
    let first = addresses(&topology)[0];
    let bare = NvmlGpu { address: Some(first), ..NvmlGpu::default() };
    let nowhere = NvmlGpu {
        facts: GpuFacts { name: Some("without an address".to_owned()), ..GpuFacts::default() },
        ..NvmlGpu::default()
    };
    topology.add_nvml(&NvmlReport { gpus: vec![nowhere, bare], ..NvmlReport::default() });
    let details = topology.gpus[0].details.as_ref().unwrap();
    assert_eq!(details.facts, GpuFacts::default());
    assert_eq!((details.nvlinks_active, &details.nvlink_peers), (None, &None));
    assert_eq!(topology.gpu_matrix()[0][1].unwrap().word(), "PIX");

    let mut topology = Topology::read(&fixtures::a3_high().root()).unwrap();
    topology.add_nvml_absent(&"no library");
    assert_eq!(topology.unknown, ["memory, UUIDs and NVLinks of GPUs: no library"]);
    // An Intel GPU does not concern NVML.
    let mut laptop = Topology::read(&fixtures::laptop().root()).unwrap();
    let before = laptop.clone();
    laptop.add_nvml_absent(&"no library");
    assert_eq!(laptop, before);
}

#[test]
fn a_snapshot_replays_what_nvml_told_without_the_uuids() {
    let fixture = fixtures::a3_high();
    let mut topology = Topology::read(&fixture.root()).unwrap();
    let report = switched(&topology);
    topology.add_nvml(&report.redacted());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a3.tar");
    let archive = |path: &Path, root: &Sysroot, report: Option<&NvmlReport>| {
        snapshot::write(
            root,
            "a3",
            &Answers { nvml: report, ..Answers::default() },
            fs::File::create(path).unwrap(),
        )
        .unwrap()
    };
    archive(&path, &fixture.root(), Some(&report));
    let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    assert!(content.contains("NVIDIA H200") && !content.contains("SECRET"));
    let replayed = snapshot::open(&path).unwrap();
    assert_eq!(Topology::read(&replayed).unwrap(), topology);
    // A snapshot of a snapshot also has the report. A file with UUIDs loses them on the way.
    fixture.write(nvml::FILE, &report.to_json());
    for root in [&replayed, &fixture.root()] {
        let again = folder.path().join("again.tar");
        archive(&again, root, None);
        assert!(!String::from_utf8_lossy(&fs::read(&again).unwrap()).contains("SECRET"));
        assert_eq!(Topology::read(&snapshot::open(&again).unwrap()).unwrap(), topology);
    }
}
