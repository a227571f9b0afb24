use std::collections::HashSet;
use std::fs;

use serde_json::Value;

use super::*;
use crate::plan::PathKind;
use crate::protobuf::{Value as Field, fields};
use crate::synthetic::Machine;

fn machine(has_gpus: bool) -> Machine {
    let paths =
        if has_gpus { vec![PathKind::CopyEngine, PathKind::Nccl] } else { vec![PathKind::Tcp] };
    Machine { endpoints: 3, has_gpus, paths, repetitions: 2, ..Machine::default() }
}

fn profile(has_gpus: bool) -> (tempfile::TempDir, Folder) {
    let root = tempfile::tempdir().unwrap();
    let folder = machine(has_gpus).profile(root.path().join("p")).unwrap();
    (root, folder)
}

fn json(folder: &Folder, name: &str) -> (String, Value) {
    let text = fs::read_to_string(folder.dir().join(name)).unwrap();
    let value = serde_json::from_str(&text).unwrap();
    (text, value)
}

#[test]
fn the_log_has_every_sample_with_both_ends() {
    let (_root, folder) = profile(true);
    let log = fs::read_to_string(folder.dir().join("execution_log.csv")).unwrap();
    let mut lines = log.lines();
    let headings: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| headings.iter().position(|heading| *heading == name).unwrap();
    let samples = folder.samples().unwrap();
    assert_eq!(log.lines().count(), samples.len() + 1);
    for (line, sample) in lines.zip(&samples) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |name: &str| cells[column(name)].parse::<i64>().unwrap();
        assert_eq!(number("config_id"), i64::from(sample.configuration));
        let begun = number("t_start_src_ns") - number("posted_unix_ns");
        let unsure: f64 = cells[column("clock_unc_ns")].parse().unwrap();
        assert!(unsure < 2_000.0, "{line}");
        assert!((begun - 2_000).abs() as f64 <= unsure, "{line}");
        assert!(number("t_end_dst_ns") > number("t_start_dst_ns"), "{line}");
    }
}

#[test]
fn the_rank_comes_first_and_as_hta_looks_for_it() {
    let (_root, folder) = profile(true);
    for rank in 0..3 {
        let (text, value) = json(&folder, &format!("kineto/rank_{rank}.pt.trace.json"));
        let first = text.find("\"rank\":").unwrap();
        assert!(text[first..].starts_with(&format!("\"rank\": {rank}")), "{}", &text[..200]);
        assert_eq!(value["distributedInfo"]["world_size"], 3);
    }
}

#[test]
fn all_ranks_share_one_base_and_no_event_rounds_to_less_than_nothing() {
    let (_root, folder) = profile(true);
    let mut bases = HashSet::new();
    for rank in 0..3 {
        let (_, value) = json(&folder, &format!("kineto/rank_{rank}.pt.trace.json"));
        bases.insert(value["baseTimeNanoseconds"].as_i64().unwrap());
        let events = value["traceEvents"].as_array().unwrap();
        let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert!(complete.len() > 100);
        let mut correlations = HashSet::new();
        for event in complete {
            let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
            assert!(ts >= 0.0 && dur >= 0.0);
            assert!((ts + dur).floor() - ts.ceil() >= 0.0, "HTA rounds this so: {event}");
            if event["cat"] == "kernel" || event["cat"] == "gpu_memcpy" {
                assert!(event["args"]["stream"].as_u64().unwrap() > 0);
                assert!(correlations.insert(event["args"]["correlation"].as_u64().unwrap()));
            }
        }
    }
    assert_eq!(bases.len(), 1);
}

#[test]
fn only_nccl_transfers_are_called_nccl_kernels_and_say_their_peer() {
    let (_root, folder) = profile(true);
    let (_, value) = json(&folder, "kineto/rank_1.pt.trace.json");
    let events = value["traceEvents"].as_array().unwrap();
    let kernels: Vec<&Value> = events.iter().filter(|event| event["cat"] == "kernel").collect();
    assert_eq!(kernels.len(), 4 * 31 * 2, "two peers, both ways");
    for kernel in kernels {
        assert!(kernel["name"].as_str().unwrap().starts_with("ncclDevKernel_SendRecv("));
        let args = &kernel["args"];
        let is_send = args["Collective name"] == "send";
        assert_eq!(args.get("Dst Rank").is_some(), is_send);
        assert_eq!(args.get("Src Rank").is_some(), !is_send);
    }
    let copies = events.iter().filter(|event| event["cat"] == "gpu_memcpy");
    assert!(copies.count() > 4 * 31 * 2 - 1);
    assert!(events.iter().any(|event| {
        event["name"].as_str().is_some_and(|name| name.ends_with("s0d1_sz1048576_r0"))
    }));
}

#[test]
fn endpoints_in_host_memory_have_traces_too() {
    let (_root, folder) = profile(false);
    let (_, value) = json(&folder, "kineto/rank_0.pt.trace.json");
    let events = value["traceEvents"].as_array().unwrap();
    let named = events.iter().filter(|event| event["cat"] == "user_annotation").count();
    assert!(named >= 2 * 31 * 2, "{named}");
    let (_, cpu) = json(&folder, "rank_0_CPU_trace.json");
    let events = cpu["traceEvents"].as_array().unwrap();
    assert!(events.iter().filter(|event| event["ph"] == "X").count() >= 2 * 31 * 2);
}

#[test]
fn perfetto_has_the_raw_clocks_and_the_snapshots_to_align_them() {
    let (_root, folder) = profile(true);
    let bytes = fs::read(folder.dir().join("trace.pftrace")).unwrap();
    let (mut snapshots, mut begins, mut ends, mut clocks) = (0, 0, 0, HashSet::new());
    for (field, packet) in fields(&bytes).unwrap() {
        assert_eq!(field, 1);
        let Field::Bytes(packet) = packet else { panic!("a packet is a message") };
        for (field, value) in fields(packet).unwrap() {
            match (field, value) {
                (6, Field::Bytes(_)) => snapshots += 1,
                (58, Field::Varint(clock)) => {
                    clocks.insert(clock);
                }
                (11, Field::Bytes(event)) => {
                    let inner = fields(event).unwrap();
                    begins += usize::from(inner.contains(&(9, Field::Varint(1))));
                    ends += usize::from(inner.contains(&(9, Field::Varint(2))));
                }
                _ => {}
            }
        }
    }
    assert_eq!(clocks, HashSet::from([128, 129, 130, 131]));
    assert!(snapshots > 3, "{snapshots}");
    assert_eq!((begins, ends), (folder.samples().unwrap().len() * 3, begins));
}

#[test]
fn clocks_without_anchors_leave_their_times_out() {
    let (_root, folder) = profile(true);
    fs::remove_file(folder.dir().join("anchors.csv")).unwrap();
    folder.write_derived().unwrap();
    let (_, value) = json(&folder, "kineto/rank_0.pt.trace.json");
    let events = value["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|event| event["cat"] != "gpu_memcpy"));
    assert!(events.iter().any(|event| event["cat"] == "user_annotation"));
}
