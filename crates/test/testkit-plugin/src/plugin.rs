//! What a process knows: the settings, and everything that a host has a pointer to. These pointers are
//! numbers, so that a wrong one is an error and nothing else.

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

/// What `init` has read, with counters.
pub(crate) struct Plugin {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    /// What memory of GPUs is sent with: one for each GPU that the settings name.
    stages: Mutex<Option<Stages>>,
    /// Calls of the function that is to fail, and of the one that is slow.
    calls: AtomicU64,
    slow_calls: AtomicU64,
}

pub(crate) type Stages = Arc<[Arc<Stage>]>;

/// What the connections of a device share.
#[derive(Default)]
pub(crate) struct Device {
    /// Bytes that it has moved.
    pub(crate) moved: AtomicU64,
    /// What they receive with, in mode `unpack`.
    pool: Mutex<Option<Arc<Pool>>>,
}

/// What a number stands for.
pub(crate) enum Thing {
    Listener(Listener),
    Connecting(Connecting),
    Send(SendEnd),
    Receive(Box<ReceiveEnd>),
    Region(Region),
}

#[derive(Clone)]
pub(crate) enum Region {
    /// Of the host, from this address on.
    Host(Memory),
    Gpu(DeviceMemory),
}

struct State {
    plugin: Option<Arc<Plugin>>,
    /// What a test says instead of the environment.
    variables: Option<BTreeMap<String, String>>,
    last: u64,
    things: Option<HashMap<u64, Arc<Mutex<Thing>>>>,
}

static STATE: Mutex<State> =
    Mutex::new(State { plugin: None, variables: None, last: 0, things: None });

/// Strings that properties point to; hosts keep the pointers.
static TEXTS: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());

/// What a driver does one at a time: whoever allocates keeps all other calls waiting.
static DRIVER: RwLock<()> = RwLock::new(());

/// Waits for who allocates, if this call is not that one.
pub(crate) fn driver(call: &str) -> Option<RwLockReadGuard<'static, ()>> {
    (call != "accept").then(|| DRIVER.read())
}

/// The next `init` reads these variables instead of the environment: for tests in one process.
pub fn set_variables(variables: &[(&str, &str)]) {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    STATE.lock().variables = Some(owned.collect());
}

/// Reads the settings. Where they are as before, counters go on.
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
    /// A connection is accepted: memory for it is allocated.
    pub(crate) fn allocate(&self) {
        if self.settings.accept_holds_ms > 0 {
            let _alone = DRIVER.write();
            std::thread::sleep(Duration::from_millis(self.settings.accept_holds_ms));
        }
    }

    /// An error if this call is to fail; takes its time if it is to be slow.
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

    /// What connections of a device receive with, in mode `unpack`. The first call makes it.
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

    /// What memory of GPUs is sent with, by whichever device. The first call makes it.
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

    /// The index of a device, checked.
    pub(crate) fn device(&self, device: c_int) -> Result<usize, CallError> {
        let count = self.settings.devices.len();
        let index = usize::try_from(device).ok().filter(|index| *index < count);
        index.ok_or(CallError::NoDevice { device, count })
    }
}

/// Gives a thing a number.
pub(crate) fn add(thing: Thing) -> u64 {
    let mut state = STATE.lock();
    state.last += 1;
    let number = state.last;
    let things = state.things.get_or_insert_with(HashMap::new);
    things.insert(number, Arc::new(Mutex::new(thing)));
    number
}

/// What has a number.
pub(crate) fn find(what: &'static str, number: u64) -> Result<Arc<Mutex<Thing>>, CallError> {
    let state = STATE.lock();
    let found = state.things.as_ref().and_then(|things| things.get(&number)).cloned();
    found.ok_or(CallError::Unknown { what, number })
}

/// Forgets what has a number.
pub(crate) fn remove(what: &'static str, number: u64) -> Result<Arc<Mutex<Thing>>, CallError> {
    let mut state = STATE.lock();
    let found = state.things.as_mut().and_then(|things| things.remove(&number));
    found.ok_or(CallError::Unknown { what, number })
}

/// A region by its number.
pub(crate) fn region(number: u64) -> Result<Region, CallError> {
    match &*find("registered memory", number)?.lock() {
        Thing::Region(region) => Ok(region.clone()),
        _ => Err(CallError::Unknown { what: "registered memory", number }),
    }
}

/// A number as the pointer that hosts keep.
pub(crate) fn pointer(number: u64) -> Opaque {
    std::ptr::without_provenance_mut(number as usize)
}

/// The number that a pointer is.
pub(crate) fn number(pointer: Opaque, what: &'static str) -> Result<u64, CallError> {
    match pointer.addr() {
        0 => Err(CallError::Null { what }),
        number => Ok(number as u64),
    }
}

/// A request: its connection, and its number there from 1 on.
pub(crate) fn request(comm: u64, number: u32) -> u64 {
    comm << 32 | u64::from(number)
}

/// What [`request`] has put together.
pub(crate) fn parts(request: u64) -> (u64, u32) {
    (request >> 32, request as u32)
}

/// A string that is never freed, once for each text.
pub(crate) fn text(text: &str) -> &'static CStr {
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.iter().find(|known| known.to_bytes() == text.as_bytes()) {
        return known;
    }
    let new: &'static CStr = Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str());
    texts.push(new);
    new
}
