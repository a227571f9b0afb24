//! Queries the library itself.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use polyrail_nvml::{Device, LIBRARY, Nvml, NvmlError};

use super::{GpuFacts, NvLink, NvLinkAccess, NvmlGpu, NvmlReport, SCHEMA_VERSION};

/// Reason why the library gave no answer at all. On most machines that is normal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVML tells nothing: {reason}")]
pub struct NvmlAbsent {
    reason: String,
}

/// Longest wait for the library. Without the persistence daemon the driver first wakes each GPU, which takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most NVLinks to ask for, more than any GPU has. The library refuses numbers beyond a GPU's last link.
const MOST_LINKS: u32 = 64;

/// Queries that the library has refused so far.
#[derive(Default)]
struct Asking {
    refusals: Vec<String>,
}

impl NvmlReport {
    /// Queries everything from the running machine's library. Takes milliseconds, or seconds if the library must wake
    /// GPUs first; gives up after 30 s.
    ///
    /// # Errors
    /// [`NvmlAbsent`] if there is no such library or no driver, or if the library does not answer. If the library
    /// refuses a single query, that value is `None`, and [`NvmlReport::refusals`] has the reason.
    pub fn ask() -> Result<Self, NvmlAbsent> {
        ask_within(LIBRARY, PATIENCE)
    }
}

/// Queries the library on a separate thread, and abandons the thread when the time is up: a GPU that has fallen off its
/// bus can block the library without end.
fn ask_within(library: &'static str, patience: Duration) -> Result<NvmlReport, NvmlAbsent> {
    let absent = |reason: String| NvmlAbsent { reason };
    let (sender, receiver) = mpsc::channel();
    let asking = move || {
        // The receiver is gone if this took too long.
        let _ = sender.send(ask_library(library));
    };
    let spawned = thread::Builder::new().name("pr-nvml".to_owned()).spawn(asking);
    spawned.map_err(|error| absent(format!("no thread to ask it on: {error}")))?;
    match receiver.recv_timeout(patience) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(error)) => Err(absent(error.to_string())),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(absent(format!("{library} did not answer within {} s", patience.as_secs())))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(absent(format!("the thread that asked {library} has ended")))
        }
    }
}

fn ask_library(library: &str) -> Result<NvmlReport, NvmlError> {
    let nvml = Nvml::open(library)?;
    let mut asking = Asking::default();
    let cuda = asking.said("CUDA version", nvml.cuda_version());
    let mut report = NvmlReport {
        schema_version: SCHEMA_VERSION,
        driver_version: asking.said("driver version", nvml.driver_version()),
        cuda_version: cuda.map(|(major, minor)| format!("{major}.{minor}")),
        nvml_version: asking.said("version of NVML", nvml.nvml_version()),
        ..NvmlReport::default()
    };
    let count = asking.said("number of GPUs", nvml.device_count()).unwrap_or(0);
    let devices: Vec<(u32, Device<'_>)> = (0..count)
        .filter_map(|index| {
            let device = asking.said(&format!("GPU {index}"), nvml.device_by_index(index))?;
            Some((index, device))
        })
        .collect();
    report.gpus = devices.iter().map(|(index, device)| asking.gpu(*index, device)).collect();
    for (at, (index, device)) in devices.iter().enumerate() {
        for (other_at, (other_index, other)) in devices.iter().enumerate() {
            let Some(address) = report.gpus[other_at].address.filter(|_| at != other_at) else {
                continue;
            };
            let what = format!("GPU {index}: NVLink to GPU {other_index}");
            let reaches = asking.said(&what, device.reaches_over_nvlink(other)).flatten();
            if let Some(is_possible) = reaches {
                report.gpus[at].nvlink_access.push(NvLinkAccess { address, is_possible });
            }
        }
    }
    report.refusals = asking.refusals;
    Ok(report)
}

impl Asking {
    /// Returns the value, or records why there is none.
    fn said<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::debug!(target: "polyrail::host", "NVML: {what}: {error}");
                self.refusals.push(format!("{what}: {error}"));
                None
            }
        }
    }

    fn gpu(&mut self, index: u32, device: &Device<'_>) -> NvmlGpu {
        let what = |name: &str| format!("GPU {index}: {name}");
        let pci = self.said(&what("PCI address"), device.pci_address());
        NvmlGpu {
            address: pci.and_then(|address| address.parse().ok()),
            facts: GpuFacts {
                name: self.said(&what("name"), device.name()),
                uuid: self.said(&what("UUID"), device.uuid()),
                memory_bytes: self.said(&what("memory"), device.memory_bytes()),
                pcie_generation: self.said(&what("PCIe generation"), device.pcie_generation()),
                pcie_generation_max: self
                    .said(&what("highest PCIe generation"), device.pcie_generation_max()),
                pcie_width_lanes: self.said(&what("PCIe width"), device.pcie_width()),
                pcie_width_max_lanes: self
                    .said(&what("highest PCIe width"), device.pcie_width_max()),
            },
            nvlinks: self.nvlinks(index, device),
            nvlink_access: Vec::new(),
        }
    }

    /// Returns the NVLinks; `None` if the library refuses even the first one.
    fn nvlinks(&mut self, index: u32, device: &Device<'_>) -> Option<Vec<NvLink>> {
        let mut links = Vec::new();
        for number in 0..MOST_LINKS {
            let what = format!("GPU {index}: NVLink {number}");
            let is_active = match device.nvlink_is_active(number) {
                Ok(is_active) => Some(is_active),
                // No more links. Some GPUs without any link also return this error.
                Err(error) if number > 0 && error.is_no_such_thing() => break,
                Err(error) if number > 0 => self.said(&what, Err(error)),
                refused => Some(self.said(&what, refused)?),
            };
            let remote = match is_active {
                Some(true) => {
                    self.said(&format!("{what}: other end"), device.nvlink_remote(number))
                }
                _ => None,
            };
            let remote = remote.and_then(|address| address.parse().ok());
            links.push(NvLink { is_active, remote });
        }
        Some(links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_which_file_is_not_there() {
        let absent = ask_within("libpolyrail-none.so.1", PATIENCE).unwrap_err();
        let text = absent.to_string();
        assert!(
            text.starts_with("NVML tells nothing: ") && text.contains("polyrail-none"),
            "{text}"
        );
    }

    #[test]
    fn a_library_that_is_another_one_is_no_panic() {
        let absent = ask_within("libc.so.6", PATIENCE).unwrap_err();
        assert!(absent.to_string().contains("nvmlInit"), "{absent}");
    }

    #[test]
    fn asking_this_machine_ends_in_a_report_or_a_reason() {
        match NvmlReport::ask() {
            Ok(report) => assert_eq!(report.schema_version, SCHEMA_VERSION),
            Err(absent) => assert!(absent.to_string().len() > "NVML tells nothing: ".len()),
        }
    }
}
