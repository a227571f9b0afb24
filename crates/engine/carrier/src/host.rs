//! Hosting a plugin: loading it, and the properties of its devices.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polyrail_nccl_abi::{DEVICE_HOST, DEVICE_UNPACK, Properties, UNPACK_VERSION};

use crate::calls;
use crate::error::HostError;
use crate::lane::Lane;
use crate::loading::{self, Opened};
use crate::setup::{Job, Setup, Told};
use crate::tcpx::Wishes;
use crate::threads::{PluginThread, of_plugins};
use crate::unpack::MESSAGE_BYTES_MAX;

/// A plugin loaded by this process. It stays loaded until the process ends.
pub struct Host {
    name: String,
    version: u32,
    devices: Vec<HostedDevice>,
    wishes: Arc<Wishes>,
    setup: Setup,
}

/// A device of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct HostedDevice {
    /// Number in the plugin.
    pub number: usize,
    /// Name, often that of a network interface.
    pub name: String,
    /// Folder of the PCI device, if there is one.
    pub pci_path: Option<PathBuf>,
    /// Speed in Mbit/s, if the plugin knows it.
    pub speed_mbps: Option<u32>,
    /// True if the device takes host memory.
    pub takes_host: bool,
    /// True if the device takes GPU memory by address.
    pub takes_cuda: bool,
    /// True if the device leaves messages as fragments in a bounce buffer, and the host assembles them.
    pub unpacks: bool,
    /// Maximum message length in bytes.
    pub max_bytes: u64,
}

impl Host {
    /// Loads a plugin, named as in `NCCL_NET_PLUGIN`, by its newest table. The plugin's code runs in this process and
    /// can't be contained. A separate thread loads and initializes it, and is abandoned if that takes longer than
    /// [`Wishes::load_limit`]. GPUDirect-TCPX gets the wishes in environment variables.
    pub fn load(plugin: &str, wishes: Wishes) -> Result<Self, HostError> {
        calls::allow(wishes.call_limit);
        let Opened { net, devices } = loading::open(plugin, &wishes)?;
        let (name, version) = (net.name(), net.version());
        let mut all = Vec::with_capacity(devices.len());
        for (number, properties) in devices.into_iter().enumerate() {
            all.push(hosted(&name, number, properties)?);
        }
        tell_apart(&mut all);
        let devices = chosen(&name, all, &wishes.devices)?;
        let wishes = Arc::new(wishes);
        let setup = Setup::start(net, wishes.clone()).map_err(HostError::Thread)?;
        Ok(Self { name, version, devices, wishes, setup })
    }

    /// Name that the plugin reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Version of the plugin interface in use.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Selected devices.
    pub fn devices(&self) -> &[HostedDevice] {
        &self.devices
    }

    /// Threads that plugins have started in this process for their connections.
    pub fn threads(&self) -> Vec<PluginThread> {
        of_plugins(&self.wishes)
    }

    /// Listens on the device for one connection. `listening` gets the handle that a peer needs to connect, or an error;
    /// after that `accepted` gets the receiving lane, or an error if there is none in time. Time in which the plugin
    /// accepts other connections does not count. When `is_wanted` returns false, the connection is dropped silently.
    /// The callbacks run on a thread of the host and must not block.
    pub fn accept(
        &self,
        device: usize,
        limit: Duration,
        is_wanted: impl Fn() -> bool + Send + 'static,
        listening: impl FnOnce(Result<Vec<u8>, String>) + Send + 'static,
        accepted: impl FnOnce(Result<Lane, String>) + Send + 'static,
    ) {
        let told = Told { is_wanted: Box::new(is_wanted), came: Box::new(accepted) };
        self.setup.give(Job::Accept { device, limit, listening: Box::new(listening), told });
    }

    /// Connects from the device to the handle of a peer's [`Host::accept`]. `connected` gets the sending lane, or an
    /// error if there is none in time, as with [`Host::accept`].
    pub fn connect(
        &self,
        device: usize,
        handle: &[u8],
        limit: Duration,
        is_wanted: impl Fn() -> bool + Send + 'static,
        connected: impl FnOnce(Result<Lane, String>) + Send + 'static,
    ) {
        let told = Told { is_wanted: Box::new(is_wanted), came: Box::new(connected) };
        self.setup.give(Job::Connect { device, handle: handle.to_vec(), limit, told });
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({}, version {}, {:?})", self.name, self.version, self.devices)
    }
}

/// Reason why no host takes a device with these properties, if there is one.
pub fn refusal(properties: &Properties) -> Option<String> {
    match hosted("", 0, properties.clone()) {
        Err(HostError::Property { field, value, allowed, .. }) => {
            Some(format!("{field} is {value}, allowed is {allowed}"))
        }
        _ => None,
    }
}

fn hosted(plugin: &str, number: usize, properties: Properties) -> Result<HostedDevice, HostError> {
    let wrong = |field, value: String, allowed| {
        let device = match properties.name.as_str() {
            "" => number.to_string(),
            name => name.to_owned(),
        };
        HostError::Property { name: plugin.to_owned(), device, field, value, allowed }
    };
    if properties.name.is_empty() {
        return Err(wrong("name", "empty".into(), "a name"));
    }
    if properties.name.contains(polyrail_text::steers) {
        return Err(wrong("name", format!("{:?}", properties.name), "a name that can be printed"));
    }
    let Ok(speed_mbps) = u32::try_from(properties.speed_mbps) else {
        let value = format!("{} Mbit/s", properties.speed_mbps);
        return Err(wrong("speed", value, "0 (not known) and more"));
    };
    if !properties.takes_host() {
        let value = format!("{:#x}", properties.ptr_support);
        return Err(wrong("ptrSupport", value, "what has the bit for host memory (1)"));
    }
    let kind = (properties.device_type, properties.device_version);
    let unpacks = kind == (DEVICE_UNPACK, UNPACK_VERSION);
    if properties.device_type != DEVICE_HOST && !unpacks {
        let value = format!("{} of version {}", kind.0, kind.1);
        return Err(wrong(
            "netDeviceType",
            value,
            "0 (the host finishes receives) or 1 (unpack) of version 7",
        ));
    }
    if properties.max_p2p_bytes == 0 {
        return Err(wrong("maxP2pBytes", "0".into(), "1 and more"));
    }
    Ok(HostedDevice {
        number,
        // Some plugins don't know the speed. NCCL assumes 10 Gbit/s then.
        speed_mbps: Some(speed_mbps).filter(|speed| *speed > 0),
        takes_host: properties.takes_host(),
        takes_cuda: properties.takes_cuda(),
        unpacks,
        max_bytes: match unpacks {
            true => MESSAGE_BYTES_MAX.min(properties.max_p2p_bytes as u64),
            false => properties.max_p2p_bytes as u64,
        },
        // A path that does not exist gives no location.
        pci_path: properties.pci_path.filter(|path| path.is_dir()),
        name: properties.name,
    })
}

/// Makes equal device names unique by appending the device number.
fn tell_apart(all: &mut [HostedDevice]) {
    let mut count: HashMap<String, usize> = HashMap::new();
    for device in all.iter() {
        *count.entry(device.name.clone()).or_default() += 1;
    }
    for device in all {
        if count.get(&device.name).is_some_and(|count| *count > 1) {
            device.name = format!("{}#{}", device.name, device.number);
        }
    }
}

fn chosen(
    plugin: &str,
    all: Vec<HostedDevice>,
    wanted: &[String],
) -> Result<Vec<HostedDevice>, HostError> {
    if wanted.is_empty() {
        return Ok(all);
    }
    let find = |word: &String| {
        let by_name = all.iter().find(|device| device.name == *word);
        let by_number = || word.parse().ok().and_then(|number: usize| all.get(number));
        by_name.or_else(by_number).cloned().ok_or_else(|| {
            let names = all.iter().map(|device| format!("{} ({})", device.number, device.name));
            let has = names.collect::<Vec<_>>().join(", ");
            HostError::NoSuchDevice { name: plugin.to_owned(), device: word.clone(), has }
        })
    };
    let mut devices: Vec<HostedDevice> = Vec::with_capacity(wanted.len());
    for device in wanted.iter().map(find) {
        let device = device?;
        if devices.iter().any(|known| known.number == device.number) {
            return Err(HostError::Twice { name: plugin.to_owned(), device: device.name });
        }
        devices.push(device);
    }
    Ok(devices)
}
