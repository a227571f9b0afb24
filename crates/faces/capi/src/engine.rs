//! Engines: opening, describing, statistics, closing.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use polyrail::{Admission, Config};

use crate::bytes::Bytes;
use crate::call::{
    Out, Versioned, bytes, call, choice, duration, flags, list, path, text, versioned, wrong,
};
use crate::handles::{close, find, open};
use crate::incoming::Desk;
use crate::status::{Failure, Status};

/// An engine: what one process, or a part of one, moves memory with. It may be used by several threads
/// at a time.
pub struct Engine {
    pub(crate) engine: polyrail::Engine,
    is_closed: AtomicBool,
    /// Queue of peers that ask to join, if the program decides about them.
    pub(crate) desk: Option<Arc<Desk>>,
    /// Groups to leave when it closes.
    groups: Mutex<Vec<Weak<polyrail_rendezvous::Group>>>,
}

/// In polyrail_engine_options.flags: leaves the environment alone. Otherwise POLYRAIL_RAILS and its like are read.
pub const POLYRAIL_IGNORE_ENVIRONMENT: u32 = 1;

/// In polyrail_engine_options.admission: everybody may come who proves that it may connect (setting `auth`).
pub const POLYRAIL_ADMIT_ALL: u32 = 0;
/// In polyrail_engine_options.admission: nobody becomes a peer who is not added here.
pub const POLYRAIL_ADMIT_NONE: u32 = 1;

/// In polyrail_engine_options.admission: polyrail_engine_next_incoming() has who wants to join.
pub const POLYRAIL_ADMIT_ASK: u32 = 2;

/// Admission of peers that connect on their own.
#[derive(Clone, Copy)]
enum Admits {
    All,
    Nobody,
    WhoIsAccepted,
}

const ADMISSIONS: [(u32, &str, Admits); 3] = [
    (POLYRAIL_ADMIT_ALL, "POLYRAIL_ADMIT_ALL", Admits::All),
    (POLYRAIL_ADMIT_NONE, "POLYRAIL_ADMIT_NONE", Admits::Nobody),
    (POLYRAIL_ADMIT_ASK, "POLYRAIL_ADMIT_ASK", Admits::WhoIsAccepted),
];

/// How an engine is set up. All zero but the size: the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EngineOptions {
    /// sizeof(polyrail_engine_options).
    pub size: usize,
    /// What peers call it in messages, or NULL: host name and process.
    pub name: *const c_char,
    /// Settings, each as "name=value"; they win over the environment, and that over the file.
    pub settings: *const *const c_char,
    /// How many settings there are.
    pub setting_count: usize,
    /// A YAML file of settings, or NULL.
    pub config_file: *const c_char,
    /// 0, or POLYRAIL_IGNORE_ENVIRONMENT.
    pub flags: u32,
    /// Who may become a peer by itself: POLYRAIL_ADMIT_ALL, _NONE or _ASK.
    pub admission: u32,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers and raw pointers.
unsafe impl Versioned for EngineOptions {
    const NAME: &'static str = "polyrail_engine_options";
}

/// Starts an engine. It listens on every rail when this returns. `options` may be NULL. Nobody may change
/// the environment meanwhile, unless it is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_open(
    options: *const EngineOptions,
    engine: *mut *mut Engine,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both pointers.
        let (out, options) = unsafe {
            let out = Out::new("engine", engine)?;
            let options = match options.is_null() {
                true => None,
                false => Some(versioned("options", options)?),
            };
            (out, options)
        };
        // SAFETY: the caller's promise of the pointers in the options.
        let (builder, desk) = unsafe { builder(options)? };
        let (is_closed, groups) = (AtomicBool::new(false), Mutex::default());
        let engine = Engine { engine: builder.build()?, is_closed, desk, groups };
        out.set(open(engine)?);
        Ok(Status::PolyrailOk)
    })
}

unsafe fn builder(
    options: Option<EngineOptions>,
) -> Result<(polyrail::EngineBuilder, Option<Arc<Desk>>), Failure> {
    let Some(options) = options else {
        let config = Config::builder().env().build()?;
        return Ok((polyrail::Engine::builder().config(config), None));
    };
    let flags = flags("options.flags", options.flags, POLYRAIL_IGNORE_ENVIRONMENT)?;
    let admits = choice("options.admission", options.admission, &ADMISSIONS)?;
    let mut config = Config::builder();
    if !options.config_file.is_null() {
        // SAFETY: the caller's promise of the name.
        config = config.file(unsafe { path("options.config_file", options.config_file)? })?;
    }
    if flags & POLYRAIL_IGNORE_ENVIRONMENT == 0 {
        config = config.env();
    }
    // SAFETY: the caller's promise of the list.
    let settings = unsafe { list("options.settings", options.settings, options.setting_count)? };
    for (index, setting) in settings.iter().enumerate() {
        // SAFETY: the caller's promise of each text in it.
        config =
            config.set_pair(unsafe { text(&format!("options.settings[{index}]"), *setting)? })?;
    }
    let mut builder = polyrail::Engine::builder().config(config.build()?);
    if !options.name.is_null() {
        // SAFETY: the caller's promise of the name.
        builder = builder.name(unsafe { text("options.name", options.name)? });
    }
    Ok(match admits {
        Admits::All => (builder, None),
        Admits::Nobody => {
            let refuse = || Admission::refuse("this engine chooses its peers itself");
            (builder.admit(move |_| refuse()), None)
        }
        Admits::WhoIsAccepted => {
            let desk = Arc::new(Desk::default());
            let asked = desk.clone();
            (builder.admit(move |incoming| asked.ask(incoming)), Some(desk))
        }
    })
}

/// Closes an engine: leaves its groups, tells the peers, ends all transfers with POLYRAIL_ERR_PEER_LOST and stops its
/// threads. Blocks for a second or two at most. Calls that wait in other threads return.
///
/// The handle ends here. Other handles of the engine (peers, regions, transfers, requests) stay valid
/// until they are closed, and say how things ended. Close regions before you free their memory. NULL is
/// fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_close(engine: *mut Engine) -> c_int {
    call(|| {
        if !engine.is_null() {
            let held = close("engine", engine)?;
            held.is_closed.store(true, Ordering::Release);
            held.desk.iter().for_each(|desk| desk.close());
            let groups = std::mem::take(&mut *held.groups.lock());
            groups.iter().filter_map(Weak::upgrade).for_each(|group| group.end());
            held.engine.close();
        }
        Ok(Status::PolyrailOk)
    })
}

/// What another engine needs to find this one: pass it on by any means, to polyrail_engine_add_peer()
/// there. It is a capability: whoever has it may connect, so pass it on by private means.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_metadata(
    engine: *mut Engine,
    metadata: *mut Bytes,
) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "metadata", metadata, |engine| Ok(engine.metadata())) }
}

/// A text that lets somebody connect to this engine who gets the address by other means; see
/// polyrail_engine_connect(). It is as private as the metadata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_invitation(
    engine: *mut Engine,
    invitation: *mut Bytes,
) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "invitation", invitation, |engine| Ok(engine.invitation().to_string())) }
}

/// Where the engine listens on a rail, counted from 0, as a text such as "10.0.0.1:39411".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_address(
    engine: *mut Engine,
    rail: usize,
    address: *mut Bytes,
) -> c_int {
    let address_of = |engine: &polyrail::Engine| {
        let addresses = engine.addresses();
        let found = addresses.get(rail).map(ToString::to_string);
        let last = addresses.len().saturating_sub(1);
        found.ok_or_else(|| wrong(format!("rail is {rail}, allowed is 0 to {last}")))
    };
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "address", address, address_of) }
}

/// The rails in use, as JSON: a list of objects with `name`, `interface`, `address` and `speed_mbps`, which is
/// null if the driver does not tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_rails(engine: *mut Engine, json: *mut Bytes) -> c_int {
    let rails_of = |engine: &polyrail::Engine| {
        let rails: Vec<_> = engine.rails().iter().map(rail_json).collect();
        to_json(&rails)
    };
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "json", json, rails_of) }
}

/// The number of this run of the engine, which no other has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_instance(
    engine: *mut Engine,
    instance: *mut Instance,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("instance", instance)? };
        out.set(Instance::from(find("engine", engine)?.engine.instance()));
        Ok(Status::PolyrailOk)
    })
}

/// The settings in force, as JSON: an object of name, value and where that comes from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_settings(engine: *mut Engine, json: *mut Bytes) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "json", json, |engine| to_json(engine.config())) }
}

/// All counters since the engine started, as JSON: bytes of payload, chunks, what was sent again; by
/// peer, rail and flow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_stats(engine: *mut Engine, json: *mut Bytes) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "json", json, |engine| to_json(&engine.stats())) }
}

/// The state of everything, for people: peers, flows, what is outstanding and what it waits for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_dump(engine: *mut Engine, text: *mut Bytes) -> c_int {
    // SAFETY: the caller's promise of the place.
    unsafe { tell(engine, "text", text, |engine| Ok(engine.dump())) }
}

/// With the setting `progress=caller`: moves data. POLYRAIL_OK if any moved, POLYRAIL_PENDING if none
/// did; without the setting always that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_progress(engine: *mut Engine) -> c_int {
    call(|| {
        let moved = find("engine", engine)?.engine.progress();
        Ok(if moved { Status::PolyrailOk } else { Status::PolyrailPending })
    })
}

/// Waits until every transfer that was posted here is over, detached ones as well. POLYRAIL_PENDING:
/// some are under way after this time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_drain(engine: *mut Engine, timeout_ns: u64) -> c_int {
    call(|| {
        let is_done = find("engine", engine)?.engine.drain(duration(timeout_ns)).is_some();
        Ok(if is_done { Status::PolyrailOk } else { Status::PolyrailPending })
    })
}

/// Writes the metadata to a file for polyrail_engine_find_peer(), with bytes of the program's own: keys
/// of regions for instance. At most 16 MiB; `extra` may be NULL with a length of 0. The file appears whole
/// or not at all, and only its owner may read it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_publish(
    engine: *mut Engine,
    file: *const c_char,
    extra: *const c_void,
    extra_length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (file, extra) = unsafe { (path("file", file)?, bytes("extra", extra, extra_length)?) };
        let held = find("engine", engine)?;
        held.engine.publish_with(file, extra).map_err(|error| {
            let text = format!("metadata file {}: {error}", file.display());
            Failure::new(Status::PolyrailErrSystem, text)
        })?;
        Ok(Status::PolyrailOk)
    })
}

/// The number of one run of an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// To be compared, and for nothing else.
    pub bytes: [u8; 16],
}

impl From<polyrail::InstanceId> for Instance {
    fn from(instance: polyrail::InstanceId) -> Self {
        Self { bytes: instance.0.to_le_bytes() }
    }
}

impl Instance {
    pub(crate) fn id(self) -> polyrail::InstanceId {
        polyrail::InstanceId(u128::from_le_bytes(self.bytes))
    }
}

impl Engine {
    /// Records that the engine has joined a group, which it leaves when it closes.
    pub(crate) fn note_group(
        &self,
        group: &Arc<polyrail_rendezvous::Group>,
    ) -> Result<(), Failure> {
        let mut groups = self.groups.lock();
        // Closing sets the flag before it looks for groups.
        if self.is_closed.load(Ordering::Acquire) {
            return self.not_yet().map(drop);
        }
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
        Ok(())
    }

    /// Result of a wait that ended without an event.
    pub(crate) fn not_yet(&self) -> Result<Status, Failure> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Failure::new(Status::PolyrailErrClosed, "the engine is closed".to_owned()));
        }
        Ok(Status::PolyrailPending)
    }
}

fn rail_json(rail: &polyrail::RailInfo) -> serde_json::Value {
    serde_json::json!({
        "name": rail.name,
        "interface": rail.interface,
        "address": rail.address.to_string(),
        "speed_mbps": rail.speed_mbps,
    })
}

pub(crate) fn to_json(what: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(what)
        .map_err(|error| Failure::new(Status::PolyrailErrOther, format!("JSON: {error}")))
}

/// # Safety
/// `place` is NULL or writable.
unsafe fn tell<B: Into<Vec<u8>>>(
    engine: *mut Engine,
    field: &str,
    place: *mut Bytes,
    what: impl FnOnce(&polyrail::Engine) -> Result<B, Failure>,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(field, place)? };
        out.set(Bytes::new(what(&find("engine", engine)?.engine)?));
        Ok(Status::PolyrailOk)
    })
}
