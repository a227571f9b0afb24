//! NUMA nodes.

use serde::Serialize;

use super::cpus::read_list;
use crate::cpuset::CpuSet;
use crate::sysroot::{ReadError, Sysroot, short};

const FOLDER: &str = "/sys/devices/system/node";

/// A NUMA node: memory and the CPUs next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs; none if it is memory only, as the memory of some GPUs is.
    pub cpus: CpuSet,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// Node and its distance, where 10 is local. The firmware claims it; nobody measures it.
    pub distances: Vec<(u32, u32)>,
}

impl Node {
    /// Reads every node that is online; none if the kernel was built without them.
    pub(super) fn read_all(root: &Sysroot) -> Result<Vec<Self>, ReadError> {
        let ids = match read_list(root, &format!("{FOLDER}/online"))? {
            Some(ids) => ids.iter().collect(),
            // A container may show the nodes, but not this file.
            None => {
                let names = root.list_optional(FOLDER)?;
                let id = |name: &String| name.strip_prefix("node")?.parse().ok();
                names.iter().filter_map(id).collect::<Vec<u32>>()
            }
        };
        ids.iter().map(|id| Self::read(root, *id, &ids)).collect()
    }

    fn read(root: &Sysroot, id: u32, ids: &[u32]) -> Result<Self, ReadError> {
        let file = |name: &str| format!("{FOLDER}/node{id}/{name}");
        let distances = match root.read_optional(file("distance"))? {
            Some(text) => {
                let values =
                    text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>();
                let values = values.map_err(|_| {
                    root.content(file("distance"), format!("has `{}`, not numbers", short(&text)))
                })?;
                ids.iter().copied().zip(values).collect()
            }
            None => Vec::new(),
        };
        let meminfo = root.read_optional(file("meminfo"))?.unwrap_or_default();
        Ok(Self {
            id,
            cpus: read_list(root, &file("cpulist"))?.unwrap_or_default(),
            memory_bytes: meminfo.lines().find_map(total_bytes),
            distances,
        })
    }
}

/// Reads `Node 0 MemTotal:  16379308 kB`.
fn total_bytes(line: &str) -> Option<u64> {
    let (_, value) = line.split_once("MemTotal:")?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}
