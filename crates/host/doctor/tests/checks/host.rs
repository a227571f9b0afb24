//! A healthy host for tests to break, and one that has GPUDirect-TCPX.

use std::collections::BTreeMap;

use polyrail_doctor::{
    Answer, Answers, CoalesceProbe, Context, Evidence, NicProbe, OffloadsProbe, Options,
    PluginProbe, Probes, Report, RingProbe, RouteProbe, examine,
};
use polyrail_host::CpuSet;
use polyrail_host::fixtures::{Device, Fixture, Machine};

/// A host before its files are written.
pub(crate) struct Setup {
    pub(crate) machine: Machine,
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) probes: Probes,
    pub(crate) options: Options,
    pub(crate) answers: Answers,
}

pub(crate) const NICS: [&str; 2] = ["eth0", "eth1"];
pub(crate) const FIRST_IRQ: u32 = 24;

/// Returns two nodes of eight CPUs, each with a NIC and a GPU, without any fault.
pub(crate) fn well() -> Setup {
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
    let works = |value: &str| Some(Answer::Works(vec![Evidence::new("the library", value)]));
    Setup {
        machine,
        files,
        probes: Probes { nics, routes, ..Probes::default() },
        options: Options { workers, devmem: true, ..Options::default() },
        answers: Answers { nccl_plugin: works("1 device"), nixl_backend: works("1 MiB moved") },
    }
}

pub(crate) const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                      eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
                      eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
                      eth1 0001000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";

pub(crate) const FILES: &[(&str, &str)] = &[
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
    ("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno cubic"),
    ("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic"),
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
    pub(crate) fn put(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), text.into());
    }

    pub(crate) fn without(&mut self, prefix: &str) {
        self.files.retain(|path, _| !path.starts_with(prefix));
    }

    /// Sends the vectors of NIC 0 or 1 to these CPUs.
    pub(crate) fn vectors(&mut self, nic: usize, cpus: [u32; 4]) {
        let vectors = &mut self.machine.devices[2 * nic].vectors;
        for (vector, cpu) in vectors.iter_mut().zip(cpus) {
            vector.1 = cpu;
        }
    }

    pub(crate) fn nic(&mut self, name: &str) -> &mut NicProbe {
        self.probes.nics.get_mut(name).unwrap()
    }

    pub(crate) fn build(&self) -> (Fixture, Context) {
        let host = self.machine.build();
        for (path, text) in &self.files {
            host.write(path, text);
        }
        self.probes.save(&host.root()).unwrap();
        let context = Context::read(&host.root(), self.options.clone()).unwrap();
        (host, context.with(self.answers.clone()))
    }

    pub(crate) fn report(&self) -> Report {
        let (_host, context) = self.build();
        examine(&context)
    }
}

/// Makes the NICs bring payload to GPUs by GPUDirect-TCPX.
pub(crate) fn with_tcpx(s: &mut Setup) {
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
