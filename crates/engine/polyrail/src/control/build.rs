//! Building a running engine from its configuration.

use std::io::ErrorKind::AddrInUse;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use polyrail_carrier::{Host, HostedDevice};
use polyrail_config::{Binding, Config, expand_file_name, harmless, shortened, steers};
use polyrail_proto::InstanceId;
use polyrail_proto::defaults::progress_threads;
use polyrail_proto::hello::{Card, MAX_NAME_BYTES};
use polyrail_proto::placement::{Bound, Placement};
use polyrail_proto::rails::{self, ChosenRail, Ports, bound_as};
use polyrail_sys::interfaces::{host_name, survey};
use polyrail_sys::process::reserve_descriptors;
use polyrail_sys::tcp;
use socket2::Socket;

use crate::base::error::{EngineError, origin_of};
use crate::base::host_identity::host_identity;
use crate::control::Control;
use crate::control::secrets::credentials;
use crate::engine::bindings::bindings;
use crate::engine::control_handle::ControlHandle;
use crate::engine::hosted_rails::select_all;
use crate::engine::joining::Hook;
use crate::engine::left_out;
use crate::engine::local_engines;
use crate::engine::observer::Observer;
use crate::engine::settings::{EngineSettings, busy_cpus};
use crate::engine::state::{Drive, EngineShared, Local, ProxySet};
use crate::engine::trace::{TRACE_EVENTS, Trace};
use crate::path::messages::HostPaths;
use crate::proxy::Proxy;

/// Starts threads and listeners.
pub(crate) fn start(
    config: Config,
    name: Option<String>,
    (observer, admit): (Option<Arc<dyn Observer>>, Option<Arc<Hook>>),
    apart: bool,
) -> Result<(Arc<EngineShared>, Vec<JoinHandle<()>>), EngineError> {
    let system = |what| move |source| EngineError::System { what, source };
    name.as_deref().map_or(Ok(()), check_name)?;
    let interfaces = survey().map_err(system("interfaces"))?;
    left_out::warn_of_unknown(&config, &interfaces);
    let (mut rails, plugin) = select_all(&config, &interfaces)?;
    let wanted = left_out::wanted(&config);
    let left_out = rails::left_out(wanted, &interfaces, &rails);
    let remark = rails::remark(wanted, &interfaces, &rails);
    left_out::log(&config, remark.as_deref(), &left_out);
    // Devices and plugins choose their names, which go to logs, metrics and peers.
    rails.iter_mut().for_each(|rail| rail.name = harmless(&rail.name, &[]));
    let settings = EngineSettings::new(&config, rails.len())?;
    if plugin.is_some() {
        settings.check_hosted()?;
    }
    let host = host_name();
    let credentials = credentials(&config, &host)?;
    let instance = InstanceId(credentials.identity.public().instance());
    let ports = Ports::new(config.listen_range(), config.chooses_ports(), instance);
    let listeners = listen_all(&rails, &ports)?;
    if let Some(listener) = listeners.first() {
        // A proxy that opens a file for one peer would delay all others.
        reserve_descriptors(listener.as_fd());
    }
    let mut cards = Vec::with_capacity(rails.len());
    for (rail, listener) in rails.iter().zip(&listeners) {
        let address = listener.local_addr().map_err(system("listener"))?;
        cards.push(rail.card(address.as_socket().map_or(0, |address| address.port())));
    }
    let pid = std::process::id();
    let card = Card {
        instance,
        host: host_identity().map_err(system("random bits"))?,
        name: name.unwrap_or_else(|| format!("{}:{pid}", harmless(&host, &[]))),
        capabilities: settings.capabilities(plugin.is_some()),
        rails: cards,
    };
    let trace = match config.trace_file.as_str() {
        "" => None,
        file => {
            let path = PathBuf::from(expand_file_name(file, &host, pid));
            let refused = |source| EngineError::Output {
                setting: "trace_file",
                path: path.clone(),
                origin: origin_of(&config, "trace_file"),
                source,
            };
            Some(Trace::new(path.clone(), TRACE_EVENTS).map_err(refused)?)
        }
    };
    let devices = plugin.as_ref().map_or(&[][..], Host::devices);
    let (proxies, all) = make_proxies(&config, &settings, &rails, devices)?;
    let local = Local {
        proxies,
        control: ControlHandle::new().map_err(system("epoll"))?,
        trace,
        observer,
        admit,
        message_paths: Box::new(HostPaths),
        settings,
        credentials,
        card,
        rails,
        left_out,
        host: plugin,
        config,
    };
    let shared = Arc::new(EngineShared::new(local, local_engines::region_ended));
    if !apart {
        local_engines::announce(&shared);
    }
    if shared.settings.shared_stream
        && let Err(why) = shared.copying.proofs.badge()
    {
        // A peer asks the kernel for this engine's process before it says hello.
        tracing::warn!(target: "polyrail::share", why, "no shared memory for connections");
    }
    let threads = spawn(&shared, all, listeners).map_err(system("thread"))?;
    for warning in shared.config.warnings() {
        tracing::warn!(target: "polyrail::config", "{warning}");
    }
    for note in shared.config.notes() {
        tracing::debug!(target: "polyrail::config", "{note}");
    }
    Ok((shared, threads))
}

/// Refuses a name that would be truncated for peers, or that steers the terminal which shows it.
fn check_name(name: &str) -> Result<(), EngineError> {
    let why = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is longer than 128 bytes"
    } else if name.contains(steers) {
        "has a control character, a line break or a mark of writing direction in it"
    } else {
        return Ok(());
    };
    Err(EngineError::Name { got: shortened(name, SHOWN_OF_NAME), why })
}

/// Number of characters of a wrong name that its error shows.
const SHOWN_OF_NAME: usize = 60;

fn listen_all(rails: &[ChosenRail], ports: &Ports) -> Result<Vec<Socket>, EngineError> {
    let listen_on = |rail: &ChosenRail, port: u16| {
        let address = SocketAddr::new(rail.address, port);
        // Packets for the address may arrive on another interface: where several are in one network any of them answers
        // ARP, and a policy or a router may choose another way.
        let result = tcp::listen(address);
        let name = rail.name.clone();
        result.map_err(|source| EngineError::Listen { rail: name, address, source })
    };
    let listen = |(at, rail): (usize, &ChosenRail)| {
        let is_one = ports.range.len() == 1;
        // Devices of a plugin may share an interface, and only one of them has the port that is known.
        if is_one && rails[..at].iter().any(|other| other.address == rail.address) {
            return listen_on(rail, 0);
        }
        let mut tried = listen_on(rail, ports.begin);
        for port in ports.in_order().skip(1) {
            match tried {
                Err(EngineError::Listen { source, .. }) if source.kind() == AddrInUse => {
                    tried = listen_on(rail, port);
                }
                _ => break,
            }
        }
        tried
    };
    rails.iter().enumerate().map(listen).collect()
}

/// The device by which a rail's connections leave. Loopback addresses share one device and need none.
pub(crate) fn device(rail: &ChosenRail) -> Option<&str> {
    (!rail.loopback).then_some(&*rail.interface)
}

pub(crate) fn is_forbidden(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

fn make_proxies(
    config: &Config,
    settings: &EngineSettings,
    rails: &[ChosenRail],
    devices: &[HostedDevice],
) -> Result<(ProxySet, Vec<Arc<Proxy>>), EngineError> {
    let system = |what| move |source| EngineError::System { what, source };
    let (per_rail, busy) = (settings.channels_per_rail, busy_cpus(settings.payload)?);
    let automatic = progress_threads(rails.len(), config.channels, per_rail, busy);
    let number = |setting: u32| if setting == 0 { automatic } else { setting };
    let devices: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
    let interfaces = bound_as(rails, &devices);
    let mut all = Vec::new();
    let mut add = |prefix: &str, count: u32, bindings: &[Binding]| {
        let start = all.len();
        let bound: Vec<Bound<'_>> = bindings
            .iter()
            .filter_map(|one| Some((one.interface.as_deref()?, &*one.cpus)))
            .collect();
        let others = bindings.iter().find(|one| one.interface.is_none());
        let list = others.map_or(&[][..], |one| &one.cpus);
        let placement = Placement::new(&interfaces, count, list, &bound);
        for (index, cpus) in placement.cpus.iter().enumerate() {
            let name = format!("pr-{prefix}{index}");
            let proxy =
                Proxy::new(name, cpus.clone(), !settings.caller_driven).map_err(system("epoll"))?;
            all.push(Arc::new(proxy));
        }
        Ok::<_, EngineError>(placement.starting_at(start))
    };
    let bound_to_send = ("tx_bindings", &*config.tx_bindings);
    let bound_to_receive = ("rx_bindings", &*config.rx_bindings);
    let (tx, rx) = if settings.caller_driven {
        let both = add("caller", 1, &[])?;
        (both.clone(), both)
    } else if settings.merged {
        let given = if config.tx_bindings.is_empty() { bound_to_receive } else { bound_to_send };
        let both = add("io", number(config.proxies.merged()), &bindings(config, given)?)?;
        (both.clone(), both)
    } else {
        let (tx, rx) = (number(config.proxies.tx), number(config.proxies.rx));
        let tx = add("tx", tx, &bindings(config, bound_to_send)?)?;
        (tx, add("rx", rx, &bindings(config, bound_to_receive)?)?)
    };
    let handles = all.iter().map(|proxy: &Arc<Proxy>| proxy.handle().clone()).collect();
    let driven = all.iter().map(|proxy| proxy.clone() as Arc<dyn Drive>).collect();
    Ok((ProxySet { all: handles, driven, tx, rx }, all))
}

fn spawn(
    shared: &Arc<EngineShared>,
    proxies: Vec<Arc<Proxy>>,
    listeners: Vec<Socket>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    let mut control = Control::new(shared.clone(), listeners)?;
    let builder = thread::Builder::new().name("pr-control".to_owned());
    threads.push(builder.spawn(move || control.run())?);
    if shared.settings.caller_driven {
        return Ok(threads);
    }
    let spin = shared.config.spin.of_proxies();
    for proxy in proxies {
        let shared = shared.clone();
        let builder = thread::Builder::new().name(proxy.name.clone());
        threads.push(builder.spawn(move || proxy.run(&shared, spin))?);
    }
    Ok(threads)
}
