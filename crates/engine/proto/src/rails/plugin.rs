//! A plugin among the rails: `eth0,plugin:/path/libnccl-net.so@eth1+eth2`.

use super::{Allowed, ChosenRail, Interface, Unfit, one_per_interface};

/// Prefix of a plugin among the rails.
const PREFIX: &str = "plugin:";

/// A plugin among the rails.
#[derive(Debug, PartialEq, Eq)]
pub struct PluginSpec<'a> {
    /// Path of its library.
    pub plugin: &'a str,
    /// Names or numbers of devices; empty for all.
    pub devices: Vec<&'a str>,
}

/// Separates a plugin from the other rails. Without a plugin, all are returned as rails.
pub fn split(spec: &str) -> Result<(Option<String>, Option<PluginSpec<'_>>), Unfit> {
    let is_plugin = |word: &&str| word.trim().starts_with(PREFIX);
    let (plugins, others): (Vec<&str>, Vec<&str>) = spec.split(',').partition(is_plugin);
    let Some(first) = plugins.first() else { return Ok((Some(spec.to_owned()), None)) };
    let wrong = |why: &str| Err(Unfit::wrong(why.to_owned(), Allowed::Plugin));
    if plugins.len() > 1 {
        return wrong("it names more than one plugin");
    }
    let others = (!others.is_empty()).then(|| others.join(","));
    if others.as_deref().is_some_and(|others| others.trim_start().starts_with('^')) {
        return wrong("it leaves out interfaces (^) beside a plugin");
    }
    let named = first.trim().strip_prefix(PREFIX).unwrap_or_default();
    let (plugin, devices) = match named.rsplit_once('@') {
        Some((plugin, devices)) => (plugin, devices.split('+').collect()),
        None => (named, Vec::new()),
    };
    if plugin.is_empty() {
        return wrong("it names no library of the plugin");
    }
    if devices.iter().any(|device: &&str| device.is_empty()) {
        return wrong("a device of the plugin has no name");
    }
    Ok((others, Some(PluginSpec { plugin, devices })))
}

/// Returns the interfaces by which bindings name the rails, for a plugin with these devices. The device comes first:
/// its TCP connection may take another interface, and a user who binds `eth1` means all threads of the device eth1.
pub fn bound_as<'a>(rails: &'a [ChosenRail], devices: &[&'a str]) -> Vec<Vec<&'a str>> {
    let device = |rail: &ChosenRail| devices.get(rail.hosted?).copied();
    let names = |rail: &'a ChosenRail| device(rail).into_iter().chain([rail.interface.as_str()]);
    rails.iter().map(|rail| names(rail).collect()).collect()
}

/// Returns the rail for the data that the device of this name does not carry: its own interface, or another one.
pub fn control_of(device: &str, other: &ChosenRail, interfaces: &[Interface]) -> ChosenRail {
    let is_its = |interface: &&Interface| interface.name == device && interface.up;
    let its = one_per_interface(interfaces.iter().filter(is_its)).pop();
    its.unwrap_or_else(|| other.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_name_a_hosted_rail_by_its_device_first() {
        let lo = Interface::described(1, "lo", [127, 0, 0, 1].into());
        let own = ChosenRail::of(&lo);
        let hosted = ChosenRail { hosted: Some(0), ..own.clone() };
        assert_eq!(bound_as(&[own, hosted], &["eth1"]), [vec!["lo"], vec!["eth1", "lo"]]);
    }

    fn parsed(spec: &str) -> (Option<String>, Option<(&str, Vec<&str>)>) {
        let (others, plugin) = split(spec).unwrap();
        (others, plugin.map(|it| (it.plugin, it.devices)))
    }

    #[test]
    fn a_plugin_stands_alone_or_among_other_rails_with_or_without_devices() {
        let own = Some("eth1,eth2".to_owned());
        assert_eq!(parsed("eth1,eth2"), (own, None));
        assert_eq!(parsed("plugin:/a/b.so"), (None, Some(("/a/b.so", vec![]))));
        let eth0 = Some("eth0".to_owned());
        assert_eq!(parsed("eth0, plugin:ofi@eth1+3"), (eth0, Some(("ofi", vec!["eth1", "3"]))));
        assert_eq!(parsed("plugin:/a@b/c.so@0"), (None, Some(("/a@b/c.so", vec!["0"]))));
    }
}
