//! Settings of earlier versions. Errors for their names say what to set instead.

/// Names that are no longer settings, with advice.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    (
        "bind_device",
        "leave it out: connections leave by the device of their rail wherever the peer can be reached so",
    ),
    ("dump_file", "leave it out: a dump goes to standard error, or behind the log of log_file"),
    (
        "handshake_limit",
        "set flow_limit: a 32nd of it, and 4 at least, may be in the handshake at once",
    ),
    ("hello_timeout_ms", "set connect_timeout_ms, which holds for the handshake, too"),
    ("listen_ports", "give listen_port a range, like listen_port=5000-5063"),
    ("log_per_minute", "leave it out: one place in the code writes 100 records per minute"),
    ("nccl_speed_mbps", "leave it out: a device has the speed of its rails together"),
    ("notification_bytes", "leave it out: a notification has 64 KiB at most"),
    ("notsent_bytes", "leave it out: the kernel decides when a flow is full"),
    ("polling", "set spin=off, which is for waiting calls, too, or spin=auto"),
    ("proxy_spin_us", "set spin, like spin=30us, which is for proxies and for waiting calls"),
    ("reconnect_min_ms", "set reconnect_max_ms: the first pause is a tenth of it"),
    ("recv_buffer_bytes", "set socket_buffer_bytes, which is for sending and receiving"),
    ("rx_cpus", "give them to rx_bindings without an interface, like rx_bindings=22-35"),
    (
        "rx_proxies",
        "set proxies: one number, or those that send and those that receive, like 2,3 or 2,0 where 0 is auto",
    ),
    ("send_buffer_bytes", "set socket_buffer_bytes, which is for sending and receiving"),
    (
        "single_copy",
        "leave it out; for off set path=device: CPUs copy nothing from memory to memory",
    ),
    ("top_socket", "leave it out; for off set metrics_listen=off, which serves no metrics at all"),
    ("trace_events", "leave it out: a trace holds 1048576 events"),
    ("transfer_timeout_ms", "leave it out: programs give a request a time limit of its own"),
    ("tx_cpus", "give them to tx_bindings without an interface, like 8-21 or eth1:8-21;22-35"),
    (
        "tx_proxies",
        "set proxies: one number, or those that send and those that receive, like 2,3 or 2,0 where 0 is auto",
    ),
    ("wait_spin_us", "set spin, like spin=2ms, which is for proxies and for waiting calls"),
];

/// Returns the advice for `name`, if that was a setting once.
pub(crate) fn instead_of(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == name).map(|(_, now)| *now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::index_of;

    #[test]
    fn no_name_of_an_earlier_version_is_a_setting() {
        for (name, now) in RENAMED {
            assert!(index_of(name).is_none() && !now.is_empty(), "{name}");
        }
        assert!(RENAMED.is_sorted(), "in the order of the page");
    }
}
