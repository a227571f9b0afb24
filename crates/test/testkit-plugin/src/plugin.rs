//! State of the process: the settings, and all objects to which a host has pointers. These pointers are numbers, so a
//! wrong one is an error and nothing worse.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use polyrail_gpu::{DeviceMemory, Queue};
use polyrail_nccl_abi::Opaque;
use polyrail_sys::Memory;

use crate::connect::{Connecting, Listener};
use crate::error::CallError;
use crate::pool::Pool;
use crate::receive::ReceiveEnd;
use crate::send::SendEnd;
use crate::settings::{Mode, Settings};
use crate::stage::{Stage, gpu};

/// Settings read by `init`, with counters.
pub(crate) struct Plugin {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    /// Stages for sending GPU memory: one for each GPU in the settings.
    stages: Mutex<Option<Stages>>,
    /// Calls of the function that must fail. The next field counts those of the slow one.
    calls: AtomicU64,
    slow_calls: AtomicU64,
}

pub(crate) type Stages = Arc<[Arc<Stage>]>;

/// State shared by the connections of a device.
#[derive(Default)]
pub(crate) struct Device {
    /// Bytes that it has moved.
    pub(crate) moved: AtomicU64,
    /// Receive buffers of the connections, in mode `unpack`.
    pool: Mutex<Option<Arc<Pool>>>,
}

/// Object with a number.
pub(crate) enum Thing {
    Listener(Listener),
    Connecting(Connecting),
    Send(SendEnd),
    Receive(Box<ReceiveEnd>),
    Region(Region),
}

#[derive(Clone)]
pub(crate) enum Region {
    /// Host memory, from this address on.
    Host(Memory),
    Gpu(DeviceMemory),
}

struct State {
    plugin: Option<Arc<Plugin>>,
    /// Variables that a test has set instead of the environment.
    variables: Option<BTreeMap<String, String>>,
    last: u64,
    things: Option<HashMap<u64, Arc<Mutex<Thing>>>>,
}

static STATE: Mutex<State> =
    Mutex::new(State { plugin: None, variables: None, last: 0, things: None });

/// Strings that properties point to. Hosts keep the pointers.
static TEXTS: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());

/// Models a driver's lock: an allocation makes all other calls wait.
static DRIVER: RwLock<()> = RwLock::new(());

/// Waits for running allocations, unless this call is one.
pub(crate) fn driver(call: &str) -> Option<RwLockReadGuard<'static, ()>> {
    (call != "accept").then(|| DRIVER.read())
}

/// Makes the next `init` read these variables instead of the environment: for tests in one process.
pub fn set_variables(variables: &[(&str, &str)]) {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    STATE.lock().variables = Some(owned.collect());
}

/// Reads the settings. If they are unchanged, the counters continue.
pub(crate) fn init() -> Result<(), CallError> {
    let mut state = STATE.lock();
    let variables = state.variables.clone();
    let settings = Settings::parse(|name| match &variables {
        Some(variables) => variables.get(name).cloned(),
        None => std::env::var(name).ok(),
    })?;
    if state.plugin.as_ref().is_none_or(|plugin| plugin.settings != settings || variables.is_some())
    {
        let devices = settings.devices.iter().map(|_| Device::default()).collect();
        let (calls, slow_calls) = (AtomicU64::new(0), AtomicU64::new(0));
        state.plugin = Some(Arc::new(Plugin {
            settings,
            devices,
            stages: Mutex::default(),
            calls,
            slow_calls,
        }));
    }
    Ok(())
}

pub(crate) fn plugin() -> Result<Arc<Plugin>, CallError> {
    STATE.lock().plugin.clone().ok_or(CallError::NotInitialized)
}

impl Plugin {
    /// Models the memory allocation of an accepted connection.
    pub(crate) fn allocate(&self) {
        if self.settings.accept_holds_ms > 0 {
            let _alone = DRIVER.write();
            std::thread::sleep(Duration::from_millis(self.settings.accept_holds_ms));
        }
    }

    /// Fails if this call must fail, and sleeps if it must be slow.
    pub(crate) fn may(&self, call: &'static str) -> Result<(), CallError> {
        if let Some((name, before, ms)) = self.settings.slow_call
            && name == call
            && self.slow_calls.fetch_add(1, Ordering::Relaxed) >= before
        {
            std::thread::sleep(Duration::from_millis(ms));
        }
        match self.settings.fail_call {
            Some((name, before)) if name == call => {
                let calls = self.calls.fetch_add(1, Ordering::Relaxed);
                if calls < before { Ok(()) } else { Err(CallError::AsTold { call }) }
            }
            _ => Ok(()),
        }
    }

    /// Receive buffers of a device's connections, in mode `unpack`. The first call creates them.
    pub(crate) fn pool(&self, device: usize) -> Result<Option<Arc<Pool>>, CallError> {
        if self.settings.mode == Mode::Plain {
            return Ok(None);
        }
        let mut pool = self.devices[device].pool.lock();
        if pool.is_none() {
            *pool = Some(Pool::new(&self.settings, device)?);
        }
        Ok(pool.clone())
    }

    /// Stages for sending GPU memory, for all devices. The first call creates them.
    pub(crate) fn stages(&self) -> Result<Stages, CallError> {
        let mut stages = self.stages.lock();
        if let Some(stages) = &*stages {
            return Ok(stages.clone());
        }
        let indices: BTreeSet<u32> = match &self.settings.mode {
            Mode::UnpackGpu(gpus) => gpus.iter().copied().collect(),
            Mode::Plain | Mode::Unpack => BTreeSet::new(),
        };
        let stage = |index| {
            let gpu: Arc<dyn polyrail_gpu::Device> = gpu(index)?;
            Stage::new(&*gpu, Queue::new(&gpu)?)
        };
        let made = indices.into_iter().map(stage).collect::<Result<Stages, _>>()?;
        Ok(stages.insert(made).clone())
    }

    /// Checks a device number and returns the index.
    pub(crate) fn device(&self, device: c_int) -> Result<usize, CallError> {
        let count = self.settings.devices.len();
        let index = usize::try_from(device).ok().filter(|index| *index < count);
        index.ok_or(CallError::NoDevice { device, count })
    }
}

/// Assigns a number to an object.
pub(crate) fn add(thing: Thing) -> u64 {
    let mut state = STATE.lock();
    state.last += 1;
    let number = state.last;
    let things = state.things.get_or_insert_with(HashMap::new);
    things.insert(number, Arc::new(Mutex::new(thing)));
    number
}

/// Looks up the object with a number.
pub(crate) fn find(what: &'static str, number: u64) -> Result<Arc<Mutex<Thing>>, CallError> {
    let state = STATE.lock();
    let found = state.things.as_ref().and_then(|things| things.get(&number)).cloned();
    found.ok_or(CallError::Unknown { what, number })
}

/// Removes the object with a number.
pub(crate) fn remove(what: &'static str, number: u64) -> Result<Arc<Mutex<Thing>>, CallError> {
    let mut state = STATE.lock();
    let found = state.things.as_mut().and_then(|things| things.remove(&number));
    found.ok_or(CallError::Unknown { what, number })
}

/// Looks up a region by its number.
pub(crate) fn region(number: u64) -> Result<Region, CallError> {
    match &*find("registered memory", number)?.lock() {
        Thing::Region(region) => Ok(region.clone()),
        _ => Err(CallError::Unknown { what: "registered memory", number }),
    }
}

/// Converts a number to the pointer that hosts keep.
pub(crate) fn pointer(number: u64) -> Opaque {
    std::ptr::without_provenance_mut(number as usize)
}

/// Converts a pointer back to its number.
pub(crate) fn number(pointer: Opaque, what: &'static str) -> Result<u64, CallError> {
    match pointer.addr() {
        0 => Err(CallError::Null { what }),
        number => Ok(number as u64),
    }
}

/// Combines a connection and the number of its request, counted from 1.
pub(crate) fn request(comm: u64, number: u32) -> u64 {
    comm << 32 | u64::from(number)
}

/// Splits the result of [`request`].
pub(crate) fn parts(request: u64) -> (u64, u32) {
    (request >> 32, request as u32)
}

/// Returns a string that is never freed, one per text.
pub(crate) fn text(text: &str) -> &'static CStr {
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.iter().find(|known| known.to_bytes() == text.as_bytes()) {
        return known;
    }
    let new: &'static CStr = Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str());
    texts.push(new);
    new
}
