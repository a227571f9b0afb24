//! Exports, read by the rules of their target programs. The rules come from the sources of those programs:
//! astra-network-analytical's `NetworkParser.cpp` and `NetworkFunction.cpp`, Chakra's `et_def.proto` with ASTRA-sim's
//! `Workload.cc`, SimAI's `gen_Topo_Template.py` with the reader of its topologies, and the columns of Vidur's
//! `send_recv.csv`.

use std::collections::{BTreeMap, HashMap};

use crate::common::{analyse, machine};
use polyrail_analyze::Analysis;
use polyrail_analyze::export::{File, Target, export};
use polyrail_profile::PathKind;
use polyrail_profile::protobuf::{Value, delimited, fields};
use polyrail_profile::synthetic::Machine;

fn analysis() -> Analysis {
    analyse(&machine(PathKind::CopyEngine)).2
}

fn text<'a>(files: &'a [File], name: &str) -> &'a str {
    let file = files.iter().find(|file| file.name == name).unwrap();
    std::str::from_utf8(&file.bytes).unwrap()
}

/// A network file of ASTRA-sim: one dimension.
struct Network {
    topology: String,
    latency_ns: f64,
    bytes_per_ns: f64,
}

impl Network {
    fn read(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let lists: HashMap<&str, Vec<&str>> = lines
            .map(|line| {
                let (name, list) = line.split_once(": [").unwrap();
                let list = list.strip_suffix(']').unwrap().split(',').map(str::trim).collect();
                (name, list)
            })
            .collect();
        let dimensions = lists["topology"].len();
        for name in ["npus_count", "bandwidth", "latency"] {
            assert_eq!(lists[name].len(), dimensions, "{name} is a list beside topology");
        }
        assert_eq!(dimensions, 1);
        let topology = lists["topology"][0].to_owned();
        assert!(["Ring", "Switch", "FullyConnected"].contains(&topology.as_str()));
        assert!(lists["npus_count"][0].parse::<i32>().unwrap() > 1);
        let bandwidth: f64 = lists["bandwidth"][0].parse().unwrap();
        let latency_ns: f64 = lists["latency"][0].parse().unwrap();
        assert!(bandwidth > 0.0 && latency_ns >= 0.0);
        // bw_GBps_to_Bpns: a GB is 2^30 bytes.
        Self { topology, latency_ns, bytes_per_ns: bandwidth * f64::from(1 << 30) / 1e9 }
    }

    fn hops(&self) -> f64 {
        if self.topology == "Switch" { 2.0 } else { 1.0 }
    }

    fn unaware_ns(&self, size: f64) -> f64 {
        self.hops() * self.latency_ns + size / self.bytes_per_ns
    }

    fn aware_ns(&self, size: f64) -> f64 {
        self.hops() * (self.latency_ns + size / self.bytes_per_ns)
    }
}

#[test]
fn astra_sim_computes_the_measured_line_with_either_backend() {
    let analysis = analysis();
    let files = export(&analysis, Target::AstraSim).unwrap();
    let full = Network::read(text(&files, "astra_fully_connected.yml"));
    let unaware = Network::read(text(&files, "astra_switch_unaware.yml"));
    let aware = Network::read(text(&files, "astra_switch_aware.yml"));
    for size in [1.0, 1e3, 1e6, 1e9] {
        let time = full.unaware_ns(size);
        for other in [full.aware_ns(size), unaware.unaware_ns(size), aware.aware_ns(size)] {
            assert!((other / time - 1.0).abs() < 1e-5, "{size}: {other} {time}");
        }
    }
    // 395 GB/s of 10^9 bytes are 368 of 2^30: a file that ignores this is 7 % off.
    let link = analysis.links.iter().find(|link| (link.src, link.dst) == (2, 3)).unwrap();
    let measured = link.model.as_ref().unwrap().at(1 << 30);
    assert!((full.unaware_ns(f64::from(1 << 30)) / measured - 1.0).abs() < 0.06);
    assert!(text(&files, "astra_fully_connected.yml").contains("t_gpu"));
}

type Attributes = HashMap<String, (u32, u64)>;

/// A node as the feeder reads it.
#[derive(Debug)]
struct Node {
    id: u64,
    kind: u64,
    deps: Vec<u64>,
    micros: u64,
    attributes: Attributes,
}

impl Node {
    fn read(bytes: &[u8]) -> Self {
        let mut node =
            Self { id: 0, kind: 0, deps: Vec::new(), micros: 0, attributes: HashMap::new() };
        for field in fields(bytes).unwrap() {
            match field {
                (1, Value::Varint(id)) => node.id = id,
                (2, Value::Bytes(name)) => assert!(!name.is_empty()),
                (3, Value::Varint(kind)) => node.kind = kind,
                (5, Value::Varint(dep)) => node.deps.push(dep),
                (7, Value::Varint(micros)) => node.micros = micros,
                (10, Value::Bytes(attribute)) => {
                    let attribute = fields(attribute).unwrap();
                    let (1, Value::Bytes(name)) = attribute[0] else { panic!("{attribute:?}") };
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    let value = match attribute[1] {
                        (kind, Value::Varint(value) | Value::Fixed64(value)) => (kind, value),
                        other => panic!("{other:?}"),
                    };
                    node.attributes.insert(name, value);
                }
                other => panic!("no field of a node: {other:?}"),
            }
        }
        node
    }

    /// `int32_val` is field 7, `int64_val` 9, `bool_val` 27, `double_val` 3.
    fn attribute(&self, name: &str, kind: u32) -> u64 {
        let (found, value) = self.attributes[name];
        assert_eq!(found, kind, "{name} must have the type that the feeder reads");
        value
    }
}

fn trace(file: &File) -> Vec<Node> {
    let messages = delimited(&file.bytes).unwrap();
    let metadata = fields(messages[0]).unwrap();
    assert_eq!(metadata[0], (1, Value::Bytes(b"0.0.4")));
    messages[1..].iter().map(|bytes| Node::read(bytes)).collect()
}

#[test]
fn astra_sim_replays_the_chakra_traces_to_their_end() {
    let files = export(&analysis(), Target::Chakra).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["chakra.0.et", "chakra.1.et", "chakra.2.et", "chakra.3.et"]);
    let traces: Vec<Vec<Node>> = files.iter().map(trace).collect();
    for (rank, nodes) in traces.iter().enumerate() {
        assert_eq!(nodes.len(), 6 * 31);
        for (place, node) in nodes.iter().enumerate() {
            assert_eq!(node.id, place as u64);
            assert_eq!(node.deps, place.checked_sub(1).map(|before| before as u64).as_slice());
            assert_eq!(node.attribute("is_cpu_op", 27), 0, "else it runs as a CPU operation");
            let own = if node.kind == 5 { "comm_src" } else { "comm_dst" };
            assert_eq!(node.attribute(own, 7), rank as u64);
            let ns = f64::from_bits(node.attribute("duration_ns", 3));
            assert!((ns / 1e3 - node.micros as f64).abs() <= 0.5);
        }
    }
    // The analytical backend matches on tag, source, sink and size; a node without a match hangs. So each rank
    // processes its nodes in order, and a pair advances when both ends have reached it.
    let mut next = vec![0; traces.len()];
    let mut moved = 0;
    loop {
        let mut waiting: BTreeMap<[u64; 4], Vec<(usize, u64)>> = BTreeMap::new();
        for (rank, nodes) in traces.iter().enumerate() {
            if let Some(node) = nodes.get(next[rank]) {
                let key = [
                    node.attribute("comm_tag", 7),
                    node.attribute("comm_src", 7),
                    node.attribute("comm_dst", 7),
                    node.attribute("comm_size", 9),
                ];
                waiting.entry(key).or_default().push((rank, node.kind));
            }
        }
        let ready: Vec<_> = waiting.into_values().filter(|ends| ends.len() == 2).collect();
        if ready.is_empty() {
            break;
        }
        for ends in ready {
            let mut kinds = [ends[0].1, ends[1].1];
            kinds.sort_unstable();
            assert_eq!(kinds, [5, 6], "one sends and one receives");
            ends.iter().for_each(|(rank, _)| next[*rank] += 1);
            moved += 1;
        }
    }
    assert_eq!(moved, 12 * 31, "no rank waits for ever");
}

#[test]
fn simai_reads_the_topology() {
    let files = export(&analysis(), Target::SimAi).unwrap();
    let mut lines = text(&files, "simai_topology.txt").lines();
    let first: Vec<&str> = lines.next().unwrap().split(' ').collect();
    let number = |place: usize| first[place].parse::<usize>().unwrap();
    assert_eq!(first.len(), 6);
    let (nodes, nvswitches, switches, links) = (number(0), number(2), number(3), number(4));
    assert_eq!((nodes, number(1), nvswitches, switches), (5, 4, 1, 0));
    let ids: Vec<usize> =
        lines.next().unwrap().split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), nvswitches + switches);
    assert!(ids.iter().all(|id| *id < nodes));
    let links_found: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    assert_eq!(links_found.len(), links);
    for link in links_found {
        assert_eq!(link.len(), 5);
        assert!(
            link[0].parse::<usize>().unwrap() < nodes && ids.contains(&link[1].parse().unwrap())
        );
        let gbps: f64 = link[2].strip_suffix("Gbps").unwrap().parse().unwrap();
        assert!((gbps / 8.0 / 390.0 - 1.0).abs() < 0.06, "{gbps}");
        let ms: f64 = link[3].strip_suffix("ms").unwrap().parse().unwrap();
        assert!((ms * 1e6 - 25.0).abs() < 1e-6, "latency is in AS_SEND_LAT, and once only: {ms}");
        assert_eq!(link[4], "0");
    }
    assert_eq!(first[5], "SyntheticGPU");
    let table = text(&files, "simai_send_lat.csv");
    assert_eq!(table.lines().count(), 12 * 31 + 1);
    let environment = text(&files, "simai_env.sh");
    let latency = environment.lines().last().unwrap().strip_prefix("export AS_SEND_LAT=").unwrap();
    assert!((1_800..2_100).contains(&latency.parse::<u32>().unwrap()), "{latency}");
}

#[test]
fn simai_knows_the_type_of_gpu() {
    let mut analysis = analysis();
    for (model, word) in
        [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H100"), ("NVIDIA A10", "NVIDIAA10")]
    {
        analysis.about.models[0] = Some(model.into());
        let files = export(&analysis, Target::SimAi).unwrap();
        let first = text(&files, "simai_topology.txt").lines().next().unwrap().to_owned();
        assert_eq!(first, format!("5 4 1 0 4 {word}"), "{model}");
    }
}

#[test]
fn vidur_finds_its_columns() {
    let files = export(&analysis(), Target::Vidur).unwrap();
    let mut lines = text(&files, "send_recv.csv").lines();
    let headings: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| headings.iter().position(|heading| *heading == name).unwrap();
    assert_eq!(headings[0], "", "the index of the data frame");
    let mut rows = 0;
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), headings.len());
        let number = |name: &str| cells[column(name)].parse::<f64>().unwrap();
        let time = |what: &str| number(&format!("time_stats.send_recv.{what}"));
        assert!(time("min") <= time("median") && time("median") <= time("max"));
        assert!(time("std") >= 0.0);
        assert_eq!(cells[column("collective")], "send_recv");
        assert_eq!((number("num_workers"), number("devices_per_node")), (2.0, 2.0));
        assert_eq!(number("max_devices_per_node"), 4.0);
        if number("size") == f64::from(1 << 30) {
            assert!((2.0..4.0).contains(&time("median")), "times are in ms: {line}");
        }
        rows += 1;
    }
    assert_eq!(rows, 12 * 31);
}

#[test]
fn a_profile_of_several_paths_is_exported_one_at_a_time() {
    let (_root, _, analysis) = analyse(&Machine { repetitions: 6, ..Machine::default() });
    for target in [Target::AstraSim, Target::Chakra, Target::SimAi, Target::Vidur] {
        let error = export(&analysis, target).unwrap_err();
        assert!(error.to_string().contains("the profile has copy_engine, nccl"), "{error}");
        assert_eq!(error.help().unwrap(), "choose one by --path");
    }
}
