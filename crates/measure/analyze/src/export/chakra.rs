//! Chakra execution traces, `chakra.<rank>.et`: every configuration as a send at its source and a receive at its sink.
//! Both have peer, tag and size, which ASTRA-sim's feeder matches them by.
//!
//! A trace is a `GlobalMetadata` and then `Node`s, each after its length (`et_def.proto`). The feeder expects
//! `comm_size` as `int64` (it reads any other type as 0), `comm_src`, `comm_dst` and `comm_tag` as `int32`, and
//! `is_cpu_op` false. A node's time has whole microseconds only, so an additional attribute holds the nanoseconds.
//!
//! Every rank makes its transfers in the order of the plan, one after the other. All ranks have the same order, so no
//! deadlock is possible.

use polyrail_profile::protobuf::Message;

use super::File;
use crate::analysis::Analysis;
use crate::error::AnalyzeError;
use crate::summary::Summary;

const NAME: &str = "Chakra";
const VERSION: &str = "0.0.4";

const COMM_SEND_NODE: u64 = 5;
const COMM_RECV_NODE: u64 = 6;

const ATTRIBUTE_NAME: u32 = 1;
const ATTRIBUTE_DOUBLE: u32 = 3;
const ATTRIBUTE_INT32: u32 = 7;
const ATTRIBUTE_INT64: u32 = 9;
const ATTRIBUTE_BOOL: u32 = 27;
const ATTRIBUTE_STRING: u32 = 29;
const METADATA_VERSION: u32 = 1;
const METADATA_ATTRIBUTE: u32 = 2;
const NODE_ID: u32 = 1;
const NODE_NAME: u32 = 2;
const NODE_TYPE: u32 = 3;
const NODE_DATA_DEPS: u32 = 5;
const NODE_DURATION: u32 = 7;
const NODE_ATTRIBUTE: u32 = 10;

pub(super) fn export(analysis: &Analysis) -> Result<Vec<File>, AnalyzeError> {
    let path = analysis.one_path("this export")?;
    let transfers: Vec<&Summary> = analysis
        .configurations
        .iter()
        .filter(|one| one.path == path && one.load == polyrail_profile::Load::None)
        .collect();
    if let Some(huge) = transfers.iter().find(|one| i32::try_from(one.configuration).is_err()) {
        let why = format!("tag {}; allowed: 0 to {}", huge.configuration, i32::MAX);
        return Err(AnalyzeError::Export { target: NAME, why });
    }
    let trace = |rank: u32| {
        let mut bytes = Vec::new();
        metadata(analysis).write_delimited(&mut bytes);
        let own = transfers.iter().filter(|one| one.src == rank || one.dst == rank);
        for (id, one) in own.enumerate() {
            node(id as u64, one, one.src == rank).write_delimited(&mut bytes);
        }
        File { name: format!("chakra.{rank}.et"), bytes }
    };
    Ok(analysis.endpoints.iter().map(|endpoint| trace(endpoint.rank)).collect())
}

fn metadata(analysis: &Analysis) -> Message {
    let mut metadata = Message::new();
    metadata.text(METADATA_VERSION, VERSION);
    let source = format!("polyrail {}, measured", analysis.about.polyrail_version);
    metadata.message(
        METADATA_ATTRIBUTE,
        &attribute("source", |one| {
            one.text(ATTRIBUTE_STRING, &source);
        }),
    );
    metadata
}

fn node(id: u64, one: &Summary, is_send: bool) -> Message {
    let mut node = Message::new();
    let (verb, kind) = if is_send { ("send", COMM_SEND_NODE) } else { ("recv", COMM_RECV_NODE) };
    let name =
        format!("{verb}_cfg{:04}_s{}d{}_sz{}", one.configuration, one.src, one.dst, one.size_bytes);
    node.uint(NODE_ID, id).text(NODE_NAME, &name).uint(NODE_TYPE, kind);
    if let Some(before) = id.checked_sub(1) {
        node.uint(NODE_DATA_DEPS, before);
    }
    node.uint(NODE_DURATION, (one.median_ns / 1_000.0).round() as u64);
    // Sizes are at most 1 TiB, and tags were checked.
    let numbers = [("comm_src", one.src), ("comm_dst", one.dst), ("comm_tag", one.configuration)];
    for (name, number) in numbers {
        node.message(
            NODE_ATTRIBUTE,
            &attribute(name, |attribute| {
                attribute.int(ATTRIBUTE_INT32, number.into());
            }),
        );
    }
    node.message(
        NODE_ATTRIBUTE,
        &attribute("comm_size", |attribute| {
            attribute.uint(ATTRIBUTE_INT64, one.size_bytes);
        }),
    );
    node.message(
        NODE_ATTRIBUTE,
        &attribute("is_cpu_op", |attribute| {
            attribute.uint(ATTRIBUTE_BOOL, 0);
        }),
    );
    node.message(
        NODE_ATTRIBUTE,
        &attribute("duration_ns", |attribute| {
            attribute.double(ATTRIBUTE_DOUBLE, one.median_ns);
        }),
    );
    node
}

fn attribute(name: &str, value: impl FnOnce(&mut Message)) -> Message {
    let mut attribute = Message::new();
    attribute.text(ATTRIBUTE_NAME, name);
    value(&mut attribute);
    attribute
}
