//! CPUs, and the cores and caches that they share.

use std::collections::HashSet;

use serde::Serialize;

use crate::cpuset::{CpuSet, LAST_CPU};
use crate::sysroot::{ReadError, Sysroot};
use crate::values::Values;

const FOLDER: &str = "/sys/devices/system/cpu";

/// The CPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    pub online: CpuSet,
    /// CPUs that could be switched on without a restart.
    pub possible: CpuSet,
    /// CPUs that are switched off. A container may see fewer CPUs than are switched on.
    #[serde(skip)]
    pub offline: CpuSet,
    /// CPUs kept free of ordinary threads by the boot option `isolcpus`.
    pub isolated: CpuSet,
    /// Each online CPU, in ascending order.
    pub list: Vec<Cpu>,
    /// Every cache once, by level and first CPU; empty on machines that hide them.
    pub caches: Vec<Cache>,
    /// Vendor, such as `GenuineIntel`, from `/proc/cpuinfo`.
    pub vendor: Option<String>,
    /// Family and model numbers of `/proc/cpuinfo`; x86 only.
    pub family_model: Option<(u32, u32)>,
    /// Model name, such as `Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz`.
    pub model_name: Option<String>,
}

/// One CPU: a core, or one of the threads of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    pub id: u32,
    pub package: Option<i32>,
    /// Number of the core within its socket.
    pub core: Option<i32>,
    /// Online CPUs of the same core, including this one.
    pub siblings: CpuSet,
}

/// Content of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    Data,
    Instruction,
    Unified,
}

/// A cache and the CPUs that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level, 1 to 4.
    pub level: u8,
    pub kind: CacheKind,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// CPUs that share the cache.
    pub cpus: CpuSet,
}

impl Cpus {
    /// Reads `/sys/devices/system/cpu` and `/proc/cpuinfo` below the root.
    ///
    /// # Errors
    /// As [`Self::read_online`].
    pub(super) fn read(values: &Values<'_>) -> Result<Self, ReadError> {
        let online = online(values)?;
        let mut cpus = Self {
            possible: values
                .cpus(format!("{FOLDER}/possible"))
                .filter(|possible| !possible.is_empty())
                .unwrap_or_else(|| online.clone()),
            isolated: values.cpus(format!("{FOLDER}/isolated")).unwrap_or_default(),
            list: online.iter().map(|id| Cpu::read(values, id, &online)).collect(),
            caches: read_caches(values, &online),
            online,
            ..Self::default()
        };
        let not_online = cpus.possible.difference(&cpus.online);
        // The file also lists CPUs that the kernel has no room for.
        cpus.offline = match values.cpus(format!("{FOLDER}/offline")) {
            Some(offline) => offline.intersection(&not_online),
            None => not_online,
        };
        cpus.read_cpuinfo(values);
        Ok(cpus)
    }

    /// Returns the online CPUs. If their list is damaged, returns all CPUs that have a folder or a row in `/proc/stat`.
    ///
    /// # Errors
    /// [`ReadError`] of the list, if there are no folders and no rows either.
    pub fn read_online(root: &Sysroot) -> Result<CpuSet, ReadError> {
        online(&Values::of(root))
    }

    /// Returns the CPU of this number, if it is online.
    pub fn get(&self, id: u32) -> Option<&Cpu> {
        let at = self.list.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        Some(&self.list[at])
    }

    /// Returns the CPUs of the same core as this one, including this one.
    pub fn siblings(&self, id: u32) -> CpuSet {
        self.get(id).map_or_else(CpuSet::new, |cpu| cpu.siblings.clone())
    }

    /// Groups the online CPUs of `set` by core, in the order of each core's first CPU.
    pub fn cores(&self, set: &CpuSet) -> Vec<CpuSet> {
        let mut seen = CpuSet::new();
        let mut cores = Vec::new();
        for id in set.iter().filter(|id| self.get(*id).is_some()) {
            if seen.contains(id) {
                continue;
            }
            let core = self.siblings(id).intersection(set);
            seen.extend(core.iter());
            cores.push(core);
        }
        cores
    }

    /// Returns `c, c+104` if the threads of every core have the same distance; `None` with one thread per core or
    /// without such a rule.
    pub fn sibling_rule(&self) -> Option<String> {
        let offsets = |cpu: &Cpu| -> Option<Vec<u32>> {
            let first = cpu.siblings.first()?;
            Some(cpu.siblings.iter().map(|sibling| sibling - first).collect())
        };
        let rule = offsets(self.list.first()?)?;
        let holds =
            rule.len() > 1 && self.list.iter().all(|cpu| offsets(cpu).as_ref() == Some(&rule));
        let terms =
            |offset: &u32| if *offset == 0 { "c".to_owned() } else { format!("c+{offset}") };
        holds.then(|| rule.iter().map(terms).collect::<Vec<_>>().join(", "))
    }

    fn read_cpuinfo(&mut self, values: &Values<'_>) {
        let Some(text) = values.text("/proc/cpuinfo") else { return };
        // The first block is enough: machines with different kinds of socket do not exist.
        let first = text.split("\n\n").next().unwrap_or_default();
        let field = |name: &str| {
            let mut pairs = first.lines().filter_map(|line| line.split_once(':'));
            pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let number = |name: &str| field(name).and_then(|value| value.parse().ok());
        self.vendor = field("vendor_id").or_else(|| field("CPU implementer"));
        self.model_name = field("model name");
        self.family_model = number("cpu family").zip(number("model"));
    }
}

impl Cpu {
    fn read(values: &Values<'_>, id: u32, online: &CpuSet) -> Self {
        let file = |name: &str| format!("{FOLDER}/cpu{id}/topology/{name}");
        // `core_cpus_list` is the name since 5.2; the older name still exists.
        let siblings = values.cpus(file("thread_siblings_list"));
        let siblings = siblings.or_else(|| values.cpus(file("core_cpus_list")));
        // A container may see fewer CPUs than these files list.
        let mut siblings = siblings.unwrap_or_default().intersection(online);
        // If a machine hides its cores, assume one CPU per core.
        siblings.insert(id);
        Self {
            id,
            package: values.parsed(file("physical_package_id")),
            core: values.parsed(file("core_id")),
            siblings,
        }
    }
}

fn online(values: &Values<'_>) -> Result<CpuSet, ReadError> {
    let (path, root) = (format!("{FOLDER}/online"), values.root());
    let list = root.read(&path).and_then(|text| match CpuSet::parse_list(&text) {
        Ok(list) if list.is_empty() => Err(root.content(&path, "names no CPU")),
        list => list.map_err(|error| root.content(&path, error.to_string())),
    });
    if list.is_ok() {
        return list;
    }
    let names = values.names(FOLDER);
    let ids = names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok());
    let mut found: CpuSet = ids.filter(|id| *id <= LAST_CPU).collect();
    if found.is_empty() {
        // gVisor has no such folder.
        let stat = root.read("/proc/stat").unwrap_or_default();
        let rows = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split(' ').next());
        found = rows.filter_map(|id| id.parse().ok()).filter(|id| *id <= LAST_CPU).collect();
    }
    match found.is_empty() {
        true => list,
        false => {
            if list.as_ref().is_err_and(|error| !error.is_absent()) {
                values.keep(list);
            }
            Ok(found)
        }
    }
}

/// Returns the CPUs that the calling thread may use, from `/proc/thread-self/status`.
pub(super) fn read_allowed(values: &Values<'_>) -> Option<CpuSet> {
    let path = "/proc/thread-self/status";
    let text = values.text(path)?;
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    values.keep(
        CpuSet::parse_list(list.trim())
            .map_err(|error| values.root().content(path, format!("Cpus_allowed_list {error}"))),
    )
}

fn read_caches(values: &Values<'_>, online: &CpuSet) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    // Read each cache at the first CPU that has it: one read for a socket instead of a hundred.
    let mut known: HashSet<(String, u32)> = HashSet::new();
    for cpu in online.iter() {
        let folder = format!("{FOLDER}/cpu{cpu}/cache");
        for index in values.names(&folder).iter().filter(|name| name.starts_with("index")) {
            if known.contains(&(index.clone(), cpu)) {
                continue;
            }
            let Some(cache) = read_cache(values, &format!("{folder}/{index}"), cpu) else {
                continue;
            };
            known.extend(cache.cpus.iter().map(|cpu| (index.clone(), cpu)));
            caches.push(cache);
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.cpus.first(), cache.kind as u8));
    caches
}

fn read_cache(values: &Values<'_>, folder: &str, cpu: u32) -> Option<Cache> {
    let level = values.parsed(format!("{folder}/level"))?;
    let kind = match values.text(format!("{folder}/type"))?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        "Unified" => CacheKind::Unified,
        _ => return None,
    };
    let size = values.text(format!("{folder}/size"));
    let mut cpus = values.cpus(format!("{folder}/shared_cpu_list")).unwrap_or_default();
    cpus.insert(cpu);
    Some(Cache { level, kind, size_bytes: size.and_then(|size| parse_size(&size)), cpus })
}

/// Parses `48K` and `105M` as the kernel writes them, with 1024 to a K.
fn parse_size(text: &str) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let scale = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}
