//! Machines built by code, and the machine that the test runs on.

use std::time::Duration;

use polyrail_host::{CacheKind, CpuSet, Distance, Sysroot, Topology, fixtures};
use rustix::time::{ClockId, clock_gettime};

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn best(topology: &Topology) -> Vec<Option<String>> {
    topology.choices().into_iter().map(|choice| choice.nic).collect()
}

#[test]
fn on_the_a3_high_each_pair_of_gpus_gets_the_interface_behind_its_switch() {
    let fixture = fixtures::a3_high();
    let root = fixture.root();
    // Measure CPU time: the cores of a test machine have other work, too, and nothing here waits for a disk.
    let cpu_time = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let took = (0..5).map(|_| {
        let start = cpu_time();
        let topology = Topology::read(&root).unwrap();
        let choices = topology.choices();
        assert_eq!((choices.len(), topology.matrix().len()), (8, 8));
        cpu_time() - start
    });
    let took = took.min().unwrap();
    let topology = Topology::read(&root).unwrap();
    let expected = ["eth1", "eth1", "eth2", "eth2", "eth3", "eth3", "eth4", "eth4"];
    assert_eq!(best(&topology), expected.map(|name| Some(name.to_owned())));
    assert!(topology.choices().iter().all(|choice| choice.distance == Some(Distance::Pix)));
    assert!(took < Duration::from_millis(50), "{took:?}");
    println!("topology of 208 CPUs in {took:?}");
}

#[test]
fn the_a3_high_has_the_distances_that_its_bus_has() {
    let fixture = fixtures::a3_high();
    let topology = Topology::read(&fixture.root()).unwrap();
    let row = |gpu: usize| -> Vec<&str> {
        topology.matrix()[gpu].iter().map(|distance| distance.unwrap().word()).collect()
    };
    let nics: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(nics, ["eth0", "eth1", "eth2", "eth3", "eth4"]);
    assert_eq!(row(0), ["NODE", "PIX", "NODE", "SYS", "SYS"]);
    assert_eq!(row(7), ["SYS", "SYS", "SYS", "NODE", "PIX"]);
    assert!(topology.unknown.is_empty(), "{:?}", topology.unknown);
}

#[test]
fn the_a3_high_has_its_cpus_caches_and_interfaces() {
    let fixture = fixtures::a3_high();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert_eq!(topology.cpus.online.len(), 208);
    assert_eq!(topology.cpus.siblings(8), cpus("8,112"));
    assert_eq!(topology.cpus.sibling_rule().as_deref(), Some("c, c+104"));
    assert_eq!(topology.node(1).unwrap().cpus, cpus("52-103,156-207"));
    assert_eq!(topology.node(0).unwrap().cpus, cpus("0-51,104-155"));
    assert_eq!(topology.node(0).unwrap().distances, [(0, 10), (1, 21)]);
    assert_eq!(topology.node(0).unwrap().memory_bytes, Some(983_547_904 * 1024));
    let shared: Vec<_> = topology.cpus.caches.iter().filter(|cache| cache.level == 3).collect();
    assert_eq!(shared.len(), 2);
    assert_eq!((shared[1].kind, &shared[1].cpus), (CacheKind::Unified, &cpus("52-103,156-207")));
    assert_eq!(shared[0].size_bytes, Some(105 << 20));
    assert_eq!(topology.cpus.caches.len(), 104 * 3 + 2);
    let eth3 = topology.nic("eth3").unwrap();
    assert_eq!((eth3.driver.as_deref(), eth3.node), (Some("gve"), Some(1)));
    assert_eq!((eth3.rx_queues, eth3.tx_queues, eth3.vectors.len()), (16, 16, 33));
    assert_eq!(eth3.vectors[16].name, "gve-ntfy-blk16@pci:0000:86:00.0");
    assert_eq!((eth3.vectors[16].index, eth3.speed_mbps), (Some(16), Some(200_000)));
    assert_eq!(topology.gpus[0].model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(topology.gpus[0].pci.switches(), ["0000:02:00.0".parse().unwrap()]);
    assert_eq!(topology.nic("eth0").unwrap().pci.as_ref().unwrap().switches(), []);
}

#[test]
fn a_node_that_the_machine_does_not_tell_stays_unknown() {
    let fixture = fixtures::unknown_nodes();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert!(topology.nics.iter().all(|nic| nic.node.is_none()));
    assert!(topology.gpus.iter().all(|gpu| gpu.node.is_none()));
    // Behind one host bridge the distance is known without the node; across two it is not.
    assert_eq!(topology.matrix(), [[Some(Distance::Phb); 2], [None; 2]]);
    assert_eq!(topology.cpus_near(None), None);
    assert_eq!(topology.unknown.len(), 4 + 2, "{:?}", topology.unknown);
    let choices = topology.choices();
    // Both interfaces are equally good for GPU 0, and GPU 1 gets the one that GPU 0 did not take.
    assert_eq!(best(&topology), [Some("eth0".to_owned()), Some("eth1".to_owned())]);
    assert!(choices[0].rivals[0].is_equal && choices[0].why.contains("eth1 as good"));
    assert_eq!(choices[1].distance, None);
}

#[test]
fn a_virtio_interface_is_placed_by_the_device_above_it() {
    let fixture = fixtures::cpu_holes();
    let topology = Topology::read(&fixture.root()).unwrap();
    let eth1 = topology.nic("eth1").unwrap();
    assert_eq!((eth1.node, eth1.driver.as_deref()), (Some(2), Some("virtio_net")));
    assert_eq!(eth1.address().unwrap().to_string(), "0000:00:04.0");
    assert_eq!(eth1.vectors.len(), 5);
    assert_eq!(eth1.vectors[1].name, "virtio4-input.0");
    assert_eq!(eth1.speed_mbps, None);
}

#[test]
fn cpus_that_are_offline_are_no_siblings_and_shift_nothing() {
    let fixture = fixtures::cpu_holes();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert_eq!(topology.cpus.online, cpus("0-1,4-8,10-11"));
    assert_eq!(topology.cpus.siblings(1), cpus("1"));
    assert_eq!(topology.cpus.siblings(8), cpus("0,8"));
    assert!(topology.cpus.siblings(2).is_empty());
    assert_eq!(topology.cpus.sibling_rule(), None);
    let ids: Vec<u32> = topology.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [0, 2]);
    assert_eq!(topology.cpus_near(Some(2)), Some(cpus("4-7")));
}

#[test]
fn four_cards_on_four_nodes_are_each_on_their_own() {
    let fixture = fixtures::mlx5_four_nodes();
    let topology = Topology::read(&fixture.root()).unwrap();
    let nodes: Vec<_> = topology.nics.iter().map(|nic| nic.node.unwrap()).collect();
    assert_eq!(nodes, [0, 1, 2, 3]);
    assert!(topology.gpus.is_empty() && topology.choices().is_empty());
    assert_eq!(topology.nics[2].vectors[0].name, "mlx5_async0@pci:0000:41:00.0");
    assert_eq!(topology.cpus.cores(&cpus("16-23,48-55")).len(), 8);
    assert_eq!(topology.cpus.vendor.as_deref(), Some("AuthenticAMD"));
}

#[test]
fn a_laptop_has_one_node_so_nothing_is_far() {
    let fixture = fixtures::laptop();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert_eq!(topology.virtual_interfaces, ["docker0", "lo"]);
    assert_eq!(topology.gpus.len(), 1);
    assert_eq!(topology.matrix(), [[Some(Distance::Phb)]]);
    assert_eq!(topology.cpus_near(None), Some(cpus("0-7")));
    assert!(!topology.nics[0].is_up());
    let choice = &topology.choices()[0];
    assert_eq!((&choice.nic, choice.why.as_str()), (&None, "no interface of a device is up"));
    assert!(topology.unknown.is_empty(), "{:?}", topology.unknown);
}

#[test]
fn a_container_shows_gpus_but_no_interface_of_theirs() {
    let fixture = fixtures::container();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert_eq!((topology.gpus.len(), topology.nics.len()), (8, 0));
    assert_eq!(topology.virtual_interfaces, ["eth0", "lo"]);
    assert!(topology.choices().iter().all(|choice| choice.nic.is_none()));
}

#[test]
fn interrupts_that_a_container_hides_are_nameless_and_no_error() {
    let fixture = fixtures::mlx5_four_nodes();
    // Docker masks a file like this.
    std::fs::write(fixture.path().join("proc/interrupts"), "").unwrap();
    let topology = Topology::read(&fixture.root()).unwrap();
    let vectors = &topology.nics[0].vectors;
    assert_eq!((vectors.len(), vectors[0].name.as_str(), vectors[0].index), (9, "", None));
    assert!(topology.unknown[0].contains("/proc/interrupts is hidden"), "{:?}", topology.unknown);
}

#[test]
fn five_hundred_cpus_and_no_nodes_are_both_read() {
    let fixture = fixtures::cpus_512();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert!(topology.node(3).unwrap().cpus.contains(511));
    assert_eq!(topology.cpus_near(topology.nics[0].node), Some(cpus("192-255,448-511")));
    let fixture = fixtures::no_nics();
    let topology = Topology::read(&fixture.root()).unwrap();
    assert!(
        topology.nodes.is_empty() && topology.nics.is_empty() && topology.cpus.caches.is_empty()
    );
    assert_eq!(topology.cpus_near(None), Some(cpus("0-1")));
    assert_eq!(topology.unknown.len(), 1);
}

#[test]
fn a_tree_without_cpus_is_an_error_and_nonsense_is_unknown_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Topology::read(&Sysroot::at(folder.path())).unwrap_err();
    assert!(error.is_absent() && error.to_string().contains("/sys/devices/system/cpu/online"));
    let fixture = fixtures::laptop();
    let before = Topology::read(&fixture.root()).unwrap();
    assert_eq!(before.unread, None);
    for (path, text, fault) in [
        ("/sys/devices/system/cpu/online", "", "cpu/online names no CPU"),
        ("/sys/devices/system/node/node0/cpulist", "0-", "node0/cpulist has the item `0-`"),
        ("/sys/devices/system/node/node0/distance", "10 x", "distance has `10 x`, not numbers"),
        ("/proc/interrupts", "what", "interrupts is not a table of interrupts: line 1"),
        ("/sys/class/net/enp0s31f6/mtu", "-5", "mtu has `-5`, which is no value"),
    ] {
        let right = fixture.root().read(path).unwrap();
        fixture.write(path, text);
        let topology = Topology::read(&fixture.root()).unwrap();
        let line = topology.unread.clone().unwrap();
        assert!(line.contains(fault) && topology.unknown.contains(&line), "{line}");
        assert_eq!(topology.cpus.online, before.cpus.online);
        fixture.write(path, &right);
    }
    assert_eq!(Topology::read(&fixture.root()).unwrap(), before);
}

/// Four NICs with `eth3` and `eth4` below `bond0`, which a VLAN uses, and `eth5` below a VLAN.
fn layered() -> fixtures::Fixture {
    let mut machine = fixtures::Machine::with_cpus(8).with_nodes(&[(0, "0-3"), (1, "4-7")]);
    for slot in 3..=6u32 {
        machine.devices.push(fixtures::Device {
            path: format!("pci0000:00/0000:00:{slot:02x}.0"),
            node: i32::from(slot < 5),
            class: 0x02_0000,
            interfaces: vec![format!("eth{slot}")],
            ..Default::default()
        });
    }
    for name in ["bond0", "bond0.205", "eth5.9"] {
        machine.virtual_interfaces.push(name.to_owned());
    }
    let fixture = machine.build();
    for (upper, lower) in
        [("bond0", "eth3"), ("bond0", "eth4"), ("bond0.205", "bond0"), ("eth5.9", "eth5")]
    {
        let folder = fixture.path().join("sys/class/net").join(upper);
        std::os::unix::fs::symlink(format!("../{lower}"), folder.join(format!("lower_{lower}")))
            .unwrap();
    }
    fixture
}

#[test]
fn an_interface_above_others_leads_to_the_cards_that_carry_its_packets() {
    let topology = Topology::read(&layered().root()).unwrap();
    let carriers = |name: &str| -> Vec<String> {
        topology.carriers(name).iter().map(|nic| nic.name.clone()).collect()
    };
    for name in ["bond0", "bond0.205"] {
        assert_eq!(carriers(name), ["eth3", "eth4"], "{name}");
    }
    assert_eq!((carriers("eth5.9"), carriers("eth6")), (vec!["eth5".into()], vec!["eth6".into()]));
    assert!(carriers("lo").is_empty() && carriers("none").is_empty());
    let rails: Vec<&str> = topology.nics.iter().map(|nic| topology.rail_of(&nic.name)).collect();
    assert_eq!(rails, ["bond0", "bond0", "eth5", "eth6"], "a VLAN takes nothing over");
    assert_eq!((topology.node_of("bond0"), topology.node_of("eth5.9")), (Some(1), Some(0)));
    let followed = topology.follow(&["bond0".to_owned(), "eth6".to_owned()]).unwrap();
    assert_eq!(followed.nics, ["eth3", "eth4", "eth6"]);
    assert_eq!(
        followed.notes,
        ["bond0 sends and receives by eth3 and eth4, whose queues count here"]
    );
    assert_eq!(topology.follow(&["lo".to_owned()]), Err("lo".to_owned()));
}

#[test]
fn suggestions_name_the_bond_and_not_its_members() {
    let topology = Topology::read(&layered().root()).unwrap();
    let names = |interfaces: &[&str]| -> Vec<String> {
        let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
        let options = polyrail_host::bindings::Options { interfaces, ..Default::default() };
        let suggestion = polyrail_host::bindings::suggest(&topology, &options);
        suggestion.tx.entries.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&[]), ["eth5", "eth6", "bond0"], "in the order of nodes");
    assert_eq!(names(&["bond0.205"]), ["bond0.205"]);
}

#[test]
fn links_between_interfaces_survive_a_snapshot() {
    let fixture = layered();
    let file = tempfile::NamedTempFile::new().unwrap();
    let answers = polyrail_host::snapshot::Answers::default();
    polyrail_host::snapshot::write(&fixture.root(), "copy", &answers, &file).unwrap();
    let replayed = polyrail_host::snapshot::open(file.path()).unwrap();
    assert_eq!(Topology::read(&replayed).unwrap(), Topology::read(&fixture.root()).unwrap());
}

#[test]
fn devices_across_two_switches_are_further_apart_than_behind_one() {
    let deep = |name: &str| format!("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:{name}");
    let mut machine = fixtures::Machine::with_cpus(2);
    for (path, class) in [
        (format!("{}/0000:03:00.0", deep("00.0")), 0x03_0200),
        (format!("{}/0000:04:00.0/0000:05:00.0/0000:06:00.0", deep("01.0")), 0x02_0000),
        (format!("{}/0000:08:00.0", deep("02.0")), 0x02_0000),
        ("pci0000:00/0000:00:02.0/0000:09:00.0".to_owned(), 0x02_0000),
    ] {
        let interfaces = match class {
            0x02_0000 => vec![format!("e{}", path.len())],
            _ => Vec::new(),
        };
        machine.devices.push(fixtures::Device { path, class, interfaces, ..Default::default() });
    }
    let fixture = machine.build();
    let topology = Topology::read(&fixture.root()).unwrap();
    let seen: Vec<_> = topology
        .nics
        .iter()
        .map(|nic| (nic.address().unwrap().bus, topology.distance(&topology.gpus[0], nic)))
        .map(|(bus, distance)| (bus, distance.unwrap().word()))
        .collect();
    assert_eq!(seen, [(0x09, "PHB"), (0x08, "PIX"), (0x06, "PXB")]);
    let nic = topology.nics[0].pci.as_ref().unwrap();
    assert_eq!(Distance::between((nic, None), (nic, None)), Some(Distance::Loc));
}

#[test]
fn nccl_gets_switches_gpus_and_interfaces_by_node() {
    let fixture = fixtures::a3_high();
    let xml = Topology::read(&fixture.root()).unwrap().nccl_xml();
    assert_eq!(xml.matches("<cpu numaid=").count(), 2);
    assert_eq!(xml.matches("class=\"0x060400\"").count(), 4);
    assert_eq!(xml.matches("class=\"0x030200\"").count(), 8);
    let switch = "    <pci busid=\"0000:02:00.0\" class=\"0x060400\">
      <pci busid=\"0000:04:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>
      <pci busid=\"0000:05:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>
      <pci busid=\"0000:06:00.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">
        <nic>
          <net name=\"eth1\" speed=\"200000\"/>
        </nic>
      </pci>
    </pci>
";
    assert!(xml.contains(switch), "{xml}");
    let affinity = "affinity=\"0000,00000000,0fffffff,ffffff00,00000000,000fffff,ffffffff\"";
    assert!(xml.contains(affinity), "{xml}");
    assert!(xml.contains("arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\""));
}

#[test]
fn this_machine_is_read() {
    let topology = Topology::read(&Sysroot::live()).unwrap();
    assert!(!topology.cpus.online.is_empty());
    let allowed = topology.allowed_cpus.as_ref().unwrap();
    assert!(!allowed.is_empty() && allowed.is_subset(&topology.cpus.possible));
    assert!(topology.virtual_interfaces.iter().any(|name| name == "lo"));
    for nic in &topology.nics {
        assert!(nic.rx_queues > 0, "{}", nic.name);
    }
}
