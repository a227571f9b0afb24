//! Shows the current CPUs of interrupts.

use std::time::Duration;

use polyrail_host::{CpuSet, Interrupts, ReadError, Sysroot, Topology, Values};
use serde::Serialize;

use super::role::Role;
use super::vectors::Vectors;

/// A vector of a network interface, with everything that the kernel reports about its CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// The interface; several with commas, if ports of one device share the vector.
    pub nic: String,
    /// The node of the interface's device; `None` if unknown.
    pub nic_node: Option<u32>,
    pub pci: String,
    /// The vector's place in the device.
    pub index: u32,
    /// The interrupt's number, until the next restart of machine or driver.
    pub irq: u32,
    /// The driver's name for the vector.
    pub action: String,
    pub role: Role,
    /// The queue, counted from 0 in each direction.
    pub queue: Option<u32>,
    /// The CPUs that the interrupt may go to, as a list.
    pub wanted: Option<String>,
    /// The CPUs that the interrupt really goes to; `None` if the kernel does not report them.
    pub effective: Option<String>,
    /// The CPUs that the driver prefers; `None` if it has no preference.
    pub hint: Option<String>,
    /// Whether the interrupt goes to CPUs of the interface's node; `None` if either is unknown, or if it may go to CPUs
    /// of other nodes, too.
    pub is_on_node: Option<bool>,
    /// Number of interrupts since the machine was booted.
    pub total: u64,
    /// Interrupts per second during the measurement; `None` without one.
    pub per_second: Option<f64>,
    /// The CPU that got most interrupts during the measurement, or since boot without one.
    pub busiest_cpu: Option<u32>,
}

/// Shows the vectors of `nics` (empty means all), counting their interrupts for `window`. A window of zero reads once.
///
/// # Errors
/// [`ReadError`] with the path.
pub fn show(
    root: &Sysroot,
    topology: &Topology,
    nics: &[String],
    window: Duration,
) -> Result<Vec<Shown>, ReadError> {
    let vectors = Vectors::read_with_queues(root)?;
    let before = Interrupts::read(root)?;
    let after = match window.is_zero() {
        true => None,
        false => {
            std::thread::sleep(window);
            Some(Interrupts::read(root)?)
        }
    };
    let values = Values::of(root);
    let mut shown = Vec::new();
    for vector in &vectors.list {
        let Some(nic) = vector.nics.first() else { continue };
        if !nics.is_empty() && !vector.nics.iter().any(|nic| nics.contains(nic)) {
            continue;
        }
        let file = |name: &str| {
            let text = values.text(format!("/proc/irq/{}/{name}", vector.irq));
            text.filter(|text| !text.is_empty())
        };
        let (wanted, effective) = (file("smp_affinity_list"), file("effective_affinity_list"));
        let hint = file("affinity_hint").and_then(|mask| CpuSet::parse_mask(&mask).ok());
        let nic_node = topology.nic(nic).and_then(|nic| nic.node);
        let goes_to = effective.as_ref().or(wanted.as_ref());
        let goes_to = goes_to.and_then(|cpus| CpuSet::parse_list(cpus).ok());
        let counts = |table: &Interrupts| -> Vec<(u32, u64)> {
            let irq = table.irq(vector.irq);
            let counts = irq.map(|irq| irq.counts.clone()).unwrap_or_default();
            table.cpus.iter().copied().zip(counts).collect()
        };
        let first = counts(&before);
        let delta = after.as_ref().map(|after| difference(&first, &counts(after)));
        let came = delta.as_ref().unwrap_or(&first);
        let busiest = came.iter().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| count);
        shown.push(Shown {
            nic: vector.nics.join(","),
            nic_node,
            pci: vector.id.pci.clone(),
            index: vector.id.index,
            irq: vector.irq,
            action: vector.id.action.clone(),
            role: vector.role,
            queue: vector.queue,
            is_on_node: goes_to.and_then(|cpus| topology.is_on_node(nic_node, &cpus)),
            wanted,
            effective,
            hint: hint.filter(|hint| !hint.is_empty()).map(|hint| hint.to_string()),
            total: first.iter().map(|(_, count)| count).sum(),
            per_second: delta.as_ref().map(|delta| {
                let sum: u64 = delta.iter().map(|(_, count)| count).sum();
                sum as f64 / window.as_secs_f64()
            }),
            busiest_cpu: busiest.map(|(cpu, _)| *cpu),
        });
    }
    Ok(shown)
}

/// Returns the interrupts between two reads. CPUs may come and go meanwhile, and counters wrap at
/// 2³².
fn difference(before: &[(u32, u64)], after: &[(u32, u64)]) -> Vec<(u32, u64)> {
    let of = |cpu: u32| before.iter().find(|(known, _)| *known == cpu).map(|(_, count)| *count);
    let delta = |cpu: u32, now: u64| match of(cpu) {
        Some(then) if then <= now => now - then,
        Some(then) => (now + (1 << 32)).saturating_sub(then),
        None => 0,
    };
    after.iter().map(|(cpu, now)| (*cpu, delta(*cpu, *now))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_wrap_and_cpus_that_come_make_no_wild_rates() {
        let before = [(0, 10), (1, (1 << 32) - 2), (3, 7)];
        let after = [(0, 15), (1, 3), (2, 99)];
        assert_eq!(difference(&before, &after), [(0, 5), (1, 5), (2, 0)]);
    }
}
