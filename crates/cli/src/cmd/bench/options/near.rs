//! Choice of rails by their distance from a GPU.

use polyrail_gpu::Device;
use polyrail_gpu::cuda::Cuda;
use polyrail_host::{Sysroot, Topology};

use super::memory_kind::MemoryKind;
use crate::fault::Fault;

/// Value of `--rails` that selects the interfaces nearest to the memory.
pub(crate) const NEAR: &str = "near";

/// Returns the interfaces nearest to the GPU of `--mem`, in the form of the setting `rails`.
pub(crate) fn near_rails(memory: MemoryKind) -> Result<String, Fault> {
    let MemoryKind::Cuda(index) = memory else {
        let allowed = "with --mem cuda:N, whose interfaces they are";
        return Err(Fault::usage("--rails", NEAR, "has no GPU to be near to", allowed));
    };
    let pci = Cuda::load()?.device(index)?.identity().pci.to_string();
    let topology = Topology::read(&Sysroot::live()).map_err(|error| unknown(&error.to_string()))?;
    nearest(&topology, &pci).map(|names| names.join(",")).map_err(|reason| unknown(&reason))
}

fn unknown(reason: &str) -> Fault {
    let allowed = "interfaces by name; `polyrail host show matrix` shows what the machine tells";
    Fault::usage("--rails", NEAR, format!("can't be found out: {reason}"), allowed)
}

/// Returns the best interface for the GPU at this address, and all others at the same distance.
fn nearest(topology: &Topology, pci: &str) -> Result<Vec<String>, String> {
    let gpu = topology.gpus.iter().find(|gpu| gpu.pci.address.to_string() == pci);
    let gpu = gpu.ok_or_else(|| format!("the machine shows no GPU at {pci}"))?;
    let choice = topology.choices().into_iter().find(|choice| choice.gpu == gpu.index);
    let choice = choice.ok_or("the GPU has no interface")?;
    let best = choice.nic.ok_or("no interface of a device is up")?;
    let distance = choice.distance.ok_or("the distance of the GPU is unknown")?;
    let others = choice.rivals.into_iter().filter(|rival| rival.distance == Some(distance));
    Ok(std::iter::once(best).chain(others.map(|rival| rival.nic)).collect())
}

#[cfg(test)]
mod tests {
    use polyrail_host::fixtures;

    use super::*;

    #[test]
    fn each_gpu_of_a_node_has_the_interface_behind_its_switch() {
        let fixture = fixtures::a3_high();
        let topology = Topology::read(&fixture.root()).unwrap();
        for (index, gpu) in topology.gpus.iter().enumerate() {
            let near = nearest(&topology, &gpu.pci.address.to_string()).unwrap();
            assert_eq!(near, [format!("eth{}", index / 2 + 1)], "GPU {index}");
        }
        assert!(nearest(&topology, "0000:ff:00.0").is_err());
    }

    #[test]
    fn host_memory_is_near_to_nothing() {
        let error = near_rails(MemoryKind::Host).unwrap_err().to_string();
        assert!(error.starts_with("--rails `near`: has no GPU to be near to"), "{error}");
    }
}
