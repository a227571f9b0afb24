//! A plugin that is hosted: loading it, and what its devices are.

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

/// A plugin that this process has loaded. It stays loaded as long as the process runs.
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
    /// Its number in the plugin.
    pub number: usize,
    /// Its name, often that of a network interface.
    pub name: String,
    /// Folder of its PCI device, if it has one.
    pub pci_path: Option<PathBuf>,
    /// In Mbit/s, if the plugin knows it.
    pub speed_mbps: Option<u32>,
    /// Whether it takes memory of the host.
    pub takes_host: bool,
    /// Whether it takes memory of a GPU by address.
    pub takes_cuda: bool,
    /// Whether it leaves messages in fragments in a bounce buffer, from where they are put together here.
    pub unpacks: bool,
    /// Longest message in bytes.
    pub max_bytes: u64,
}

impl Host {
    /// Loads a plugin, named as `NCCL_NET_PLUGIN` names one, by its newest table. The plugin's code runs in this
    /// process: what it does there nobody can contain. A thread of its own loads and initializes
    /// it, and is left alone if that takes longer than [`Wishes::load_limit`]. GPUDirect-TCPX gets what is wished in variables of the environment.
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

    /// The plugin's name for itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the interface by which it is called.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Its devices, as they were wanted.
    pub fn devices(&self) -> &[HostedDevice] {
        &self.devices
    }

    /// Threads that plugins have started in this process for their connections.
    pub fn threads(&self) -> Vec<PluginThread> {
        of_plugins(&self.wishes)
    }

    /// Listens on the device for one connection. `listening` gets what a peer needs to connect, or why there is
    /// nothing; after that `accepted` gets the receiving lane, or why there is none in time. That the plugin accepts
    /// other connections meanwhile does not count. Once nobody wants it any more, it is given up without a word. All are
    /// called on a thread of the host and must not block.
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

    /// Connects from the device to what a peer's [`Host::accept`] told. `connected` gets the sending lane, or why
    /// there is none in time, as with [`Host::accept`].
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

/// Why no host takes a device that says this of itself.
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
        // Some plugins know none; NCCL reckons with 10 Gbit/s then.
        speed_mbps: Some(speed_mbps).filter(|speed| *speed > 0),
        takes_host: properties.takes_host(),
        takes_cuda: properties.takes_cuda(),
        unpacks,
        max_bytes: match unpacks {
            true => MESSAGE_BYTES_MAX.min(properties.max_p2p_bytes as u64),
            false => properties.max_p2p_bytes as u64,
        },
        // A path that leads nowhere says nothing about where the device is.
        pci_path: properties.pci_path.filter(|path| path.is_dir()),
        name: properties.name,
    })
}

/// Devices of one name are known by it and their number.
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
