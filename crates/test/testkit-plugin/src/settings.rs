//! Settings from the environment.

use std::net::IpAddr;

use polyrail_nccl_abi::UNPACK_VERSION;
use polyrail_sys::interfaces;

/// Functions of a table that `SCATTER_FAIL_CALL` may name.
const CALLS: &[&str] = &[
    "init",
    "devices",
    "getProperties",
    "listen",
    "connect",
    "accept",
    "regMr",
    "deregMr",
    "isend",
    "irecv",
    "iflush",
    "test",
    "closeSend",
    "closeRecv",
    "closeListen",
    "irecvConsumed",
    "finalize",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the receiver's buffer, in host memory.
    Plain,
    /// In fragments, in a bounce buffer in host memory.
    Unpack,
    /// In fragments, in a bounce buffer of a GPU. The list has the GPU of each device; the last one also serves all
    /// further devices.
    UnpackGpu(Vec<u32>),
}

/// Invalid metadata that a host must not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadMetadata {
    /// More fragments than a message can have.
    Count,
    /// A fragment beyond the end of the receiver's buffer.
    Target,
    /// A fragment beyond the end of the bounce buffer.
    Source,
    /// Two fragments with the same target, so that other bytes are missing.
    Twice,
}

/// Behaviour of the plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name and address of each device.
    pub devices: Vec<(String, IpAddr)>,
    pub mode: Mode,
    /// Seed of random places.
    pub seed: u64,
    /// Mean length of a fragment in bytes.
    pub fragment_bytes: u32,
    /// Maximum deviation from that length. With 0 every fragment begins at a page.
    pub jitter_bytes: u32,
    /// Size of the bounce buffer of each device.
    pub bounce_bytes: u64,
    /// Speed that the devices report, in Mbit/s.
    pub speed_mbps: i32,
    /// PCI path that each device reports; the last one also applies to all further devices.
    pub pci_paths: Vec<String>,
    /// Version of unpacking that devices and their handles declare.
    pub unpack_version: i32,
    /// Version of this plugin that handles of listeners declare.
    pub handle_version: u8,
    /// Function that fails, and the number of calls that succeed before.
    pub fail_call: Option<(&'static str, u64)>,
    /// Device that fails, and the number of bytes it moves before.
    pub fail_after: Option<(usize, u64)>,
    /// Device that becomes silent, and the number of bytes it moves before.
    pub silent_after: Option<(usize, u64)>,
    /// Function that is slow, the number of calls before, and its duration in milliseconds.
    pub slow_call: Option<(&'static str, u64, u64)>,
    /// Milliseconds for which accepting a connection blocks all other calls.
    pub accept_holds_ms: u64,
    /// True if connections are never established.
    pub never_connects: bool,
    /// True if messages to host memory land in place even if those to a GPU arrive in fragments, as with TCPX
    /// (`taskProgress` in `net_tcpx.cc`).
    pub host_in_place: bool,
    /// CPU of a thread that each end of a connection starts.
    pub thread_cpu: Option<u32>,
    /// True if sent messages are never reported as sent.
    pub never_sent: bool,
    /// Fault of the metadata.
    pub bad_metadata: Option<BadMetadata>,
}

/// Error for a variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {allowed}")]
pub struct SettingError {
    pub name: &'static str,
    pub value: String,
    pub allowed: String,
}

impl Settings {
    /// Reads the variables, all of which begin with `SCATTER_`:
    ///
    /// | variable | meaning | default |
    /// |---|---|---|
    /// | `DEVICES` | addresses or interfaces, one device each; `none` for no device | `127.0.0.1` |
    /// | `MODE` | `plain`, `unpack`, or `unpack-gpu` | `plain` |
    /// | `GPUS` | for `unpack-gpu`: the GPU of each device; the last one also serves all further devices | `0` |
    /// | `SEED` | seed of random places | 1 |
    /// | `FRAGMENT_BYTES` | mean length of a fragment | 4096 |
    /// | `JITTER_BYTES` | maximum deviation from that length; with 0 fragments begin at pages | 1023 |
    /// | `BOUNCE_BYTES` | size of the bounce buffer of each device | 128 MiB in mode `unpack-gpu`, else 32 MiB |
    /// | `SPEED` | speed of the devices in Mbit/s | 10000 |
    /// | `PCI` | path of each device's PCI folder; the last one also applies to all further devices | none |
    /// | `UNPACK_VERSION` | version of unpacking that devices declare | 7 |
    /// | `HANDLE_VERSION` | version of this plugin that listeners declare | 1 |
    /// | `FAIL_CALL` | `isend`, or `isend:3`: its calls fail, after that many successful ones | none |
    /// | `FAIL_AFTER` | `1:1048576`: device 1 fails when it has moved this many bytes | none |
    /// | `SILENT_AFTER` | `1:1048576`: device 1 stops without an error when it has moved this many bytes | none |
    /// | `SLOW_CALL` | `closeSend:3:500`: its calls take 500 ms, after 3 that do not | none |
    /// | `ACCEPT_HOLDS` | accepting a connection takes this many milliseconds, and blocks all other calls meanwhile, like an allocating driver | 0 |
    /// | `NEVER_CONNECTS` | 1: connections are never established | 0 |
    /// | `HOST_IN_PLACE` | 1: messages to host memory land in place, without fragments, as with TCPX | 1 in mode `unpack-gpu`, else 0 |
    /// | `THREAD_CPU` | each end of a connection starts an idle thread on this CPU | no thread |
    /// | `NEVER_SENT` | 1: sent messages are never reported as sent | 0 |
    /// | `BAD_METADATA` | `count`, `target`, `source` or `twice` | none |
    ///
    /// # Errors
    /// If a value is not allowed.
    pub fn parse(value: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let read = Read(&value);
        let jitter_bytes = read.number("SCATTER_JITTER_BYTES", 1023, 0, 1 << 20)? as u32;
        let least = u64::from(jitter_bytes) + 1;
        let mode = read.mode()?;
        let is_gpu = matches!(mode, Mode::UnpackGpu(_));
        // Every page in host memory is touched before a connection is used: on busy CPUs that took more than 10 s for
        // 128 MiB.
        let bounce = if is_gpu { 128 << 20 } else { 32 << 20 };
        let bounce = read.number("SCATTER_BOUNCE_BYTES", bounce, 4096, u32::MAX.into())?;
        let in_place = u64::from(is_gpu);
        Ok(Self {
            devices: read.devices()?,
            mode,
            host_in_place: read.number("SCATTER_HOST_IN_PLACE", in_place, 0, 1)? == 1,
            seed: read.number("SCATTER_SEED", 1, 0, u64::MAX)?,
            fragment_bytes: read.number("SCATTER_FRAGMENT_BYTES", 4096, least, 1 << 20)? as u32,
            jitter_bytes,
            bounce_bytes: bounce,
            speed_mbps: read.number("SCATTER_SPEED", 10_000, 0, i32::MAX as u64)? as i32,
            pci_paths: value("SCATTER_PCI")
                .map(|paths| paths.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            unpack_version: read.number(
                "SCATTER_UNPACK_VERSION",
                UNPACK_VERSION as u64,
                0,
                i32::MAX as u64,
            )? as i32,
            handle_version: read.number("SCATTER_HANDLE_VERSION", 1, 0, 255)? as u8,
            fail_call: read.fail_call()?,
            fail_after: read.after("SCATTER_FAIL_AFTER")?,
            silent_after: read.after("SCATTER_SILENT_AFTER")?,
            slow_call: read.slow_call()?,
            accept_holds_ms: read.number("SCATTER_ACCEPT_HOLDS", 0, 0, 60_000)?,
            never_connects: read.number("SCATTER_NEVER_CONNECTS", 0, 0, 1)? == 1,
            thread_cpu: match value("SCATTER_THREAD_CPU") {
                Some(_) => Some(read.number("SCATTER_THREAD_CPU", 0, 0, 8191)? as u32),
                None => None,
            },
            never_sent: read.number("SCATTER_NEVER_SENT", 0, 0, 1)? == 1,
            bad_metadata: read.bad_metadata()?,
        })
    }

    /// GPU that holds a device's bounce buffer.
    pub(crate) fn gpu_of(&self, device: usize) -> Option<u32> {
        match &self.mode {
            Mode::UnpackGpu(gpus) => gpus.get(device).or(gpus.last()).copied(),
            Mode::Plain | Mode::Unpack => None,
        }
    }
}

struct Read<'a, F>(&'a F);

fn refused(name: &'static str, value: &str, allowed: impl Into<String>) -> SettingError {
    SettingError { name, value: value.into(), allowed: allowed.into() }
}

fn call_of(name: &str) -> Option<&'static str> {
    CALLS.iter().copied().find(|known| *known == name)
}

impl<F: Fn(&str) -> Option<String>> Read<'_, F> {
    fn number(
        &self,
        name: &'static str,
        default: u64,
        least: u64,
        most: u64,
    ) -> Result<u64, SettingError> {
        let Some(value) = (self.0)(name) else { return Ok(default) };
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| refused(name, &value, format!("allowed is {least} to {most}")))
    }

    fn devices(&self) -> Result<Vec<(String, IpAddr)>, SettingError> {
        let name = "SCATTER_DEVICES";
        let value = (self.0)(name).unwrap_or_else(|| "127.0.0.1".into());
        if value == "none" {
            return Ok(Vec::new());
        }
        let found = interfaces::list().unwrap_or_default();
        let device = |(index, word): (usize, &str)| {
            if let Ok(address) = word.parse() {
                return Ok((format!("scatter{index}"), address));
            }
            let interface = found.iter().find(|interface| interface.name == word);
            let interface = interface.ok_or_else(|| {
                refused(name, &value, format!("{word} is no address and no interface with one"))
            })?;
            Ok((word.to_owned(), interface.address))
        };
        value.split(',').map(str::trim).enumerate().map(device).collect()
    }

    fn mode(&self) -> Result<Mode, SettingError> {
        let name = "SCATTER_MODE";
        let value = (self.0)(name).unwrap_or_else(|| "plain".into());
        match value.as_str() {
            "plain" => Ok(Mode::Plain),
            "unpack" => Ok(Mode::Unpack),
            "unpack-gpu" => {
                let name = "SCATTER_GPUS";
                let value = (self.0)(name).unwrap_or_else(|| "0".into());
                let gpus: Result<Vec<u32>, _> =
                    value.split(',').map(|gpu| gpu.trim().parse()).collect();
                let gpus =
                    gpus.map_err(|_| refused(name, &value, "allowed are numbers of GPUs"))?;
                Ok(Mode::UnpackGpu(gpus))
            }
            _ => Err(refused(name, &value, "allowed is plain, unpack or unpack-gpu")),
        }
    }

    fn fail_call(&self) -> Result<Option<(&'static str, u64)>, SettingError> {
        let name = "SCATTER_FAIL_CALL";
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let (call, before) = value.split_once(':').unwrap_or((&value, "0"));
        let (Some(call), Ok(before)) = (call_of(call), before.parse()) else {
            let calls = CALLS.join(", ");
            return Err(refused(name, &value, format!("allowed is one of {calls}, with :NUMBER")));
        };
        Ok(Some((call, before)))
    }

    fn slow_call(&self) -> Result<Option<(&'static str, u64, u64)>, SettingError> {
        let name = "SCATTER_SLOW_CALL";
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let mut parts = value.split(':');
        let call = parts.next().and_then(call_of);
        let numbers: Result<Vec<u64>, _> = parts.map(str::parse).collect();
        let (Some(call), Ok([before, ms])) = (call, numbers.as_deref()) else {
            let calls = CALLS.join(", ");
            let allowed = format!("allowed is CALL:NUMBER:MILLISECONDS, with one of {calls}");
            return Err(refused(name, &value, allowed));
        };
        Ok(Some((call, *before, *ms)))
    }

    /// Parses a device and a number of bytes.
    fn after(&self, name: &'static str) -> Result<Option<(usize, u64)>, SettingError> {
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let parts = value.split_once(':');
        let parts =
            parts.and_then(|(device, bytes)| Some((device.parse().ok()?, bytes.parse().ok()?)));
        Ok(Some(parts.ok_or_else(|| refused(name, &value, "allowed is DEVICE:BYTES"))?))
    }

    fn bad_metadata(&self) -> Result<Option<BadMetadata>, SettingError> {
        let name = "SCATTER_BAD_METADATA";
        let Some(value) = (self.0)(name) else { return Ok(None) };
        Ok(Some(match value.as_str() {
            "count" => BadMetadata::Count,
            "target" => BadMetadata::Target,
            "source" => BadMetadata::Source,
            "twice" => BadMetadata::Twice,
            _ => return Err(refused(name, &value, "allowed is count, target, source or twice")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::parse(|name| {
            let found = variables.iter().find(|(known, _)| format!("SCATTER_{known}") == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_say_what_the_plugin_is_like() {
        let settings = parse(&[
            ("DEVICES", "127.0.0.1, lo"),
            ("MODE", "unpack-gpu"),
            ("GPUS", "3,4"),
            ("FAIL_CALL", "isend:3"),
            ("FAIL_AFTER", "1:99"),
            ("SILENT_AFTER", "0:7"),
            ("SLOW_CALL", "closeSend:2:500"),
            ("BAD_METADATA", "twice"),
        ])
        .unwrap();
        let names: Vec<&str> = settings.devices.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["scatter0", "lo"]);
        assert_eq!([0, 1, 7].map(|device| settings.gpu_of(device)), [Some(3), Some(4), Some(4)]);
        assert_eq!(settings.fail_call, Some(("isend", 3)));
        assert_eq!(settings.fail_after, Some((1, 99)));
        assert_eq!(settings.silent_after, Some((0, 7)));
        assert_eq!(settings.slow_call, Some(("closeSend", 2, 500)));
        assert_eq!(settings.bad_metadata, Some(BadMetadata::Twice));
        assert_eq!(parse(&[("DEVICES", "none")]).unwrap().devices, []);
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        for (name, value, expected) in [
            ("DEVICES", "eth99", "eth99 is no address and no interface with one"),
            ("MODE", "fast", "allowed is plain, unpack or unpack-gpu"),
            ("SPEED", "-1", "allowed is 0 to 2147483647"),
            ("FRAGMENT_BYTES", "1023", "allowed is 1024 to 1048576"),
            ("FAIL_CALL", "send", "allowed is one of init, devices"),
            ("FAIL_AFTER", "5", "allowed is DEVICE:BYTES"),
            ("SLOW_CALL", "listen:1", "allowed is CALL:NUMBER:MILLISECONDS"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err().to_string();
            let begin = format!("SCATTER_{name}={value}: {expected}");
            assert!(error.starts_with(&begin), "{error}");
        }
    }
}
