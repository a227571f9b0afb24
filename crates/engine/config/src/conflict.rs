//! Conflicts between values that are each valid.

use crate::choices::{Progress, ProxyLayout};
use crate::config::Origin;
use crate::error::{ConfigError, Conflict, Party};
use crate::table::{Settings, TABLE, index_of};

/// A rule about settings with conflicting values.
pub(crate) struct Rule {
    /// All settings of the rule.
    pub(crate) names: &'static [&'static str],
    /// Condition of the conflict, in words.
    pub(crate) when: &'static str,
    pub(crate) why: &'static str,
    remedy: &'static str,
    /// Returns two settings that violate the rule, if any do.
    broken_by: fn(&Given<'_>) -> Option<Pair>,
}

/// Names of two settings.
type Pair = (&'static str, &'static str);

/// Values to check, with their origins.
struct Given<'a> {
    settings: &'a Settings,
    origins: &'a [Origin],
}

impl Given<'_> {
    /// Returns whether the setting was given explicitly.
    fn has(&self, name: &str) -> bool {
        index_of(name).and_then(|index| self.origins.get(index)).is_some_and(Origin::is_explicit)
    }
}

/// Every conflict rule, in the order of the checks.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        names: &["progress", "proxy_layout", "proxies", "tx_bindings", "rx_bindings"],
        when: "progress is caller, and proxy_layout is given as split, proxies is over 1, or CPUs of proxies are given",
        why: "there are no proxies when the caller moves the data, and the engine never changes the affinity of the \
              program's own threads",
        remedy: "set progress to proxy, or leave the other one out",
        broken_by: |given| {
            let of = given.settings;
            let is_split = of.proxy_layout == ProxyLayout::Split && given.has("proxy_layout");
            let others = [
                ("proxy_layout", is_split),
                ("proxies", of.proxies.merged() > 1),
                ("tx_bindings", !of.tx_bindings.is_empty()),
                ("rx_bindings", !of.rx_bindings.is_empty()),
            ];
            let asks_for_proxies = first_of(others).filter(|_| of.progress == Progress::Caller);
            asks_for_proxies.map(|name| ("progress", name))
        },
    },
    Rule {
        names: &["proxy_layout", "tx_bindings", "rx_bindings"],
        when: "proxy_layout is merged, and tx_bindings and rx_bindings are both given and differ",
        why: "merged proxies both send and receive, so there is one of each",
        remedy: "give one of the two, or set proxy_layout to split",
        broken_by: |given| {
            let of = given.settings;
            let [tx, rx] = [&of.tx_bindings, &of.rx_bindings];
            let differ = !tx.is_empty() && !rx.is_empty() && tx != rx;
            let is_broken = differ && of.proxy_layout == ProxyLayout::Merged;
            is_broken.then_some(("tx_bindings", "rx_bindings"))
        },
    },
    Rule {
        names: &["append_batch", "ops_pool"],
        when: "append_batch is over ops_pool",
        why: "a fetch can't take more operations than the pool holds",
        remedy: "raise ops_pool or lower append_batch",
        broken_by: |given| {
            let is_over = given.settings.append_batch > given.settings.ops_pool;
            is_over.then_some(("append_batch", "ops_pool"))
        },
    },
    Rule {
        names: &["channels", "sockets", "flow_limit"],
        when: "channels times sockets is over flow_limit",
        why: "a single peer needs channels times sockets flows",
        remedy: "raise flow_limit, or lower channels or sockets",
        broken_by: |given| {
            let flows = u64::from(given.settings.channels) * u64::from(given.settings.sockets);
            (flows > u64::from(given.settings.flow_limit)).then_some(("channels", "flow_limit"))
        },
    },
    Rule {
        names: &["rail_stall_ms", "peer_timeout_ms"],
        when: "rail_stall_ms is over peer_timeout_ms",
        why: "the engine would give up the peer before a stalled rail",
        remedy: "lower rail_stall_ms or raise peer_timeout_ms",
        broken_by: |given| {
            let is_over = given.settings.rail_stall_ms > given.settings.peer_timeout_ms;
            is_over.then_some(("rail_stall_ms", "peer_timeout_ms"))
        },
    },
    Rule {
        names: &["trace_file", "log_file"],
        when: "trace_file and log_file are one file",
        why: "log lines would break the JSON of the trace",
        remedy: "give each a file of its own",
        broken_by: |given| {
            let (trace, log) = (&given.settings.trace_file, &given.settings.log_file);
            (!trace.is_empty() && trace == log).then_some(("trace_file", "log_file"))
        },
    },
    Rule {
        names: &["certificate_file", "certificate_key_file", "trust_file", "allowed_names"],
        when: "some of certificate_file, certificate_key_file, trust_file and allowed_names are given and others are not",
        why: "an engine shows a certificate that only its key proves, and believes a peer's only if a CA vouches for it \
              and its name is allowed",
        remedy: "give all of certificate_file, certificate_key_file, trust_file and allowed_names, or none of them; \
                 allowed_names=* allows every name that these CAs vouch for",
        broken_by: |given| {
            let of = given.settings;
            let files = [
                ("certificate_file", &of.certificate_file),
                ("certificate_key_file", &of.certificate_key_file),
                ("trust_file", &of.trust_file),
                ("allowed_names", &of.allowed_names),
            ];
            let given = first_of(files.map(|(name, text)| (name, !text.is_empty())))?;
            let missing = first_of(files.map(|(name, text)| (name, text.is_empty())))?;
            Some((given, missing))
        },
    },
];

/// Returns the first case that is true.
fn first_of<T, const N: usize>(cases: [(T, bool); N]) -> Option<T> {
    cases.into_iter().find(|(_, is_so)| *is_so).map(|(case, _)| case)
}

/// Refuses a configuration that violates a rule. `origins` has one entry per row of the table.
pub(crate) fn check(settings: &Settings, origins: &[Origin]) -> Result<(), ConfigError> {
    let given = Given { settings, origins };
    let broken = RULES.iter().find_map(|rule| Some((rule, (rule.broken_by)(&given)?)));
    let Some((rule, (first, second))) = broken else { return Ok(()) };
    Err(ConfigError::Conflict(Box::new(Conflict {
        first: party(first, settings, origins),
        second: party(second, settings, origins),
        when: rule.when,
        why: rule.why,
        remedy: rule.remedy,
    })))
}

fn party(name: &'static str, settings: &Settings, origins: &[Origin]) -> Party {
    // A test shows that every rule names settings of the table; the fallback keeps this total.
    let Some(index) = index_of(name) else {
        return Party { name, value: String::new(), origin: Origin::Default };
    };
    let spec = &TABLE[index];
    Party { name, value: spec.kind.show(&spec.value(settings)), origin: origins[index].clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Preset};

    #[test]
    fn every_rule_names_two_settings() {
        for rule in RULES {
            assert!(rule.names.len() >= 2, "{}", rule.when);
            assert!(rule.names.iter().all(|name| index_of(name).is_some()), "{:?}", rule.names);
        }
    }

    #[test]
    fn no_preset_conflicts_with_itself() {
        for &preset in Preset::ALL {
            assert!(Config::builder().preset(preset).build().is_ok(), "{preset}");
        }
    }
}
