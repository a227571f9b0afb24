//! JSON traces in Chrome's format: `rank_N.pt.trace.json` as PyTorch's profiler (Kineto) writes it, and
//! `rank_N_CPU_trace.json` with the host's view.
//!
//! Readers of Kineto's files expect things that its format does not state. HTA takes the rank from the first text
//! `"rank": N`, with a space, so `distributedInfo` comes first and no other key has that name. It aligns ranks only by
//! a common base. It rounds the start up and the end down to whole microseconds, so an event below a microsecond would
//! get a negative duration unless it starts on a whole one.

use serde_json::{Value, json};

use crate::plan::{Endpoint, EndpointKind, PathKind};

use super::{Event, Interval, Source};

/// Returns the trace of one endpoint for PyTorch's tools.
pub(super) fn kineto(source: &Source<'_>, endpoint: &Endpoint, pid: Option<u32>) -> String {
    let plan = source.folder.plan();
    let world = plan.endpoints.len();
    let ranks: Vec<usize> = (0..world).collect();
    let distributed = json!({
        "rank": endpoint.rank,
        "world_size": world,
        "backend": "polyrail",
        "pg_count": 1,
        "pg_config": [{
            "pg_name": "0", "pg_desc": "default_pg", "backend_config": "polyrail",
            "pg_size": world, "ranks": ranks,
        }],
    });
    let mut events = names(endpoint, pid);
    for (index, event) in source.events.iter().enumerate() {
        let rank = endpoint.rank;
        let mine = match event.configuration {
            one if one.src == rank => event.source,
            one if one.dst == rank => event.sink,
            _ => continue,
        };
        // HTA takes 0 for an event whose counterpart is not in the trace.
        let correlation = index as u64 + 1;
        let host_ns = event.sample.t_host_ns;
        if event.configuration.src == rank
            && let Some(host_ns) = host_ns
        {
            events.push(host_event(source, event, rank, host_ns, correlation));
        }
        let Some(interval) = mine else { continue };
        match endpoint.kind {
            EndpointKind::Gpu => {
                events.extend(device_events(source, event, rank, interval, correlation));
            }
            EndpointKind::Host if host_ns.is_none() || event.configuration.dst == rank => {
                let length_ns = interval.length_ns();
                events.push(complete(
                    &event.name,
                    "user_annotation",
                    cpu_row(rank),
                    1 + event.configuration.path as u32,
                    source.since_base_ns(interval.start.ns),
                    length_ns,
                    json!({"bytes": event.configuration.size_bytes}),
                ));
            }
            EndpointKind::Host => {}
        }
    }
    document(source, &distributed, &device_properties(endpoint), &events)
}

/// Returns the host's view of the transfers that leave an endpoint, with all metrics, and the log of its device as
/// counters.
pub(super) fn cpu(source: &Source<'_>, endpoint: &Endpoint, pid: Option<u32>) -> String {
    let rank = endpoint.rank;
    let mut events = names(endpoint, pid);
    for (index, event) in source.events.iter().enumerate() {
        if event.configuration.src != rank {
            continue;
        }
        let sample = &event.sample;
        let Some(length_ns) = sample.t_host_ns.or(sample.t_oneway_ns) else { continue };
        events.push(host_event(source, event, rank, length_ns.max(0.0), index as u64 + 1));
    }
    for look in source.temperatures.iter().filter(|look| look.rank == rank) {
        let counters = [
            ("temperature_c", look.temperature_c),
            ("power_w", look.power_w),
            ("sm_clock_mhz", look.sm_clock_mhz.map(f64::from)),
        ];
        for (name, value) in counters.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            events.push(json!({
                "ph": "C", "name": name, "pid": device_row(rank), "tid": 0,
                "ts": micros(source.since_base_ns(look.at_ns)), "args": {name: value},
            }));
        }
    }
    let distributed = json!({"rank": rank, "world_size": source.folder.plan().endpoints.len()});
    document(source, &distributed, &json!([]), &events)
}

/// Formats the root object: one event per line, so that the file stays readable, and the rank first.
fn document(source: &Source<'_>, distributed: &Value, devices: &Value, events: &[Value]) -> String {
    let run = source.folder.run();
    let mut text = format!(
        "{{\n\"schemaVersion\": 1,\n\"distributedInfo\": {distributed:#},\n\
         \"deviceProperties\": {devices:#},\n\"polyrail_version\": {},\n\"displayTimeUnit\": \"ns\",\n\
         \"baseTimeNanoseconds\": {},\n\"traceEvents\": [\n",
        Value::from(run.polyrail_version.as_str()),
        source.base_unix_ns
    );
    for (place, event) in events.iter().enumerate() {
        text.push_str(&event.to_string());
        text.push_str(if place + 1 < events.len() { ",\n" } else { "\n" });
    }
    text.push_str("]\n}\n");
    text
}

fn device_properties(endpoint: &Endpoint) -> Value {
    match endpoint.kind {
        EndpointKind::Gpu => json!([{"id": endpoint.rank, "name": endpoint.name}]),
        EndpointKind::Host => json!([]),
    }
}

/// Names the rows of the viewer. Row numbers differ between ranks, so that traces can be merged.
fn names(endpoint: &Endpoint, pid: Option<u32>) -> Vec<Value> {
    let rank = endpoint.rank;
    let process = pid.map_or(String::new(), |pid| format!(", process {pid}"));
    let name = |row: u32, name: String| json!({"ph": "M", "name": "process_name", "pid": row, "tid": 0, "ts": 0, "args": {"name": name}});
    vec![
        name(device_row(rank), format!("{} (rank {rank})", endpoint.name)),
        name(cpu_row(rank), format!("host of {} (rank {rank}{process})", endpoint.name)),
    ]
}

fn host_event(
    source: &Source<'_>,
    event: &Event<'_>,
    rank: u32,
    length_ns: f64,
    correlation: u64,
) -> Value {
    let sample = &event.sample;
    let configuration = event.configuration;
    let args = json!({
        "correlation": correlation,
        "bytes": configuration.size_bytes,
        "path": configuration.path,
        "t_oneway_ns": sample.t_oneway_ns,
        "t_rtt2_ns": sample.t_rtt2_ns,
        "t_gpu_ns": sample.t_gpu_ns,
        "t_host_ns": sample.t_host_ns,
        "bandwidth_bytes_per_s": sample.bandwidth_bytes_per_s,
        "flags": sample.flags.to_string(),
    });
    let start_ns = source.since_base_ns(sample.posted_ns);
    let row = cpu_row(rank);
    let tid = 1 + configuration.path as u32;
    complete(&event.name, "user_annotation", row, tid, start_ns, length_ns, args)
}

/// Events of the device, and the transfer's name around them.
fn device_events(
    source: &Source<'_>,
    event: &Event<'_>,
    rank: u32,
    interval: Interval,
    correlation: u64,
) -> Vec<Value> {
    let configuration = event.configuration;
    let is_source = configuration.src == rank;
    // Count streams from 1: HTA takes 0 and less for the host.
    let stream = 1 + configuration.path as u32;
    let start_ns = source.since_base_ns(interval.start.ns);
    let length_ns = interval.length_ns();
    let mut args = json!({
        "stream": stream,
        "device": rank,
        "correlation": correlation,
        "bytes": configuration.size_bytes,
        "start_ns": start_ns,
        "clock_uncertainty_ns": interval.start.uncertainty_ns.max(interval.end.uncertainty_ns),
    });
    let (category, name) = match configuration.path {
        PathKind::Nccl => {
            args["Collective name"] = if is_source { "send" } else { "recv" }.into();
            args[if is_source { "Dst Rank" } else { "Src Rank" }] =
                if is_source { configuration.dst } else { configuration.src }.into();
            args["In msg nelems"] = configuration.size_bytes.into();
            args["Out msg nelems"] = configuration.size_bytes.into();
            args["dtype"] = "Byte".into();
            args["Group size"] = source.folder.plan().endpoints.len().into();
            args["Process Group Name"] = "0".into();
            ("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        }
        PathKind::Kernel => ("kernel", "polyrail_copy"),
        _ => {
            args["fromDevice"] = configuration.src.into();
            args["toDevice"] = configuration.dst.into();
            ("gpu_memcpy", "Memcpy PtoP (Device -> Device)")
        }
    };
    let row = device_row(rank);
    let around = json!({"stream": stream});
    vec![
        complete(&event.name, "gpu_user_annotation", row, stream, start_ns, length_ns, around),
        complete(name, category, row, stream, start_ns, length_ns, args),
    ]
}

fn complete(
    name: &str,
    category: &str,
    row: u32,
    tid: u32,
    start_ns: i64,
    length_ns: f64,
    args: Value,
) -> Value {
    // An event below a microsecond starts on a whole one: see the module's description.
    let start_ns = if length_ns < 1_000.0 {
        start_ns.div_euclid(1_000).saturating_mul(1_000)
    } else {
        start_ns
    };
    json!({
        "ph": "X", "cat": category, "name": name, "pid": row, "tid": tid,
        "ts": micros(start_ns), "dur": length_ns.round() / 1e3, "args": args,
    })
}

/// Microseconds with the nanoseconds as decimals. Stays exact to the ns for runs of months.
fn micros(ns: i64) -> f64 {
    ns as f64 / 1e3
}

fn device_row(rank: u32) -> u32 {
    rank * 1_000
}

fn cpu_row(rank: u32) -> u32 {
    rank * 1_000 + 1
}
