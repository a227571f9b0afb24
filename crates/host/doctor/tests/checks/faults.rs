//! A fault for each check, and the code that causes it.

use polyrail_doctor::{Answer, CoalesceProbe, Finding, RingProbe};
use polyrail_host::CpuSet;
use polyrail_host::bindings::Bindings;
use polyrail_host::fixtures::Device;

use crate::host::{NICS, ROUTES, Setup, with_tcpx};

/// A fault: the check that must fire, the checks that may also fire, and the code that causes it.
pub(crate) type Fault = (&'static str, &'static [&'static str], fn(&mut Setup));

pub(crate) const FAULTS: &[Fault] = &[
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
    // Two NICs on one subnet also answer for each other, and no policy rule fixes this.
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
        // One CPU per queue, counted from CPU 0 in both directions. The NIC is at node 0.
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
    ("cubic-denied", &[], |s| {
        s.put("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno bbr");
    }),
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
    ("bindings", &[], |s| {
        s.options.bindings = Ok([Bindings::parse("eth0:900").unwrap(), Bindings::default()])
    }),
    ("nccl-plugin", &[], |s| s.answers.nccl_plugin = fails("NCCL will find no device")),
    ("nixl-backend", &[], |s| s.answers.nixl_backend = fails("the backend is damaged")),
];

fn fails(what: &str) -> Option<Answer> {
    Some(Answer::Fails(Finding::new(what).because("the library", "0 devices")))
}

pub(crate) const FILES_STATUS: &str =
    "CapEff:\t0000000000003000\nSeccomp:\t0\nCpus_allowed_list:\t0-15\n";

/// Returns rows for both NICs: bytes, packets, errors and drops received, then the same sent.
pub(crate) fn net_dev(received: &str, sent: &str) -> String {
    let row = |nic: &str| format!("{nic}: {received} 0 0 0 0 {sent} 0 0 0 0\n");
    format!("a\nb\n{}{}", row("eth0"), row("eth1"))
}

pub(crate) fn softnet(dropped: &str, squeezed: &str) -> String {
    format!("000fffff {dropped} {squeezed} 0 0 0 0 0 0 0 0 0 00000000 0 0\n")
}

pub(crate) fn netstat(counts: &str) -> String {
    format!(
        "TcpExt: ListenOverflows TCPMemoryPressures TCPRcvQDrop TCPBacklogDrop RcvPruned OfoPruned\n\
         TcpExt: {counts} 0 0 0\n"
    )
}
