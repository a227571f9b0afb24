//! Rails that a plugin brings: `rails = plugin:/path/libnccl-net.so`.
//!
//! A device of the plugin is a rail like any other. It has its own flows, whose headers and acknowledgements use a TCP
//! connection. The plugin carries their payload.

use std::time::Duration;

use polyrail_carrier::{CpusOf, DEVICES_MAX, Host, HostError, Wishes};
use polyrail_config::{Config, parse_bindings};
use polyrail_proto::hello::MAX_RAILS;
use polyrail_proto::rails::{
    ChosenRail, Interface, PluginSpec, Unfit, best, check_count, control_of, of_family, present,
    select, split, too_many, why_none,
};
use polyrail_sys::interfaces::speed_mbps;

use crate::base::error::{EngineError, origin_of};
use crate::engine::left_out::wanted;

/// A plugin is not queried for each device if it has too many for all to be rails.
const _: () = assert!(DEVICES_MAX == MAX_RAILS);

/// Selects the rails that the settings name, and loads the plugin that brings some of them.
pub(crate) fn select_all(
    config: &Config,
    interfaces: &[Interface],
) -> Result<(Vec<ChosenRail>, Option<Host>), EngineError> {
    let spec = config.rails.as_str();
    let origin = || origin_of(config, "rails");
    let fail = |Unfit { why, is_wrong, allowed }| {
        let (allowed, remedy) = allowed.told(interfaces);
        EngineError::Rails {
            spec: spec.to_owned(),
            origin: origin(),
            why,
            is_wrong,
            allowed,
            remedy: remedy.to_owned(),
        }
    };
    let (others, plugin) = split(spec).map_err(fail)?;
    let wanted = wanted(config);
    let of_family = of_family(wanted.family, spec, interfaces);
    let own = present(others.as_deref().unwrap_or("auto"), &of_family);
    let own = own.and_then(|(own, missing)| {
        if !missing.is_empty() {
            tracing::info!(target: "polyrail::rail", missing, "interfaces of the list are not here");
        }
        select(&own, &of_family)
    });
    let mut own = own.map_err(|unfit| {
        let unfit = unfit.among(wanted.family);
        let why = why_none(wanted, interfaces).map(|line| format!("{}: {line}", unfit.why));
        fail(Unfit { why: why.unwrap_or(unfit.why), ..unfit })
    })?;
    let has_speed = |rail: &ChosenRail| {
        interfaces.iter().any(|one| one.name == rail.interface && one.kind.has_speed())
    };
    for rail in own.iter_mut().filter(|rail| has_speed(rail)) {
        rail.speed_mbps = speed_mbps(&rail.interface);
    }
    if !config.names_rails() {
        own = best(own);
    }
    let beside = if others.is_some() { own.len() } else { 0 };
    let named = plugin.as_ref().map_or(0, |plugin| plugin.devices.len());
    check_count(beside + named).map_err(fail)?;
    let Some(PluginSpec { plugin, devices }) = plugin else { return Ok((own, None)) };
    let wishes = Wishes {
        devices: devices.into_iter().map(str::to_owned).collect(),
        tx: cpus_of(&config.tx_bindings),
        rx: cpus_of(&config.rx_bindings),
        control: others.as_ref().and_then(|_| Some(own.first()?.interface.clone())),
        // Less than `peer_timeout_ms`, so that the reason of a lost peer names the plugin.
        call_limit: Duration::from_millis(config.peer_timeout_ms) * 3 / 4,
        ..Wishes::default()
    };
    let host = Host::load(plugin, wishes).map_err(|error| match error {
        HostError::TooMany { count, .. } => fail(too_many(beside + count)),
        error => EngineError::Plugin {
            spec: spec.to_owned(),
            origin: origin(),
            why: error.to_string(),
            remedy: error.help(),
        },
    })?;
    check_count(beside + host.devices().len()).map_err(fail)?;
    let of_devices = host.devices().iter().enumerate().map(|(at, device)| ChosenRail {
        name: format!("{}:{}", host.name(), device.name),
        speed_mbps: device.speed_mbps,
        hosted: Some(at),
        ..control_of(&device.name, &own[at % own.len()], interfaces)
    });
    let of_devices: Vec<ChosenRail> = of_devices.collect();
    let rails = if others.is_some() { [own, of_devices].concat() } else { of_devices };
    Ok((rails, Some(host)))
}

/// CPUs of devices, as the bindings name them.
fn cpus_of(bindings: &str) -> Vec<CpusOf> {
    // The configuration has checked the syntax.
    let bindings = parse_bindings(bindings).unwrap_or_default();
    let named = bindings.into_iter().filter_map(|it| Some((it.interface?, it.cpus)));
    named.map(|(interface, cpus)| CpusOf { interface, cpus }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Explain;

    fn refused(spec: &str) -> EngineError {
        let config = Config::builder().set("rails", spec).unwrap();
        let interfaces = polyrail_sys::interfaces::list().unwrap();
        select_all(&config.build().unwrap(), &interfaces).unwrap_err()
    }

    #[test]
    fn what_names_no_plugin_or_two_is_refused_with_the_form_of_one() {
        for (wrong, why) in [
            ("plugin:", "it names no library of the plugin"),
            ("plugin:@0", "it names no library of the plugin"),
            ("plugin:x@", "a device of the plugin has no name"),
            ("plugin:x@0+", "a device of the plugin has no name"),
            ("plugin:a,plugin:b", "it names more than one plugin"),
            ("^eth0,plugin:a", "it leaves out interfaces (^) beside a plugin"),
        ] {
            let error = refused(wrong);
            let text = error.to_string();
            assert!(text.contains(&format!("{why}; allowed: plugin:LIBRARY, or ")), "{text}");
            assert!(error.help().is_some_and(|help| help.contains("plugin:/opt")), "{error:?}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn too_many_rails_are_told_in_one_way_whoever_brings_them() {
        let addresses: Vec<String> = (1..=65).map(|at| format!("127.0.0.{at}")).collect();
        let devices: Vec<String> = (0..65).map(|at| at.to_string()).collect();
        let (own, all) = (addresses.join(","), devices.join("+"));
        // The plugin is not even looked up.
        let beside = format!("127.0.0.1,plugin:/none/a.so@{}", devices[..64].join("+"));
        for spec in [own, format!("plugin:/none/a.so@{all}"), beside] {
            let text = refused(&spec).to_string();
            assert!(text.ends_with("these are 65 rails; allowed: 1 to 64"), "{text}");
        }
    }

    #[test]
    fn a_plugin_that_is_not_there_is_an_error_of_the_rails() {
        let error = refused("plugin:/none/libnccl-net.so");
        let text = error.to_string();
        assert!(text.contains("rails = `plugin:/none/libnccl-net.so`"), "{text}");
        assert!(text.ends_with("tried: /none/libnccl-net.so"), "{text}");
        assert!(error.help().is_some_and(|help| help.contains("NCCL_NET_PLUGIN")));
        let error = refused("plugin:libc.so.6");
        assert!(error.to_string().contains("libc.so.6 exports no ncclNetPlugin_v5"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("a net plugin of NCCL")));
    }
}
