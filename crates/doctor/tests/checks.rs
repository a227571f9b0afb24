//! Runs each check on a healthy host, where it stays silent, and on a host with a single fault,
//! where it fires. The hosts are folders of files.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_doctor::{
    CHECKS, CheckReport, CoalesceProbe, Context, NicProbe, OffloadsProbe, Options, PluginProbe,
    Probes, Report, RingProbe, RouteProbe, Status, examine, plan_fix,
};
use polyrail_host::fixtures::{self, Device, Fixture, Machine};
use polyrail_host::{CpuSet, Sysroot};
use polyrail_tune::{ApplyOptions, RealDisk, StateDir, SysMachine, Target, Which, apply, reset};

/// A host before it is written.
struct Setup {
    machine: Machine,
    files: BTreeMap<String, String>,
    probes: Probes,
    options: Options,
}

const NICS: [&str; 2] = ["eth0", "eth1"];
const FIRST_IRQ: u32 = 24;

/// Two nodes of eight CPUs, a NIC and a GPU at each, all as it should be.
fn well() -> Setup {
    let mut machine = Machine::with_cpus(16).with_nodes(&[(0, "0-7"), (1, "8-15")]);
    machine.first_irq = FIRST_IRQ;
    for node in 0..2u32 {
        let address = format!("0000:{}0:00.0", node + 1);
        let vectors =
            (0..4).map(|at| (format!("mlx5_comp{at}@pci:{address}"), 8 * node + at)).collect();
        let bridge = format!("pci0000:{}0/0000:{}0:01.0", node, node);
        machine.devices.push(Device {
            path: format!("{bridge}/{address}"),
            node: node as i32,
            class: 0x02_0000,
            vendor: 0x15b3,
            id: 0x101d,
            driver: "mlx5_core",
            interfaces: vec![NICS[node as usize].into()],
            speed_mbps: 100_000,
            queues: 4,
            vectors,
            link: Some(("16.0 GT/s PCIe", 16)),
            ..Device::default()
        });
        machine.devices.push(Device {
            path: format!("{bridge}/0000:{}1:00.0", node + 1),
            node: node as i32,
            class: 0x03_0200,
            vendor: 0x10de,
            id: 0x2330,
            driver: "nvidia",
            link: Some(("32.0 GT/s PCIe", 16)),
            model: "NVIDIA H100",
            ..Device::default()
        });
    }
    let mut files = BTreeMap::new();
    let mut put = |path: String, text: &str| {
        files.insert(path, text.to_owned());
    };
    for (path, text) in FILES {
        put((*path).into(), text);
    }
    for cpu in 0..16 {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        put(format!("{folder}/cpufreq/scaling_governor"), "performance");
        put(format!("{folder}/cpufreq/scaling_driver"), "acpi-cpufreq");
        for (state, name, latency) in [(0, "POLL", "0"), (1, "C1", "2"), (2, "C6", "170")] {
            put(format!("{folder}/cpuidle/state{state}/name"), name);
            put(format!("{folder}/cpuidle/state{state}/latency"), latency);
            let is_deep = if state == 2 { "1" } else { "0" };
            put(format!("{folder}/cpuidle/state{state}/disable"), is_deep);
        }
    }
    let mut nics = BTreeMap::new();
    let mut routes = Vec::new();
    for (node, nic) in NICS.iter().enumerate() {
        put(format!("/sys/class/net/{nic}/flags"), "0x1003");
        for (file, value) in
            [("rp_filter", "2"), ("arp_ignore", "0"), ("arp_announce", "0"), ("arp_filter", "0")]
        {
            put(format!("/proc/sys/net/ipv4/conf/{nic}/{file}"), value);
        }
        for queue in 0..4 {
            let mask = format!("{:x}", 1 << (8 * node + queue));
            put(format!("/sys/class/net/{nic}/queues/tx-{queue}/xps_cpus"), &mask);
        }
        put(
            format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"),
            "512",
        );
        let ring = |now, max| Some(RingProbe { now, max: Some(max) });
        let probe = NicProbe {
            queues: ring(4, 4),
            queues_setting: "combined".into(),
            rx_ring: ring(1024, 8192),
            tx_ring: ring(1024, 8192),
            tcp_data_split: Some(2),
            coalesce: Some(CoalesceProbe { rx_usecs: Some(8), adaptive_rx: Some(true) }),
            offloads: Some(OffloadsProbe {
                tso: true,
                gso: true,
                gro: true,
                tx_checksum: true,
                rx_checksum: true,
            }),
            ntuple_rules: Some(0),
            ..NicProbe::default()
        };
        nics.insert((*nic).into(), probe);
        routes.push(RouteProbe {
            nic: (*nic).into(),
            source: format!("10.0.{node}.2").parse().unwrap(),
            destination: format!("10.0.{node}.1").parse().unwrap(),
            leaves_by: Some((*nic).into()),
        });
    }
    let workers = Some(CpuSet::parse_list("4-7,12-15").unwrap());
    Setup {
        machine,
        files,
        probes: Probes { nics, routes, ..Probes::default() },
        options: Options { workers, devmem: true, ..Options::default() },
    }
}

const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                      eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
                      eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
                      eth1 0001000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";

const FILES: &[(&str, &str)] = &[
    ("/proc/1/comm", "systemd"),
    ("/proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:    1024\n"),
    (
        "/proc/net/netstat",
        "TcpExt: ListenOverflows TCPMemoryPressures TCPRcvQDrop TCPBacklogDrop RcvPruned OfoPruned\nTcpExt: 0 0 0 0 0 0\n",
    ),
    ("/proc/net/route", ROUTES),
    ("/proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 100000000 100000000 5000\n"),
    ("/proc/self/cgroup", "0::/job\n"),
    (
        "/proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax open files    65536  65536  files\nMax locked memory    unlimited  unlimited  bytes\n",
    ),
    ("/proc/self/status", "CapEff:\t0000000000003000\nSeccomp:\t0\nCpus_allowed_list:\t0-15\n"),
    ("/proc/sys/kernel/hostname", "well"),
    ("/proc/sys/kernel/io_uring_disabled", "0"),
    ("/proc/sys/kernel/numa_balancing", "0"),
    ("/proc/sys/kernel/osrelease", "6.17.3"),
    ("/proc/sys/kernel/perf_event_paranoid", "2"),
    ("/proc/sys/net/core/default_qdisc", "fq_codel"),
    ("/proc/sys/net/core/netdev_budget", "300"),
    ("/proc/sys/net/core/netdev_max_backlog", "1000"),
    ("/proc/sys/net/core/optmem_max", "131072"),
    ("/proc/sys/net/core/somaxconn", "4096"),
    ("/proc/sys/net/ipv4/conf/all/arp_announce", "0"),
    ("/proc/sys/net/ipv4/conf/all/arp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/all/arp_ignore", "0"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
    ("/proc/sys/net/ipv4/tcp_congestion_control", "cubic"),
    ("/proc/sys/net/ipv4/tcp_mem", "100000 200000 400000"),
    ("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 33554432"),
    ("/proc/sys/net/ipv4/tcp_sack", "1"),
    ("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0"),
    ("/proc/sys/net/ipv4/tcp_timestamps", "1"),
    ("/proc/sys/net/ipv4/tcp_window_scaling", "1"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304"),
    ("/proc/sys/net/netfilter/nf_conntrack_count", "100"),
    ("/proc/sys/net/netfilter/nf_conntrack_max", "262144"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
    ("/sys/fs/cgroup/cgroup.controllers", "cpu memory"),
    ("/sys/fs/cgroup/job/cpu.max", "max 100000"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
];

impl Setup {
    fn put(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), text.into());
    }

    fn without(&mut self, prefix: &str) {
        self.files.retain(|path, _| !path.starts_with(prefix));
    }

    /// Sends the vectors of a NIC, which is 0 or 1, to these CPUs.
    fn vectors(&mut self, nic: usize, cpus: [u32; 4]) {
        let vectors = &mut self.machine.devices[2 * nic].vectors;
        for (vector, cpu) in vectors.iter_mut().zip(cpus) {
            vector.1 = cpu;
        }
    }

    fn nic(&mut self, name: &str) -> &mut NicProbe {
        self.probes.nics.get_mut(name).unwrap()
    }

    fn build(&self) -> (Fixture, Context) {
        let host = self.machine.build();
        for (path, text) in &self.files {
            host.write(path, text);
        }
        self.probes.save(&host.root()).unwrap();
        let context = Context::read(&host.root(), self.options.clone()).unwrap();
        (host, context)
    }

    fn report(&self) -> Report {
        let (_host, context) = self.build();
        examine(&context)
    }
}

fn ids(report: &Report, status: Status) -> BTreeSet<String> {
    report.with(status).map(|check| check.id.clone()).collect()
}

fn find<'a>(report: &'a Report, id: &str) -> &'a CheckReport {
    report.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no check {id}"))
}

/// A fault: the check that must fire, the checks that may fire, too, and how to cause it.
type Fault = (&'static str, &'static [&'static str], fn(&mut Setup));

const FAULTS: &[Fault] = &[
    ("gpu-without-driver", &[], |s| s.machine.devices[1].driver = ""),
    ("pcie-link-degraded", &[], |s| {
        s.put("/sys/bus/pci/devices/0000:10:00.0/current_link_width", "8");
    }),
    ("numa-node-unknown", &[], |s| s.machine.devices[0].node = -1),
    ("gpu-nic-balance", &[], |s| {
        s.machine.devices.push(Device {
            path: "pci0000:50/0000:50:00.0".into(),
            node: 1,
            class: 0x03_0200,
            vendor: 0x10de,
            driver: "nvidia",
            link: Some(("32.0 GT/s PCIe", 16)),
            ..Device::default()
        });
        s.options.interfaces = NICS.map(String::from).to_vec();
    }),
    ("link-down", &[], |s| s.put("/sys/class/net/eth1/operstate", "down")),
    ("speed-mismatch", &[], |s| s.machine.devices[2].speed_mbps = 40_000),
    ("mtu-mismatch", &[], |s| s.put("/sys/class/net/eth1/mtu", "4200")),
    ("mtu-small", &[], |s| {
        s.put("/sys/class/net/eth0/mtu", "1500");
        s.put("/sys/class/net/eth1/mtu", "1500");
    }),
    // Two NICs on one subnet answer for each other, too, and no policy rule fixes it.
    ("one-subnet", &["arp-flux"], |s| {
        s.put("/proc/net/route", &ROUTES.replace("0001000A", "0000000A"));
        s.probes.routes.clear();
    }),
    ("wrong-nic-route", &[], |s| s.probes.routes[1].leaves_by = Some("eth0".into())),
    ("rp-filter-strict", &[], |s| s.put("/proc/sys/net/ipv4/conf/eth0/rp_filter", "1")),
    ("arp-flux", &[], |s| s.put("/proc/net/route", &ROUTES.replace("0001000A", "0000000A"))),
    ("irq-one-cpu", &[], |s| s.vectors(1, [9, 9, 9, 9])),
    ("irq-shared-cpu", &[], |s| s.vectors(1, [9, 9, 10, 10])),
    ("irq-off-node", &[], |s| {
        s.vectors(1, [6, 9, 10, 11]);
        s.options.workers = None;
    }),
    ("irq-gve-pattern", &["irq-shared-cpu"], |s| {
        s.machine.devices[0].driver = "gve";
        s.machine.devices[2].driver = "gve";
        s.put("/proc/sys/kernel/osrelease", "6.12.5");
        s.options.devmem = false;
        // Queues of one CPU each, both directions, at node 0.
        s.vectors(0, [0, 1, 0, 1]);
    }),
    ("irq-nics-share-cpu", &[], |s| {
        s.machine.devices[2].node = 0;
        s.vectors(1, [3, 4, 5, 6]);
        s.options.workers = None;
    }),
    ("irq-on-worker", &[], |s| s.options.workers = Some(CpuSet::range(3, 5))),
    ("irqbalance-active", &[], |s| s.put("/proc/77/comm", "irqbalance")),
    ("queues-below-max", &[], |s| {
        s.nic("eth0").queues = Some(RingProbe { now: 4, max: Some(63) });
    }),
    ("single-queue", &[], |s| {
        s.machine.devices[0].queues = 1;
        s.without("/sys/class/net/eth0/queues");
        s.nic("eth0").queues = Some(RingProbe { now: 1, max: Some(1) });
    }),
    ("rings-small", &[], |s| s.nic("eth1").rx_ring = Some(RingProbe { now: 256, max: Some(8192) })),
    ("nic-drops", &[], |s| {
        s.put("/proc/net/dev", &net_dev("1000000 1000 0 400", "2000000 1000 0 0"));
        s.nic("eth0").drops.insert("rx_out_of_buffer".into(), 400);
    }),
    ("nic-errors", &[], |s| s.put("/proc/net/dev", &net_dev("1000000 1000 55 0", "9 9 0 0"))),
    ("coalescing-off", &[], |s| {
        let off = CoalesceProbe { rx_usecs: Some(0), adaptive_rx: Some(false) };
        s.nic("eth0").coalesce = Some(off);
    }),
    ("offloads-off", &[], |s| s.nic("eth1").offloads.as_mut().unwrap().gro = false),
    ("backlog-drops", &[], |s| s.put("/proc/net/softnet_stat", &softnet("000000ff", "00000000"))),
    ("receive-budget", &[], |s| s.put("/proc/net/softnet_stat", &softnet("00000000", "00000fff"))),
    ("conntrack-full", &[], |s| s.put("/proc/sys/net/netfilter/nf_conntrack_count", "262000")),
    ("tcp-features-off", &[], |s| s.put("/proc/sys/net/ipv4/tcp_sack", "0")),
    ("tcp-receive-buffer", &[], |s| s.put("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 1048576")),
    ("tcp-send-buffer", &[], |s| s.options.rtt = std::time::Duration::from_millis(1)),
    ("bbr-without-fq", &[], |s| s.put("/proc/sys/net/ipv4/tcp_congestion_control", "bbr")),
    ("tcp-retransmits", &[], |s| {
        s.put("/proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 1000000 1000000 5000\n");
    }),
    ("listen-overflows", &[], |s| {
        s.put("/proc/net/netstat", &netstat("7 0 0"));
        s.put("/proc/sys/net/core/somaxconn", "128");
    }),
    ("tcp-memory-pressure", &[], |s| s.put("/proc/net/netstat", &netstat("0 3 0"))),
    ("receive-queue-drops", &[], |s| s.put("/proc/net/netstat", &netstat("0 0 5000"))),
    ("slow-start-after-idle", &[], |s| {
        s.put("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1");
    }),
    ("cpu-governor", &[], |s| {
        s.put("/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave");
    }),
    ("cpu-steal", &[], |s| s.put("/proc/stat", "cpu 1000 0 1000 9000 0 0 0 500\ncpu0 1 1 1 1\n")),
    ("cgroup-throttled", &[], |s| {
        s.put("/sys/fs/cgroup/job/cpu.max", "400000 100000");
        s.put("/sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods 1000\nnr_throttled 300\n");
    }),
    ("cpuset-off-node", &[], |s| {
        s.put("/proc/self/status", &FILES_STATUS.replace("0-15", "0-7"));
    }),
    ("clock-slow", &[], |s| {
        s.put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
    }),
    ("cpu-deep-idle", &[], |s| {
        s.put("/sys/devices/system/cpu/cpu5/cpuidle/state2/disable", "0");
    }),
    ("numa-balancing", &[], |s| s.put("/proc/sys/kernel/numa_balancing", "1")),
    ("rps-on", &[], |s| s.put("/sys/class/net/eth0/queues/rx-2/rps_cpus", "ffff")),
    ("xps-unset", &[], |s| s.without("/sys/class/net/eth1/queues")),
    ("hugepages-off", &[], |s| {
        s.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
        s.put("/proc/meminfo", "HugePages_Total: 0\n");
    }),
    ("hugepages-lopsided", &[], |s| {
        s.put("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "0");
    }),
    ("memlock-small", &[], |s| {
        let limits = "Max open files 65536 65536 files\nMax locked memory 65536 65536 bytes\n";
        s.put("/proc/self/limits", limits);
    }),
    ("open-files-limit", &[], |s| {
        let limits = "Max open files 1024 65536 files\nMax locked memory unlimited x bytes\n";
        s.put("/proc/self/limits", limits);
    }),
    ("optmem-small", &[], |s| s.put("/proc/sys/net/core/optmem_max", "20480")),
    ("devmem-driver", &[], |s| s.put("/proc/sys/kernel/osrelease", "6.16.1")),
    ("devmem-split", &[], |s| s.nic("eth0").tcp_data_split = Some(1)),
    ("devmem-ntuple", &[], |s| {
        let probe = s.nic("eth0");
        probe.ntuple_rules = None;
        probe.errors.insert("ntuple".into(), "Operation not supported".into());
    }),
    ("devmem-capability", &[], |s| {
        s.put("/proc/self/status", &FILES_STATUS.replace("3000", "2000"));
    }),
    ("tcpx-plugin", &[], |s| {
        with_tcpx(s);
        s.probes.plugins.as_mut().unwrap()[0].is_tcpx = false;
    }),
    ("tcpx-daemon", &[], |s| {
        with_tcpx(s);
        s.probes.tcpx_sockets.as_mut().unwrap().pop();
    }),
    ("devmem-landing", &[], |s| {
        with_tcpx(s);
        s.nic("eth0").devmem.insert("rx_hsplit_unsplit_pkt".into(), 2_000_000);
    }),
    ("bind-device-denied", &["devmem-driver"], |s| {
        s.put("/proc/self/status", &FILES_STATUS.replace("3000", "1000"));
        s.put("/proc/sys/kernel/osrelease", "5.4.0-150");
    }),
    ("io-uring-blocked", &[], |s| s.put("/proc/sys/kernel/io_uring_disabled", "2")),
    ("perf-blocked", &[], |s| s.put("/proc/sys/kernel/perf_event_paranoid", "4")),
];

const FILES_STATUS: &str = "CapEff:\t0000000000003000\nSeccomp:\t0\nCpus_allowed_list:\t0-15\n";

/// A host whose NICs bring payload to GPUs by GPUDirect-TCPX.
fn with_tcpx(s: &mut Setup) {
    s.put("/proc/sys/kernel/osrelease", "6.18.1");
    for nic in NICS {
        let counters = [
            ("rx_devmem_pkts", 900_000),
            ("rx_hsplit_pkt", 1_000_000),
            ("rx_hsplit_unsplit_pkt", 9),
        ];
        s.nic(nic).devmem = counters.map(|(name, count)| (name.to_owned(), count)).into();
    }
    for nic in [0, 2] {
        s.machine.devices[nic].driver = "gve";
    }
    s.probes.plugins = Some(vec![PluginProbe {
        path: "/usr/local/tcpx/lib64/libnccl-net.so".into(),
        tables: vec![7],
        is_tcpx: true,
    }]);
    let sockets = ["rx_rule_manager", "get_gpu_fd_0000:11:00.0", "get_gpu_fd_0000:21:00.0"];
    s.probes.tcpx_sockets = Some(sockets.map(String::from).to_vec());
}

/// Rows for both NICs: bytes, packets, errors and drops received, then the same sent.
fn net_dev(received: &str, sent: &str) -> String {
    let row = |nic: &str| format!("{nic}: {received} 0 0 0 0 {sent} 0 0 0 0\n");
    format!("a\nb\n{}{}", row("eth0"), row("eth1"))
}

fn softnet(dropped: &str, squeezed: &str) -> String {
    format!("000fffff {dropped} {squeezed} 0 0 0 0 0 0 0 0 0 00000000 0 0\n")
}

fn netstat(counts: &str) -> String {
    format!(
        "TcpExt: ListenOverflows TCPMemoryPressures TCPRcvQDrop TCPBacklogDrop RcvPruned OfoPruned\n\
         TcpExt: {counts} 0 0 0\n"
    )
}

#[test]
fn a_host_that_is_well_has_no_findings_and_nothing_is_unknown() {
    let report = well().report();
    assert_eq!(ids(&report, Status::Finding), BTreeSet::new(), "{}", report.text());
    assert_eq!(ids(&report, Status::Unknown), BTreeSet::new(), "{}", report.text());
    let tcpx = ["devmem-landing", "tcpx-daemon", "tcpx-plugin"];
    let not_applicable = ["arp-flux", "irq-gve-pattern"].iter().chain(&tcpx).map(|id| (*id).into());
    assert_eq!(ids(&report, Status::NotApplicable), not_applicable.collect());
    for check in report.with(Status::Clean) {
        assert!(!check.evidence.is_empty(), "{} is clean without having looked", check.id);
    }
}

#[test]
fn a_host_with_gpudirect_tcpx_that_is_well_tells_what_it_has() {
    let mut setup = well();
    with_tcpx(&mut setup);
    let report = setup.report();
    assert_eq!(ids(&report, Status::Finding), BTreeSet::new(), "{}", report.text());
    let told = |id: &str| {
        let check = find(&report, id);
        assert_eq!(check.status, Status::Clean, "{id}");
        check.evidence.iter().map(|it| it.value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(told("tcpx-plugin"), ["GPUDirect-TCPX, tables v7"]);
    assert_eq!(told("tcpx-daemon"), ["get_gpu_fd_0000:11:00.0", "get_gpu_fd_0000:21:00.0"]);
    let counters = "rx_devmem_pkts 900000, rx_hsplit_pkt 1000000, rx_hsplit_unsplit_pkt 9";
    assert_eq!(told("devmem-landing"), [counters; 2]);
    // An image's own kernel, which counts what lands, says more than its number.
    setup.put("/proc/sys/kernel/osrelease", "5.15.146");
    assert_eq!(find(&setup.report(), "devmem-driver").status, Status::Clean);
    // A copy that was made before anybody looked.
    setup.probes.plugins = None;
    let unknown = ids(&setup.report(), Status::Unknown);
    assert_eq!(unknown, ["tcpx-daemon", "tcpx-plugin"].map(String::from).into());
    with_tcpx(&mut setup);
    setup.probes.tcpx_sockets = Some(Vec::new());
    let report = setup.report();
    let finding = &find(&report, "tcpx-daemon").findings[0];
    assert_eq!(finding.what, "nobody listens on the socket rx_rule_manager");
}

#[test]
fn each_fault_is_found_by_its_check_and_by_no_other() {
    for (id, companions, fault) in FAULTS {
        let mut setup = well();
        fault(&mut setup);
        let report = setup.report();
        let mut expected: BTreeSet<String> = companions.iter().map(|id| (*id).into()).collect();
        expected.insert((*id).into());
        assert_eq!(ids(&report, Status::Finding), expected, "{id}\n{}", report.text());
        let check = find(&report, id);
        for finding in &check.findings {
            assert!(!finding.evidence.is_empty(), "{id} has no evidence");
            for change in &finding.changes {
                assert_ne!(change.from.as_ref(), Some(&change.to), "{id} changes nothing");
                if let Target::File { path } = &change.target {
                    assert!(path.starts_with("/proc/") || path.starts_with("/sys/"), "{path}");
                }
            }
        }
        assert!(report.text().contains(id) && report.text().contains(&check.findings[0].what));
    }
}

#[test]
fn every_check_has_a_fault_here() {
    let with: BTreeSet<&str> = FAULTS.iter().map(|(id, _, _)| *id).collect();
    let all: BTreeSet<&str> = CHECKS.iter().copied().flatten().map(|check| check.id).collect();
    assert_eq!(all, with);
}

#[test]
fn without_files_no_check_is_clean() {
    let host = well().machine.build();
    for folder in ["proc", "sys/kernel", "sys/bus", "sys/class", "sys/fs"] {
        std::fs::remove_dir_all(host.path().join(folder))
            .or_else(|error| {
                // Some of them are not written in the first place.
                if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
            })
            .unwrap();
    }
    let options =
        Options { devmem: true, workers: Some(CpuSet::range(0, 3)), ..Options::default() };
    let report = examine(&Context::read(&host.root(), options).unwrap());
    for status in [Status::Clean, Status::Finding] {
        assert_eq!(ids(&report, status), BTreeSet::new(), "{}", report.text());
    }
}

#[test]
fn nonsense_in_files_is_unknown_and_never_clean() {
    let mut setup = well();
    let keep = ["/proc/self/cgroup", "/proc/1/comm", "/proc/net/route"];
    for (path, text) in &mut setup.files {
        if path.starts_with("/proc/") && !keep.contains(&path.as_str()) {
            *text = "nonsense".into();
        }
    }
    let report = setup.report();
    for check in report.with(Status::Clean) {
        let data = CHECKS.iter().copied().flatten().find(|data| data.id == check.id).unwrap();
        let is_nonsense =
            |path: &&&str| setup.files.get(**path).is_some_and(|text| text == "nonsense");
        // A congestion control may be called anything but bbr.
        let reads_sense = data.reads.iter().any(|path| !is_nonsense(&path));
        assert!(reads_sense || check.id == "bbr-without-fq", "{}: {:?}", check.id, check.evidence);
    }
    assert!(report.summary.unknown >= 15, "{:?}", report.summary);
}

#[test]
fn a_part_that_is_unknown_is_told_next_to_a_finding() {
    let mut setup = well();
    setup.nic("eth0").rx_ring = Some(RingProbe { now: 128, max: Some(1024) });
    let probe = setup.nic("eth1");
    probe.rx_ring = None;
    probe.errors.insert("rings".into(), "Operation not supported".into());
    let report = setup.report();
    let check = find(&report, "rings-small");
    assert_eq!((check.status, check.findings.len()), (Status::Finding, 1));
    assert_eq!(check.unknown, ["eth1: Operation not supported"]);
    assert!(
        report.text().contains("not known: eth1: Operation not supported"),
        "{}",
        report.text()
    );
}

#[test]
fn findings_come_in_order_of_what_they_cost() {
    let mut setup = well();
    setup.put("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1");
    setup.put("/proc/sys/net/ipv4/tcp_congestion_control", "bbr");
    setup.put("/proc/sys/net/ipv4/tcp_sack", "0");
    let report = setup.report();
    let order: Vec<&str> = report.with(Status::Finding).map(|check| check.id.as_str()).collect();
    assert_eq!(order, ["tcp-features-off", "bbr-without-fq", "slow-start-after-idle"]);
    let text = report.text();
    let command = "$ sysctl -w net.ipv4.tcp_congestion_control='cubic'";
    assert!(
        text.contains(command) && text.contains("or: polyrail doctor --fix bbr-without-fq"),
        "{text}"
    );
}

#[test]
fn a_report_reads_back_as_itself() {
    let mut setup = well();
    setup.put("/proc/sys/net/ipv4/tcp_sack", "0");
    let report = setup.report();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["checks"][0]["id"], "tcp-features-off");
    assert_eq!(json["checks"][0]["status"], "finding");
    assert_eq!(json["checks"][0]["cost"], "breaks");
    let change = &json["checks"][0]["findings"][0]["changes"][0];
    assert_eq!(change["target"]["path"], "/proc/sys/net/ipv4/tcp_sack");
    assert_eq!((&change["from"], &change["to"]), (&"0".into(), &"1".into()));
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[test]
fn the_gve_pattern_is_found_on_a_machine_like_a3_high() {
    let host = fixtures::a3_high();
    host.write("/proc/sys/kernel/osrelease", "6.12.55+\n");
    let report = examine(&Context::read(&host.root(), Options::default()).unwrap());
    let subjects = |id: &str| -> Vec<String> {
        find(&report, id).findings.iter().filter_map(|finding| finding.subject.clone()).collect()
    };
    let pattern = subjects("irq-gve-pattern");
    assert!(pattern.contains(&"eth3".into()) && pattern.contains(&"eth4".into()), "{pattern:?}");
    assert_eq!(subjects("irq-off-node"), ["eth3", "eth4"], "the others are at node 0");
}

#[test]
fn the_interface_of_the_host_itself_is_not_compared_with_the_rails() {
    let host = fixtures::a3_high();
    for nic in 1..=4 {
        host.write(&format!("/sys/class/net/eth{nic}/mtu"), "8244");
    }
    host.write("/sys/class/net/eth0/mtu", "1460");
    let report = examine(&Context::read(&host.root(), Options::default()).unwrap());
    // eth0 has half the speed and another MTU on purpose.
    for id in ["speed-mismatch", "mtu-mismatch"] {
        let check = find(&report, id);
        assert_eq!(check.status, Status::Clean, "{}", report.text());
        assert!(check.evidence.iter().any(|seen| seen.value.contains("not compared")));
    }
    // All rails on the same CPUs make one finding, not one for each pair.
    let shared = &find(&report, "irq-nics-share-cpu").findings;
    assert_eq!(shared.len(), 1, "{}", report.text());
    assert_eq!(shared[0].what, "4 rails interrupt the same 16 CPUs, 0-15");
    assert_eq!(shared[0].subject.as_deref(), Some("eth1,eth2,eth3,eth4"));
    // Named, it is a rail like any other.
    let named: Vec<String> = (0..5).map(|nic| format!("eth{nic}")).collect();
    let options = Options { interfaces: named, ..Options::default() };
    let report = examine(&Context::read(&host.root(), options).unwrap());
    assert_eq!(find(&report, "speed-mismatch").findings.len(), 1);
}

#[test]
fn rails_that_share_in_different_ways_are_told_apart() {
    let mut setup = well();
    setup.machine.devices[2].node = 0;
    // CPU 3 is shared, the others are not.
    setup.vectors(1, [3, 4, 5, 6]);
    let report = setup.report();
    let findings = &find(&report, "irq-nics-share-cpu").findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].what, "2 rails interrupt CPU 3");
}

#[test]
fn each_offload_that_is_off_is_named_with_the_switch_that_mends_it() {
    let mut setup = well();
    let offloads = setup.nic("eth0").offloads.as_mut().unwrap();
    (offloads.tso, offloads.gso) = (false, false);
    setup.nic("eth1").offloads = None;
    let report = setup.report();
    let check = find(&report, "offloads-off");
    assert_eq!(check.findings.len(), 1);
    let finding = &check.findings[0];
    let what = "tcp-segmentation-offload, generic-segmentation-offload are off";
    assert_eq!((finding.what.as_str(), finding.subject.as_deref()), (what, Some("eth0")));
    assert_eq!(finding.commands, ["ethtool -K eth0 tso on gso on"]);
    assert_eq!(check.unknown.len(), 1, "the other did not tell: {:?}", check.unknown);
}

#[test]
fn the_odd_host_of_three_is_named_with_its_fault() {
    let mut odd = well();
    odd.put("/sys/class/net/eth1/mtu", "1500");
    odd.put("/proc/sys/kernel/hostname", "odd");
    let reports = [well().report(), odd.report(), well().report()];
    let comparison = polyrail_doctor::fleet::compare(&reports).unwrap();
    assert_eq!(comparison.odd.first().map(|(host, _)| host.as_str()), Some("odd"));
    let names: Vec<&str> = comparison.differences.iter().map(|d| d.what.as_str()).collect();
    assert!(names.contains(&"eth1: MTU") && names.contains(&"check mtu-mismatch"), "{names:?}");
}

#[test]
fn this_machine_is_examined_and_what_is_found_names_files_that_say_so() {
    let root = Sysroot::live();
    let report = examine(&Context::read(&root, Options::default()).unwrap());
    let Report { summary, .. } = &report;
    assert_eq!(
        summary.findings + summary.clean + summary.unknown + summary.not_applicable,
        report.checks.len()
    );
    assert!(summary.clean >= 10, "{}", report.text());
    for finding in report.with(Status::Finding).flat_map(|check| &check.findings) {
        for evidence in &finding.evidence {
            let is_setting =
                evidence.path.starts_with("/proc/sys/") && !evidence.path.contains(':');
            if is_setting {
                assert_eq!(root.read(&evidence.path).unwrap(), evidence.value, "{}", evidence.path);
            }
        }
    }
}

#[test]
fn a_finding_is_mended_and_taken_back_byte_for_byte() {
    let mut setup = well();
    let path = "/proc/sys/net/ipv4/tcp_rmem";
    let old = "4096\t131072\t1048576";
    setup.put(path, old);
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    let (host, context) = setup.build();
    let root = host.root();
    let mut machine = SysMachine::new(root.clone());
    let plan = plan_fix(&examine(&context), "tcp-receive-buffer", &root, &mut machine).unwrap();
    assert_eq!((plan.name.as_str(), plan.changes.len()), ("doctor tcp-receive-buffer", 1));
    assert_eq!(plan.changes[0].old, old);

    let state = StateDir::new(host.path().join("state"));
    apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default()).unwrap();
    let report = examine(&Context::read(&root, Options::default()).unwrap());
    assert_eq!(find(&report, "tcp-receive-buffer").status, Status::Clean, "{}", report.text());

    let which = Which::Latest;
    let restored = reset(&mut machine, &mut RealDisk, &state, "doctor", &which, false).unwrap();
    assert_eq!(restored.len(), 1);
    assert_eq!(root.read(path).unwrap(), old);
}

#[test]
fn transparent_huge_pages_are_mended_by_the_word_that_the_kernel_takes() {
    let mut setup = well();
    setup.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
    setup.put("/proc/meminfo", "HugePages_Total: 0\n");
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    let (host, context) = setup.build();
    let root = host.root();
    let plan =
        plan_fix(&examine(&context), "hugepages-off", &root, &mut SysMachine::new(root.clone()));
    let change = plan.unwrap().changes.remove(0);
    assert_eq!((change.old.as_str(), change.new.as_str()), ("never", "madvise"));
}

#[test]
fn what_is_well_or_no_setting_is_not_mended() {
    let mut setup = well();
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    setup.put("/sys/class/net/eth1/operstate", "down");
    let (host, context) = setup.build();
    let (root, report) = (host.root(), examine(&context));
    let refused = |id: &str| {
        let mut machine = SysMachine::new(root.clone());
        plan_fix(&report, id, &root, &mut machine).unwrap_err().to_string()
    };
    assert_eq!(refused("tcp-features"), "check `tcp-features` does not exist");
    assert_eq!(
        refused("bbr-without-fq"),
        "check `bbr-without-fq` found nothing to fix: all is well"
    );
    let message = refused("link-down");
    assert!(
        message.starts_with("check `link-down` can't be fixed by a setting: eth1: "),
        "{message}"
    );
}

#[test]
fn the_documentation_lists_every_check() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let text = std::fs::read_to_string(path).unwrap();
    for check in CHECKS.iter().copied().flatten() {
        let row = format!("| `{}` | {} | {} |", check.id, check.title, check.cost.words());
        assert!(text.contains(&row), "docs/doctor.md lacks the row\n{row}");
    }
}
