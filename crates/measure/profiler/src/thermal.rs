//! Temperature, power and clocks of NVIDIA's devices while they are measured, through NVML, which is opened at run
//! time. Only [`crate::ClockLock`] changes settings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_gpu::Identity;
use polyrail_nvml::{Clock, LIBRARY, Nvml};
use polyrail_profile::{Recorder, Temperature};

use crate::reference_ns;

/// Reading interval: power is a mean over a second anyway, and a reading takes some 100 µs.
const EVERY: Duration = Duration::from_millis(200);

/// Source of device readings; tests replace NVML here.
pub trait Thermometer: Send + Sync {
    /// Reads each device, by rank.
    fn look(&self) -> Vec<Temperature>;

    /// Returns the version of the driver.
    fn driver(&self) -> Option<String>;
}

/// Reads devices; may be used from any thread.
pub struct Watcher {
    thermometer: Box<dyn Thermometer>,
    latest: Mutex<Vec<Temperature>>,
}

/// NVML, with the rank and UUID of each device.
struct NvmlThermometer {
    nvml: Nvml,
    devices: Vec<(u32, String)>,
}

/// Another process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Index of the device in this process.
    pub device: u32,
    /// Process ID on this machine; inside a container, other processes are not visible.
    pub pid: u32,
    /// Name of the process, if known.
    pub name: Option<String>,
}

impl Watcher {
    /// Opens the library for these devices, by rank. The error is a sentence: without NVML, a profile only lacks
    /// temperatures.
    ///
    /// # Errors
    /// If the library is missing or does not start.
    pub fn open(devices: &[(u32, Identity)]) -> Result<Self, String> {
        let nvml = open_library()?;
        let devices = devices.iter().map(|(rank, identity)| (*rank, uuid_text(identity))).collect();
        Ok(Self::of(Box::new(NvmlThermometer { nvml, devices })))
    }

    /// Creates a watcher with another source of readings.
    pub fn of(thermometer: Box<dyn Thermometer>) -> Self {
        Self { thermometer, latest: Mutex::default() }
    }

    /// Returns the version of the driver.
    pub fn driver(&self) -> Option<String> {
        self.thermometer.driver()
    }

    /// Returns the last reading of a rank.
    pub fn latest(&self, rank: u32) -> Option<Temperature> {
        let latest = self.latest.lock();
        latest.iter().find(|look| look.rank == rank).copied()
    }

    /// Reads all devices now.
    pub fn look(&self) -> Vec<Temperature> {
        let looks = self.thermometer.look();
        *self.latest.lock() = looks.clone();
        looks
    }

    /// Writes a reading of each device five times a second, until `stop`. Ends silently if the folder can't be written:
    /// the measuring thread reports that.
    pub(crate) fn log(&self, recorder: &Recorder, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            for look in self.look() {
                if recorder.append_temperature(&look).is_err() {
                    return;
                }
            }
            std::thread::sleep(EVERY);
        }
    }
}

impl Thermometer for NvmlThermometer {
    fn look(&self) -> Vec<Temperature> {
        self.devices.iter().map(|(rank, uuid)| self.look_at(*rank, uuid)).collect()
    }

    fn driver(&self) -> Option<String> {
        self.nvml.driver_version().ok()
    }
}

impl NvmlThermometer {
    fn look_at(&self, rank: u32, uuid: &str) -> Temperature {
        let at_ns = reference_ns();
        let Ok(device) = self.nvml.device_by_uuid(uuid) else {
            return Temperature { at_ns, rank, ..Temperature::default() };
        };
        Temperature {
            at_ns,
            rank,
            temperature_c: device.temperature_c().ok().map(f64::from),
            memory_temperature_c: None,
            power_w: device.power_mw().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            sm_clock_mhz: device.clock_mhz(Clock::Sm).ok(),
            memory_clock_mhz: device.clock_mhz(Clock::Memory).ok(),
            clock_reasons: device.clock_reasons().ok(),
        }
    }
}

/// Returns other processes on these devices; empty without NVML, which is reported elsewhere.
pub fn busy_devices(devices: &[Identity]) -> Vec<Foreign> {
    let Ok(nvml) = open_library() else { return Vec::new() };
    let mut found = Vec::new();
    for identity in devices {
        let Ok(device) = nvml.device_by_uuid(&uuid_text(identity)) else { continue };
        for pid in device.compute_processes().unwrap_or_default() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
            if pid != std::process::id() {
                found.push(Foreign {
                    device: identity.index,
                    pid,
                    name: name.map(|name| name.trim().to_owned()),
                });
            }
        }
    }
    found
}

/// Returns the identities of devices for [`crate::ClockLock`], valid in every process.
pub fn device_names(devices: &[Identity]) -> Vec<String> {
    devices.iter().map(uuid_text).collect()
}

/// Locks the processor clocks of these devices, until [`unlock_clocks`]: the lock outlives the process.
///
/// # Errors
/// If NVML or the permission is missing, or a device does not support it, as a sentence.
pub(crate) fn lock_clocks(names: &[String], mhz: u32) -> Result<(), String> {
    let nvml = open_library()?;
    for name in names {
        let device = nvml.device_by_uuid(name).map_err(|error| error.to_string())?;
        device.lock_clocks(mhz).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Unlocks all these devices; continues if one refuses.
///
/// # Errors
/// The error of the first device that refused, as a sentence.
pub fn unlock_clocks(names: &[String]) -> Result<(), String> {
    let nvml = open_library()?;
    let mut ended = Ok(());
    for name in names {
        let reset = nvml.device_by_uuid(name).and_then(|device| device.reset_clocks());
        ended = ended.and(reset.map_err(|error| format!("{name}: {error}")));
    }
    ended
}

fn open_library() -> Result<Nvml, String> {
    Nvml::open(LIBRARY).map_err(|error| format!("NVML tells nothing: {error}"))
}

/// Formats a UUID as NVML does: `GPU-8f3c…`.
pub(crate) fn uuid_text(identity: &Identity) -> String {
    let hex: String = identity.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use polyrail_gpu::PciAddress;

    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_does() {
        let pci = PciAddress { domain: 0, bus: 0x19, device: 0, function: 0 };
        let identity =
            Identity { index: 0, name: "x".into(), pci, uuid: [0xab; 16], memory_bytes: 1 };
        assert_eq!(uuid_text(&identity), "GPU-abababab-abab-abab-abab-abababababab");
    }
}
