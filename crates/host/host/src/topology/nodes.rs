//! NUMA nodes.

use serde::Serialize;

use crate::cpuset::CpuSet;
use crate::sysroot::short;
use crate::values::Values;

const FOLDER: &str = "/sys/devices/system/node";

/// A NUMA node: memory and the CPUs next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    pub id: u32,
    /// CPUs of the node; empty for memory-only nodes, such as the memory of some GPUs.
    pub cpus: CpuSet,
    pub memory_bytes: Option<u64>,
    /// Distance to each node, where 10 is local. The firmware claims these values; they are not measured.
    pub distances: Vec<(u32, u32)>,
}

impl Node {
    /// Reads every online node; none if the kernel was built without nodes.
    pub(super) fn read_all(values: &Values<'_>) -> Vec<Self> {
        let ids: Vec<u32> = match values.cpus(format!("{FOLDER}/online")) {
            Some(ids) => ids.iter().collect(),
            // A container may show the nodes, but hide this file.
            None => {
                let names = values.names(FOLDER);
                let id = |name: &String| name.strip_prefix("node")?.parse().ok();
                names.iter().filter_map(id).collect()
            }
        };
        ids.iter().map(|id| Self::read(values, *id, &ids)).collect()
    }

    fn read(values: &Values<'_>, id: u32, ids: &[u32]) -> Self {
        let file = |name: &str| format!("{FOLDER}/node{id}/{name}");
        let distances = values.text(file("distance")).and_then(|text| {
            let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>();
            values.keep(numbers.map_err(|_| {
                let fault = format!("has `{}`, not numbers", short(&text));
                values.root().content(file("distance"), fault)
            }))
        });
        let meminfo = values.text(file("meminfo")).unwrap_or_default();
        Self {
            id,
            cpus: values.cpus(file("cpulist")).unwrap_or_default(),
            memory_bytes: meminfo.lines().find_map(total_bytes),
            distances: ids.iter().copied().zip(distances.unwrap_or_default()).collect(),
        }
    }
}

/// Parses `Node 0 MemTotal:  16379308 kB`.
fn total_bytes(line: &str) -> Option<u64> {
    let (_, value) = line.split_once("MemTotal:")?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}
