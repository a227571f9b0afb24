use super::*;
use polyrail_host::SoftnetCpu;

use crate::diag::Connection;
use crate::record::VectorStart;

fn at(started: Instant, seconds: u64) -> Snapshot {
    Snapshot {
        at: started + Duration::from_secs(seconds),
        unix_ms: 1_000 * seconds,
        read_time: Duration::from_micros(300),
        thread_cpu: Duration::from_millis(2 * seconds),
        ticks_per_second: 100.0,
        cpus: Vec::new(),
        softirqs: Softirqs::default(),
        softnet: Softnet::default(),
        interfaces: BTreeMap::new(),
        queues: Queues::new(),
        protocols: BTreeMap::new(),
        vectors: BTreeMap::new(),
        flows: Vec::new(),
        threads: Vec::new(),
        missing: Vec::new(),
    }
}

/// Makes a sample from two snapshots a second apart; `change` edits each and gets its second, 0 or
/// 1.
fn sample(nics: &[NicStart], change: impl Fn(&mut Snapshot, u64)) -> Sample {
    let started = Instant::now();
    let [mut from, mut to] = [at(started, 0), at(started, 1)];
    change(&mut from, 0);
    change(&mut to, 1);
    from.until(&to, nics)
}

#[test]
fn time_of_a_cpu_is_split_and_a_cpu_that_slept_is_left_out() {
    let sample = sample(&[], |snapshot, second| {
        let still = CpuTicks { idle: 5, ..CpuTicks::default() };
        let busy = CpuTicks {
            user: 10 + 20 * second,
            system: 30 * second,
            idle: 9 + 40 * second,
            softirq: 10 * second,
            ..CpuTicks::default()
        };
        snapshot.cpus = vec![(0, still), (4, busy)];
        if second == 1 {
            snapshot.cpus.push((7, still));
        }
        let packets = SoftnetCpu {
            cpu: Some(4),
            processed: u64::from(u32::MAX) - 4,
            time_squeeze: 3,
            ..SoftnetCpu::default()
        };
        let later = SoftnetCpu { processed: 5, time_squeeze: 4, ..packets.clone() };
        snapshot.softnet.rows = vec![if second == 0 { packets } else { later }];
        snapshot.softirqs.cpus = vec![0, 4];
        snapshot.softirqs.rows = vec![("NET_RX".into(), vec![0, 7 * second])];
    });
    let [cpu] = sample.cpus.as_slice() else { panic!("{:?}", sample.cpus) };
    assert_eq!((cpu.cpu, cpu.user_percent, cpu.system_percent), (4, 20.0, 30.0));
    assert_eq!((cpu.softirq_percent, cpu.idle_percent), (10.0, 40.0));
    assert_eq!((cpu.packets, cpu.squeezed, cpu.net_rx), (10, 1, 7), "counters wrap at 32 bits");
    assert_eq!((sample.cost.cpu_us, sample.cost.cpu_percent), (2_000, 0.2));
}

#[test]
fn a_cpu_without_ticks_is_idle_and_no_division_by_zero() {
    let sample = sample(&[], |snapshot, second| {
        snapshot.cpus = vec![(1, CpuTicks { idle: 5, ..CpuTicks::default() })];
        snapshot.softirqs.cpus = vec![1];
        snapshot.softirqs.rows = vec![("NET_RX".into(), vec![second])];
    });
    assert_eq!((sample.cpus[0].idle_percent, sample.cpus[0].net_rx), (100.0, 1));
}

#[test]
fn vectors_tell_where_they_fired_and_one_that_began_anew_counts_from_zero() {
    let vector = |irq, action: &str| {
        let action = action.into();
        VectorStart { irq, action, ..VectorStart::default() }
    };
    let vectors = vec![vector(40, "eth1-TxRx-0"), vector(41, "eth1-TxRx-1"), vector(42, "gone")];
    let nic = NicStart { name: "eth1".into(), vectors };
    let sample = sample(&[nic], |snapshot, second| {
        snapshot.vectors.insert(40, vec![(0, 100), (2, 1_000 + 9 * second as u32)]);
        let counts = if second == 0 { (2, 4_000) } else { (2, 3) };
        snapshot.vectors.insert(41, vec![counts]);
        if second == 0 {
            snapshot.vectors.insert(42, vec![(0, 1)]);
        }
    });
    let fired: Vec<_> = sample.irqs.iter().map(|irq| (irq.irq, irq.fired.clone())).collect();
    assert_eq!(
        fired,
        [(40, vec![Fired { cpu: 2, count: 9 }]), (41, vec![Fired { cpu: 2, count: 3 }]),]
    );
    assert_eq!(
        (sample.irqs[0].nic.as_str(), sample.irqs[0].action.as_str()),
        ("eth1", "eth1-TxRx-0")
    );
}

#[test]
fn interfaces_queues_and_protocols_show_what_moved() {
    let sample = sample(&[], |snapshot, second| {
        let row = NetDevCounters {
            rx_bytes: 5 + second,
            rx_dropped: 2 * second,
            ..NetDevCounters::default()
        };
        snapshot.interfaces.insert("eth1".into(), row);
        snapshot.interfaces.insert("still".into(), NetDevCounters::default());
        let counts = BTreeMap::from([("rx-hw-drops".into(), 4 * second), ("same".into(), 8)]);
        let queues = BTreeMap::from([("rx-3".into(), counts)]);
        snapshot.queues.insert("eth1".into(), queues);
        snapshot.protocols.insert("Tcp.RetransSegs".into(), 10 + 5 * second);
        snapshot.protocols.insert("Tcp.RtoMin".into(), 200);
    });
    let [nic] = sample.nics.as_slice() else { panic!("{:?}", sample.nics) };
    assert_eq!((nic.name.as_str(), nic.rx_bytes, nic.rx_dropped), ("eth1", 1, 2));
    assert_eq!(nic.queues["rx-3"], BTreeMap::from([("rx-hw-drops".into(), 4)]));
    assert_eq!(sample.tcp, BTreeMap::from([("Tcp.RetransSegs".into(), 5)]));
}

fn connection(cookie: u64, acked_bytes: u64, rwnd_limited_us: u64) -> Flow {
    let connection = Connection {
        inode: 1,
        cookie,
        local: "10.0.0.1:5".parse().unwrap(),
        remote: "[fd00::1]:6".parse().unwrap(),
        unread_bytes: 0,
        unacked_bytes: 9,
        congestion: "cubic".into(),
        rtt_us: 50,
        min_rtt_us: 20,
        cwnd: 10,
        retransmits: 0,
        acked_bytes,
        received_bytes: 0,
        delivery_bytes_per_s: 0,
        busy_us: rwnd_limited_us * 2,
        rwnd_limited_us,
        sndbuf_limited_us: 0,
    };
    Flow { pid: 77, connection }
}

#[test]
fn a_flow_is_compared_with_itself_and_a_new_one_with_nothing() {
    let sample = sample(&[], |snapshot, second| {
        snapshot.flows = vec![connection(1, 1_000 + 500 * second, 100_000 + 400_000 * second)];
        if second == 1 {
            snapshot.flows.push(connection(2, 30, 0));
        }
    });
    let [old, new] = sample.flows.as_slice() else { panic!("{:?}", sample.flows) };
    assert_eq!((old.tx_bytes, old.rwnd_limited_percent, old.busy_percent), (500, 40.0, 80.0));
    assert_eq!((new.tx_bytes, new.remote.as_str()), (30, "[fd00::1]:6"));
}

#[test]
fn threads_that_did_nothing_are_left_out_and_untold_counts_stay_unknown() {
    let thread = |tid, ticks, migrations| ThreadTimes {
        pid: 77,
        tid,
        name: "pr-tx0".into(),
        system: ticks,
        switches: Switches { migrations, ..Switches::default() },
        ..ThreadTimes::default()
    };
    let sample = sample(&[], |snapshot, second| {
        let migrations = 5 + 3 * second;
        snapshot.threads = vec![
            thread(1, 50 * second, Some(migrations)),
            thread(2, 9, Some(4)),
            thread(3, 25 * second, None),
        ];
    });
    let [first, second] = sample.threads.as_slice() else { panic!("{:?}", sample.threads) };
    assert_eq!((first.tid, first.system_percent, first.migrations), (1, 50.0, Some(3)));
    assert_eq!((second.tid, second.system_percent, second.migrations), (3, 25.0, None));
}
