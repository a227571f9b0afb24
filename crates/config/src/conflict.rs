//! Values that are fine alone and not together.

use crate::choices::{LogFormat, Progress, ProxyLayout};
use crate::config::Origin;
use crate::error::{ConfigError, Conflict, Party};
use crate::table::{Settings, TABLE, index_of};

/// Two settings that can conflict.
pub(crate) struct Rule {
    pub(crate) first: &'static str,
    pub(crate) second: &'static str,
    /// Says when they do.
    pub(crate) when: &'static str,
    is_broken: fn(&Settings, &Explicit<'_>) -> bool,
    pub(crate) why: &'static str,
    remedy: &'static str,
}

/// Tells which settings somebody gave a value of their own.
struct Explicit<'a>(&'a [Origin]);

impl Explicit<'_> {
    fn has(&self, name: &str) -> bool {
        index_of(name).and_then(|index| self.0.get(index)).is_some_and(Origin::is_explicit)
    }
}

const ASK_FOR_PROXIES: &str = "set progress to proxy, or leave the other one out";

const ALL_OF_CERTIFICATES: &str = "give all of certificate_file, certificate_key_file, trust_file and allowed_names, or none of \
     them";

/// Every conflict there is, in the order of the checks.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        first: "progress",
        second: "proxy_layout",
        when: "progress is caller and proxy_layout is given as split",
        is_broken: |settings, explicit| {
            settings.progress == Progress::Caller
                && settings.proxy_layout == ProxyLayout::Split
                && explicit.has("proxy_layout")
        },
        why: "a calling thread that moves the data both sends and receives",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "tx_proxies",
        when: "progress is caller and tx_proxies is over 1",
        is_broken: |settings, _| settings.progress == Progress::Caller && settings.tx_proxies > 1,
        why: "there are no proxies when the caller moves the data",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "rx_proxies",
        when: "progress is caller and rx_proxies is over 1",
        is_broken: |settings, _| settings.progress == Progress::Caller && settings.rx_proxies > 1,
        why: "there are no proxies when the caller moves the data",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "tx_cpus",
        when: "progress is caller and tx_cpus is given",
        is_broken: |settings, _| {
            settings.progress == Progress::Caller && !settings.tx_cpus.is_empty()
        },
        why: "the engine never changes the affinity of the program's own threads",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "rx_cpus",
        when: "progress is caller and rx_cpus is given",
        is_broken: |settings, _| {
            settings.progress == Progress::Caller && !settings.rx_cpus.is_empty()
        },
        why: "the engine never changes the affinity of the program's own threads",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "tx_bindings",
        when: "progress is caller and tx_bindings is given",
        is_broken: |settings, _| {
            settings.progress == Progress::Caller && !settings.tx_bindings.is_empty()
        },
        why: "the engine never changes the affinity of the program's own threads",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "progress",
        second: "rx_bindings",
        when: "progress is caller and rx_bindings is given",
        is_broken: |settings, _| {
            settings.progress == Progress::Caller && !settings.rx_bindings.is_empty()
        },
        why: "the engine never changes the affinity of the program's own threads",
        remedy: ASK_FOR_PROXIES,
    },
    Rule {
        first: "tx_proxies",
        second: "rx_proxies",
        when: "proxy_layout is merged and both counts are given and differ",
        is_broken: |settings, explicit| {
            let (tx, rx) = (settings.tx_proxies, settings.rx_proxies);
            settings.proxy_layout == ProxyLayout::Merged
                && explicit.has("tx_proxies")
                && explicit.has("rx_proxies")
                && tx.min(rx) > 0
                && tx != rx
        },
        why: "merged proxies both send and receive, so there is one count",
        remedy: "give one count, or set proxy_layout to split",
    },
    Rule {
        first: "tx_cpus",
        second: "rx_cpus",
        when: "proxy_layout is merged and both lists are given and differ",
        is_broken: |settings, _| {
            settings.proxy_layout == ProxyLayout::Merged
                && !settings.tx_cpus.is_empty()
                && !settings.rx_cpus.is_empty()
                && settings.tx_cpus != settings.rx_cpus
        },
        why: "merged proxies both send and receive, so there is one list",
        remedy: "give one list, or set proxy_layout to split",
    },
    Rule {
        first: "tx_bindings",
        second: "rx_bindings",
        when: "proxy_layout is merged and both bindings are given and differ",
        is_broken: |settings, _| {
            settings.proxy_layout == ProxyLayout::Merged
                && !settings.tx_bindings.is_empty()
                && !settings.rx_bindings.is_empty()
                && settings.tx_bindings != settings.rx_bindings
        },
        why: "merged proxies both send and receive, so there is one set of bindings",
        remedy: "give one of them, or set proxy_layout to split",
    },
    Rule {
        first: "append_batch",
        second: "ops_pool",
        when: "append_batch is over ops_pool",
        is_broken: |settings, _| settings.append_batch > settings.ops_pool,
        why: "a fetch can't take more operations than the pool holds",
        remedy: "raise ops_pool or lower append_batch",
    },
    Rule {
        first: "channels",
        second: "flow_limit",
        when: "channels times sockets is over flow_limit",
        is_broken: |settings, _| {
            u64::from(settings.channels) * u64::from(settings.sockets)
                > u64::from(settings.flow_limit)
        },
        why: "a single peer needs channels times sockets flows",
        remedy: "raise flow_limit, or lower channels or sockets",
    },
    Rule {
        first: "notsent_bytes",
        second: "send_buffer_bytes",
        when: "notsent_bytes is over send_buffer_bytes, and that is not 0",
        is_broken: |settings, _| {
            settings.send_buffer_bytes > 0 && settings.notsent_bytes > settings.send_buffer_bytes
        },
        why: "the send buffer is full before the mark is reached",
        remedy: "lower notsent_bytes, or set send_buffer_bytes to 0",
    },
    Rule {
        first: "reconnect_min_ms",
        second: "reconnect_max_ms",
        when: "reconnect_min_ms is over reconnect_max_ms",
        is_broken: |settings, _| settings.reconnect_min_ms > settings.reconnect_max_ms,
        why: "the first pause can't be longer than the longest",
        remedy: "swap the two",
    },
    Rule {
        first: "rail_stall_ms",
        second: "peer_timeout_ms",
        when: "rail_stall_ms is over peer_timeout_ms",
        is_broken: |settings, _| settings.rail_stall_ms > settings.peer_timeout_ms,
        why: "the engine would give up the peer before a stalled rail",
        remedy: "lower rail_stall_ms or raise peer_timeout_ms",
    },
    Rule {
        first: "trace_file",
        second: "log_file",
        when: "trace_file and log_file are one file",
        is_broken: |settings, _| same_file(&settings.trace_file, &settings.log_file),
        why: "log lines would break the JSON of the trace",
        remedy: "give each a file of its own",
    },
    Rule {
        first: "trace_file",
        second: "dump_file",
        when: "trace_file and dump_file are one file",
        is_broken: |settings, _| same_file(&settings.trace_file, &settings.dump_file),
        why: "a state dump would break the JSON of the trace",
        remedy: "give each a file of its own",
    },
    Rule {
        first: "dump_file",
        second: "log_file",
        when: "dump_file and log_file are one file, and log_format is json",
        is_broken: |settings, _| {
            settings.log_format == LogFormat::Json
                && same_file(&settings.dump_file, &settings.log_file)
        },
        why: "a state dump would break the JSON of the log",
        remedy: "give each a file of its own",
    },
    Rule {
        first: "certificate_file",
        second: "certificate_key_file",
        when: "certificate_file is given and certificate_key_file is not",
        is_broken: |settings, _| {
            !settings.certificate_file.is_empty() && settings.certificate_key_file.is_empty()
        },
        why: "a certificate proves nothing without its private key",
        remedy: ALL_OF_CERTIFICATES,
    },
    Rule {
        first: "certificate_key_file",
        second: "certificate_file",
        when: "certificate_key_file is given and certificate_file is not",
        is_broken: |settings, _| {
            !settings.certificate_key_file.is_empty() && settings.certificate_file.is_empty()
        },
        why: "a private key tells nobody whose it is",
        remedy: ALL_OF_CERTIFICATES,
    },
    Rule {
        first: "listen_ports",
        second: "listen_port",
        when: "listen_ports is over 1 and listen_port is 0",
        is_broken: |settings, _| settings.listen_ports > 1 && settings.listen_port == 0,
        why: "a range of ports has a first one",
        remedy: "give both, such as listen_port=5000 and listen_ports=64",
    },
    Rule {
        first: "listen_ports",
        second: "listen_port",
        when: "the last port would be over 65535",
        is_broken: |settings, _| {
            u32::from(settings.listen_port) + u32::from(settings.listen_ports) > 65536
        },
        why: "the last port would be over 65535",
        remedy: "give a smaller listen_port, or fewer listen_ports",
    },
    Rule {
        first: "certificate_file",
        second: "trust_file",
        when: "certificate_file is given and trust_file is not",
        is_broken: |settings, _| {
            !settings.certificate_file.is_empty() && settings.trust_file.is_empty()
        },
        why: "both ends show a certificate, and nobody vouches for that of the other",
        remedy: ALL_OF_CERTIFICATES,
    },
    Rule {
        first: "trust_file",
        second: "certificate_file",
        when: "trust_file is given and certificate_file is not",
        is_broken: |settings, _| {
            !settings.trust_file.is_empty() && settings.certificate_file.is_empty()
        },
        why: "both ends show a certificate, and this one has none",
        remedy: ALL_OF_CERTIFICATES,
    },
    Rule {
        first: "trust_file",
        second: "allowed_names",
        when: "trust_file is given and allowed_names is not",
        is_broken: |settings, _| {
            !settings.trust_file.is_empty() && settings.allowed_names.is_empty()
        },
        why: "a CA may vouch for many that are not meant to connect, so nobody is allowed by default",
        remedy: "name who is, or set allowed_names to * if all are that these CAs vouch for",
    },
    Rule {
        first: "allowed_names",
        second: "trust_file",
        when: "allowed_names is given and trust_file is not",
        is_broken: |settings, _| {
            !settings.allowed_names.is_empty() && settings.trust_file.is_empty()
        },
        why: "nobody vouches for these names",
        remedy: ALL_OF_CERTIFICATES,
    },
];

/// Refuses a configuration that breaks a rule; `origins` is one per row of the table.
pub(crate) fn check(settings: &Settings, origins: &[Origin]) -> Result<(), ConfigError> {
    match RULES.iter().find(|rule| (rule.is_broken)(settings, &Explicit(origins))) {
        None => Ok(()),
        Some(rule) => Err(ConfigError::Conflict(Box::new(Conflict {
            first: party(rule.first, settings, origins),
            second: party(rule.second, settings, origins),
            when: rule.when,
            why: rule.why,
            remedy: rule.remedy,
        }))),
    }
}

fn same_file(one: &str, other: &str) -> bool {
    !one.is_empty() && one == other
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
            assert!(index_of(rule.first).is_some(), "{}", rule.first);
            assert!(index_of(rule.second).is_some(), "{}", rule.second);
        }
    }

    #[test]
    fn no_preset_conflicts_with_itself() {
        for &preset in Preset::ALL {
            assert!(Config::builder().preset(preset).build().is_ok(), "{preset}");
        }
    }
}
