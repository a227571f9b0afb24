//! State of the process: configuration, devices, engines, connection attempts.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Once};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Config, rails};
use polyrail_config::{ConfigBuilder, ConfigError, Proxies};
use polyrail_nccl_abi::HANDLE_BYTES;
use polyrail_sys::threads::allowed_cpus;

use crate::device::{self, Device};
use crate::error::CallError;
use crate::hub::{Any, Hub, Listener};
use crate::log;
use crate::net::{Attempt, Net};
use crate::place;
use crate::send::SendEnd;
use crate::wire::{self, Handle};

/// All ends of the process. They outlive the runtime if NCCL closes them after finalizing.
pub(crate) static HUB: LazyLock<Arc<Hub>> = LazyLock::new(Arc::default);

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Three of four CPUs of a rank go to progress threads, which both send and receive. The rest is for NCCL's own threads
/// and the program.
const PROXIES_OF_4_CPUS: usize = 3;
const MOST_PROXIES: usize = 16;

struct Runtime {
    devices: Vec<Device>,
    nets: Vec<Option<Arc<Net>>>,
    attempts: HashMap<u64, Attempt>,
    next_attempt: u64,
    /// Initializations that are not finalized.
    users: usize,
}

/// True in a forked child, which has none of the engine's threads.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Reads the configuration and looks for devices, unless done already.
pub(crate) fn init() -> Result<(), CallError> {
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        extern "C" fn in_child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        // SAFETY: the handler stores to a static, which is all that may be done in a child.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut slot = lock();
    if let Some(runtime) = slot.as_mut() {
        runtime.users += 1;
        return Ok(());
    }
    let config = configure(None, &[]).map_err(|error| CallError::Config(error.to_string()))?;
    log::start(&config)?;
    for warning in config.warnings() {
        log::warn(warning);
    }
    let rails = rails(&config).map_err(|error| CallError::Config(error.to_string()))?;
    let devices = device::group(&rails, &config);
    for device in &devices {
        let name = device.name.to_string_lossy();
        let (rails, speed) = (&device.rails, device.speed_mbps);
        let (channels, Proxies { tx, rx }) = (config.channels, config.proxies);
        let layout = config.proxy_layout;
        log::info(&format!(
            "device {name}: rails {rails}, {speed} Mbit/s, {channels} channels, \
             {tx} and {rx} proxies ({layout})"
        ));
    }
    if let Some(rank) = rank(|name| std::env::var(name).ok()) {
        polyrail_metrics::set_rank(rank);
    }
    let nets = devices.iter().map(|_| None).collect();
    let attempts = HashMap::new();
    *slot = Some(Runtime { devices, nets, attempts, next_attempt: 1, users: 1 });
    Ok(())
}

/// Undoes one [`init`]; the last call ends the engines.
pub(crate) fn finalize() {
    let mut slot = lock();
    let Some(runtime) = slot.as_mut() else { return };
    runtime.users = runtime.users.saturating_sub(1);
    if runtime.users == 0 {
        let Some(ended) = slot.take() else { return };
        drop(slot);
        // Otherwise their ends would keep the engines alive.
        ended.attempts.values().for_each(abandon);
        // Joins threads, which must not wait for the lock. An engine sends goodbyes to its peers and waits up to a
        // second for slow ones. All engines do so at the same time.
        std::thread::scope(|scope| {
            for net in ended.nets {
                // If no thread can be started, this drops it here.
                drop(std::thread::Builder::new().spawn_scoped(scope, move || drop(net)));
            }
        });
    }
}

/// Waits until all sent messages have arrived.
pub(crate) fn drain() {
    let nets: Vec<Arc<Net>> =
        lock().iter().flat_map(|r| r.nets.iter().flatten().cloned()).collect();
    nets.iter().for_each(|net| net.drain());
}

pub(crate) fn device_count() -> Result<usize, CallError> {
    with(|runtime| Ok(runtime.devices.len()))
}

/// Passes a device to `use_it`.
pub(crate) fn with_device<T>(
    number: i32,
    use_it: impl FnOnce(&Device) -> T,
) -> Result<T, CallError> {
    with(|runtime| Ok(use_it(&runtime.devices[runtime.index(number)?])))
}

pub(crate) fn listen(device: i32) -> Result<(Arc<Listener>, [u8; HANDLE_BYTES]), CallError> {
    net(device)?.listen()
}

/// One step of connecting. NCCL calls again with the same handle until the connection is established.
pub(crate) fn connect(
    device: i32,
    handle: &mut [u8; HANDLE_BYTES],
) -> Result<Option<Arc<SendEnd>>, CallError> {
    let net = net(device)?;
    let note = wire::note(handle);
    let known = with(|runtime| Ok(runtime.attempts.remove(&note)))?;
    let mut attempt = match known {
        Some(attempt) => attempt,
        None => {
            let decoded = Handle::decode(handle);
            net.begin(decoded.map_err(|error| CallError::Handle(error.to_string()))?)?
        }
    };
    match net.advance(&mut attempt) {
        Ok(Some(send)) => {
            wire::set_note(handle, 0);
            Ok(Some(send))
        }
        Ok(None) => with(|runtime| {
            let number = if note == 0 { runtime.next_attempt } else { note };
            runtime.next_attempt = runtime.next_attempt.max(number + 1);
            runtime.attempts.insert(number, attempt);
            wire::set_note(handle, number);
            Ok(None)
        }),
        Err(error) => {
            wire::set_note(handle, 0);
            abandon(&attempt);
            log::warn(&format!("can't connect to {}: {error}", attempt.target()));
            Err(error)
        }
    }
}

/// Removes the end of a connection that will not be established.
fn abandon(attempt: &Attempt) {
    if let Some(Any::Send(send)) = attempt.key().and_then(|key| HUB.remove(key)) {
        send.close();
    }
}

/// Returns the same string each time for equal text: NCCL keeps the pointer.
pub(crate) fn intern(text: &CStr) -> &'static CStr {
    static KNOWN: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock();
    if let Some(same) = known.iter().find(|other| **other == text) {
        return same;
    }
    let kept: &'static CStr = Box::leak(CString::from(text).into_boxed_c_str());
    known.push(kept);
    kept
}

/// Settings of the engine of a device with these rails.
fn of_device(names: &str) -> Result<Config, ConfigError> {
    let config = configure(Some(names), &[])?;
    // Unusable rails are an error of the engine that is built next.
    let near = rails(&config).map(|rails| place::near(&config, &rails)).unwrap_or_default();
    for (name, value) in &near {
        log::info(&format!("{name}: {value}"));
    }
    if near.is_empty() { Ok(config) } else { configure(Some(names), &near) }
}

/// The environment's settings on top of defaults for NCCL's traffic on this machine. `rails` are the rails of the
/// device. `near` are settings that keep its threads near them.
fn configure(rails: Option<&str>, near: &[(&'static str, String)]) -> Result<Config, ConfigError> {
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    let ranks = local_ranks().min(cpus).max(1);
    let all = (cpus * PROXIES_OF_4_CPUS / 4 / ranks).clamp(1, MOST_PROXIES);
    let because = format!("{cpus} CPUs for {ranks} ranks");
    // Split, like GPUDirect-TCPX: a thread that both sends and receives can't be on both lists of CPUs.
    // Errors are ignored here: the complete settings report them below.
    let given = Config::builder().env().build();
    let is_split = given.is_ok_and(|given| given.tx_bindings != given.rx_bindings);
    let (layout, proxies, why) = match is_split {
        false => ("merged", all, "ranks send and receive at different times"),
        true => ("split", (all / 2).max(1), "sending and receiving have CPUs of their own"),
    };
    // A channel uses one rail: with fewer channels than rails, some rails would be idle.
    let of_rails = rails.map_or(1, |addresses| addresses.split(',').count());
    let channels = all.max(of_rails).to_string();
    let for_channels = format!("{because} and {of_rails} rails");
    let proxies = proxies.to_string();
    let builder = with_scarce_cpus(Config::builder(), cpus / ranks, of_rails)?;
    let builder = near.iter().try_fold(builder, |builder, (name, value)| {
        builder.propose(name, value, "the NUMA node of each interface")
    })?;
    let builder = builder
        .propose("proxy_layout", layout, why)?
        .propose("channels", &channels, &for_channels)?
        .propose("proxies", &proxies, &because)?
        .propose("chunk_bytes", "1MiB", "a message of NCCL is one chunk, mostly")?
        .propose("ops_pool", "16384", "NCCL has many connections to a peer")?
        .env();
    match rails {
        Some(rails) => builder.set("rails", rails)?.build(),
        None => builder.build(),
    }
}

/// Adapts the settings for a rank without a CPU for a progress thread beside NCCL's thread, which never sleeps. A
/// polling progress thread would keep its CPU from that thread and from other ranks, and each message that a progress
/// thread sends would wait for that thread to lose its CPU. So progress threads sleep at once, and more messages use
/// the caller lane.
///
/// With several rails neither was faster: there messages wait for the rails, or some rails would be idle.
fn with_scarce_cpus(
    builder: ConfigBuilder,
    cpus_of_rank: usize,
    of_rails: usize,
) -> Result<ConfigBuilder, ConfigError> {
    if cpus_of_rank >= 2 || of_rails > 1 {
        return builder.propose("spin", "30us", "NCCL's messages follow each other closely");
    }
    let why = "no CPU is left for the proxies of a rank";
    builder.propose("spin", "auto", why)?.propose("nccl_express_bytes", "32KiB", why)
}

/// Number of ranks on this host according to launchers, or 1 if unknown.
fn local_ranks() -> usize {
    const NAMES: [&str; 5] = [
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "SLURM_NTASKS_PER_NODE",
        "PALS_LOCAL_SIZE",
    ];
    let given = NAMES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    given.filter(|ranks| *ranks > 0).unwrap_or(1)
}

/// Number of this process among all ranks according to launchers.
fn rank(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    const NAMES: [&str; 6] =
        ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "PALS_RANKID"];
    NAMES.iter().find_map(|name| variable(name)?.parse().ok())
}

/// Returns the device's network, whose engine starts with its first use.
fn net(device: i32) -> Result<Arc<Net>, CallError> {
    with(|runtime| {
        let index = runtime.index(device)?;
        if let Some(net) = &runtime.nets[index] {
            return Ok(net.clone());
        }
        let config = of_device(&runtime.devices[index].rails);
        let config = config.map_err(|error| CallError::Config(error.to_string()))?;
        let net = Arc::new(Net::new(config, &HUB)?);
        runtime.nets[index] = Some(net.clone());
        Ok(net)
    })
}

fn with<T>(use_it: impl FnOnce(&mut Runtime) -> Result<T, CallError>) -> Result<T, CallError> {
    let mut slot = lock();
    let runtime = slot.as_mut();
    use_it(runtime.ok_or_else(|| CallError::Config("init was not called".to_owned()))?)
}

fn lock() -> MutexGuard<'static, Option<Runtime>> {
    RUNTIME.lock()
}

impl Runtime {
    fn index(&self, device: i32) -> Result<usize, CallError> {
        let count = self.devices.len();
        let index = usize::try_from(device).ok().filter(|index| *index < count);
        index.ok_or(CallError::Device { got: device, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_messages_take_the_express_way_where_proxies_have_no_cpu_and_there_is_one_rail() {
        let bytes = |cpus_of_rank, of_rails| {
            let builder = with_scarce_cpus(Config::builder(), cpus_of_rank, of_rails).unwrap();
            builder.build().unwrap().nccl_express_bytes
        };
        let default = Config::default().nccl_express_bytes;
        assert_eq!((bytes(1, 1), bytes(2, 1), bytes(1, 4)), (32 << 10, default, default));
        let given = Config::builder().set("nccl_express_bytes", "0").unwrap();
        let given = with_scarce_cpus(given, 1, 1).unwrap().build().unwrap();
        assert_eq!(given.nccl_express_bytes, 0, "what is set stays");
    }

    #[test]
    fn proxies_poll_where_a_rank_has_a_cpu_for_them() {
        let spin = |cpus_of_rank, of_rails| {
            let builder = with_scarce_cpus(Config::builder(), cpus_of_rank, of_rails).unwrap();
            builder.build().unwrap().spin.of_proxies().as_micros()
        };
        assert_eq!((spin(1, 1), spin(2, 1), spin(4, 1)), (0, 30, 30));
        assert_eq!(spin(1, 4), 30, "with several rails that was not faster");
        let given = Config::builder().set("spin", "7us").unwrap();
        let given = with_scarce_cpus(given, 1, 1).unwrap().build().unwrap();
        assert_eq!(given.spin.of_proxies().as_micros(), 7, "what is set stays");
    }

    #[test]
    fn the_rank_is_the_first_number_that_a_launcher_tells() {
        assert_eq!(rank(|_| None), None);
        assert_eq!(rank(|name| (name == "PMI_RANK").then(|| "7".to_owned())), Some(7));
        let of_torch = |name: &str| match name {
            "RANK" => Some("3".to_owned()),
            "SLURM_PROCID" => Some("0".to_owned()),
            _ => None,
        };
        assert_eq!(rank(of_torch), Some(3));
        let odd = |name: &str| Some(if name == "RANK" { "x" } else { "5" }.to_owned());
        assert_eq!(rank(odd), Some(5));
    }
}
