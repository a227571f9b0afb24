//! Temperature, power and clocks of NVIDIA's devices while they are measured, through NVML, which
//! is opened at run time. Only [`crate::ClockLock`] changes settings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_gpu::Identity;
use polyrail_nvml::{Clock, LIBRARY, Nvml};
use polyrail_profile::{Recorder, Temperature};

use crate::reference_ns;

/// Five looks a second: power is a mean over a second anyway, and a look takes some 100 µs.
const EVERY: Duration = Duration::from_millis(200);

/// The source of device readings; tests replace NVML here.
pub trait Thermometer: Send + Sync {
    /// One look at each device, by rank.
    fn look(&self) -> Vec<Temperature>;

    /// The version of the driver.
    fn driver(&self) -> Option<String>;
}

/// Looks at devices; may be used from any thread.
pub struct Watcher {
    thermometer: Box<dyn Thermometer>,
    latest: Mutex<Vec<Temperature>>,
}

/// NVML, with rank and identity of each device.
struct NvmlThermometer {
    nvml: Nvml,
    devices: Vec<(u32, String)>,
}

/// Another process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Which device, by its number here.
    pub device: u32,
    /// The process, as this machine counts; others can't be seen from inside a container.
    pub pid: u32,
    /// Its name, if known.
    pub name: Option<String>,
}

impl Watcher {
    /// Opens the library for these devices, by rank. The error is a sentence: without NVML a
    /// profile only lacks temperatures.
    ///
    /// # Errors
    /// If the library is missing or does not start.
    pub fn open(devices: &[(u32, Identity)]) -> Result<Self, String> {
        let nvml = open_library()?;
        let devices = devices.iter().map(|(rank, identity)| (*rank, uuid_text(identity))).collect();
        Ok(Self::of(Box::new(NvmlThermometer { nvml, devices })))
    }

    /// Looks by something else.
    pub fn of(thermometer: Box<dyn Thermometer>) -> Self {
        Self { thermometer, latest: Mutex::default() }
    }

    /// The version of the driver.
    pub fn driver(&self) -> Option<String> {
        self.thermometer.driver()
    }

    /// The last look at a rank.
    pub fn latest(&self, rank: u32) -> Option<Temperature> {
        let latest = self.latest.lock();
        latest.iter().find(|look| look.rank == rank).copied()
    }

    /// Looks at all devices now.
    pub fn look(&self) -> Vec<Temperature> {
        let looks = self.thermometer.look();
        *self.latest.lock() = looks.clone();
        looks
    }

    /// Writes a look at each device five times a second, until `stop`. Ends silently if the folder
    /// can't be written: the measuring thread reports that.
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

/// Other processes on these devices; empty without NVML, which then says so elsewhere.
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

/// The identities of devices for [`crate::ClockLock`], valid in every process.
pub fn device_names(devices: &[Identity]) -> Vec<String> {
    devices.iter().map(uuid_text).collect()
}

/// Locks the processors' clocks of these devices, until [`unlock_clocks`]: the lock outlives the process.
///
/// # Errors
/// A sentence with the reason: no NVML, no permission, a device that can't.
pub(crate) fn lock_clocks(names: &[String], mhz: u32) -> Result<(), String> {
    let nvml = open_library()?;
    for name in names {
        let device = nvml.device_by_uuid(name).map_err(|error| error.to_string())?;
        device.lock_clocks(mhz).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Removes the locks of all these devices; goes on if one refuses.
///
/// # Errors
/// A sentence with the reason, of the first device that refused.
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

/// As NVML writes it: `GPU-8f3c…`.
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
