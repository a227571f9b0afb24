//! Invalid input: every error names the field, the value, the allowed range and the origin.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use polyrail_config::{Config, ConfigBuilder, ConfigError, FILE_LIMIT_BYTES, Settings};
use proptest::prelude::*;

/// Names and values.
type Pairs = &'static [(&'static str, &'static str)];

/// An engine needs both to present certificates.
const CERTIFICATE: (&str, &str) = ("certificate_file", "cert.pem");
const KEY: (&str, &str) = ("certificate_key_file", "key.pem");
const TRUST: (&str, &str) = ("trust_file", "ca.pem");
const NAMES: (&str, &str) = ("allowed_names", "*.example.org, spiffe://example.org/ml/*");

fn set(pairs: &[(&str, &str)]) -> Result<ConfigBuilder, ConfigError> {
    pairs.iter().try_fold(Config::builder(), |builder, (name, value)| builder.set(name, value))
}

fn refusal(name: &str, value: &str) -> ConfigError {
    Config::builder().set(name, value).unwrap_err()
}

fn env_refusal(name: &str, value: &str) -> ConfigError {
    Config::builder().env_from([(name.to_owned(), value.to_owned())]).build().unwrap_err()
}

#[test]
fn a_value_out_of_range_names_field_value_range_and_origin() {
    assert_eq!(
        refusal("chunk_bytes", "1KiB").to_string(),
        "chunk_bytes = `1KiB` (from an option or the program) is out of range; allowed: 4KiB to 64MiB"
    );
    assert_eq!(
        env_refusal("POLYRAIL_WINDOW_CHUNKS", "0").to_string(),
        "window_chunks = `0` (env POLYRAIL_WINDOW_CHUNKS) is out of range; allowed: 1 to 1024"
    );
    let file = Config::builder().yaml("sockets: 1\nrail_stall_ms:  5\n", "p.yaml").unwrap_err();
    assert_eq!(
        file.to_string(),
        "rail_stall_ms = `5` (file p.yaml:2:17) is out of range; allowed: 20 to 600000 ms"
    );
}

#[test]
fn half_of_what_certificates_need_is_refused() {
    let all = [CERTIFICATE, KEY, TRUST, NAMES];
    set(&all).unwrap().build().unwrap();
    for given in 1..(1 << all.len()) - 1 {
        let some: Vec<_> =
            all.into_iter().enumerate().filter(|(at, _)| given & (1 << at) != 0).collect();
        let some: Vec<_> = some.into_iter().map(|(_, pair)| pair).collect();
        let error = set(&some).unwrap().build().unwrap_err();
        let text = error.to_string();
        assert!(some.iter().any(|(name, value)| text.contains(&format!("{name} = `{value}`"))));
        assert!(error.help().unwrap().contains("allowed_names"), "{text}");
    }
    let text = refusal("allowed_names", "a.example.org, b.*.org").to_string();
    assert_eq!(
        text,
        "allowed_names = `a.example.org, b.*.org` (from an option or the program) has `b.*.org` with \
         a `*` that is neither all, nor the first label, nor the last step (name 2); allowed: empty \
         (none), or a list of DNS names, `*.example.org`, SPIFFE IDs, `spiffe://example.org/path/*`; \
         `*` is any name"
    );
}

#[test]
fn both_ends_of_every_range_are_taken_and_what_lies_beyond_is_not() {
    for (name, low, high) in [
        ("channels", 0u64, 256u64),
        ("sockets", 1, 32),
        ("window_chunks", 1, 1024),
        ("chunk_bytes", 4 << 10, 64 << 20),
        ("proxies", 0, 256),
        ("append_freq", 1, 4096),
        ("append_batch", 1, 4096),
        ("ops_pool", 64, 1 << 20),
        ("inline_bytes", 0, 1 << 20),
        ("socket_buffer_bytes", 64 << 10, 1 << 30),
        ("listen_port", 0, 65_535),
        ("connect_timeout_ms", 1, 600_000),
        ("rail_stall_ms", 20, 600_000),
        ("reconnect_max_ms", 1, 600_000),
        ("peer_timeout_ms", 100, 3_600_000),
        ("notification_queue", 1, 1 << 24),
        ("flow_limit", 16, 65_536),
        ("dump_signal", 0, 64),
    ] {
        for value in [low, high] {
            // Another setting may conflict, but the value itself is accepted and fits its type.
            match set(&[(name, &value.to_string())]).unwrap().build() {
                Ok(config) => {
                    let rows = config.rows();
                    let row = rows.iter().find(|row| row.name == name).unwrap();
                    assert_eq!(row.raw.to_string(), value.to_string());
                }
                Err(error) => assert!(matches!(error, ConfigError::Conflict(_)), "{error}"),
            }
        }
        for value in [low.checked_sub(1), Some(high + 1)].into_iter().flatten() {
            assert!(
                refusal(name, &value.to_string()).to_string().contains("out of range"),
                "{name}"
            );
        }
    }
}

#[test]
fn every_kind_of_bad_value_is_refused_with_its_fault() {
    for (name, value, part) in [
        ("chunk_bytes", "512K", "ambiguous"),
        ("chunk_bytes", "", "is empty"),
        ("chunk_bytes", "-1", "negative"),
        ("chunk_bytes", "1e6", "unknown unit `e6`"),
        ("chunk_bytes", "18446744073709551616", "above every allowed number"),
        ("window_chunks", "16KiB", "has `KiB` after the number"),
        ("peer_timeout_ms", "10x", "unknown unit"),
        ("rails", " ", "is empty"),
        ("progress", "threads", "allowed: proxy, caller"),
        ("spin", "2s", "is out of range; allowed: auto, off, or a time from 1us to 1s"),
        ("preset", "fast", "allowed: latency, throughput, cpu, balanced"),
        (
            "tx_bindings",
            "8-",
            "for any other interface that has the item `8-`, which is neither a CPU nor a range",
        ),
        ("rx_bindings", "0-9000", "CPU 9000; the last one possible is 8191"),
        ("rx_bindings", "8;eth1:9;10", "has any other interface twice (column 10)"),
        ("proxies", "1,2,3", "has more than two numbers"),
        ("tx_bindings", "eth1:8-21;eth2", "has `eth2` without a colon"),
        ("tx_bindings", "eth1:8-21,x", "has a list for eth1 that has the item `x`"),
        ("rx_bindings", "eth1:8;eth1:9", "has eth1 twice (column 8)"),
        ("congestion", "new reno", "not a name of a congestion control"),
        ("dump_signal", "9", "signal 9 (KILL), which no program can catch"),
        ("dump_signal", "SEGV", "reports a fault of the program"),
        ("log_subsystems", "peer,NET", "unknown subsystem `net`"),
        ("log_file", "log.%d", "unknown mark `%d`"),
        ("log_file", "log.%x", "unknown mark `%x`"),
        ("log_format", "xml", "allowed: text, json"),
        ("trace_file", "trace\u{0}", "control character"),
        ("verbose_bindings", "maybe", "neither true nor false"),
        ("metrics_listen", "9754", "is in none of the allowed forms"),
        ("metrics_listen", "dir:here", "has a path that does not begin with `/`"),
        ("rendezvous", "node1:2379", "has no `://`"),
        ("rendezvous", "etcd://node1:0", "has the port `0`"),
        (
            "listen_port",
            "70000",
            "allowed: 0 (a free one of 29200 to 29999), 1 to 65535, or a range",
        ),
        ("listen_port", "65535-65536", "out of range"),
        ("listen_port", "0-64", "is no range of ports"),
    ] {
        let message = refusal(name, value).to_string();
        assert!(message.contains(part) && message.starts_with(name), "{message}");
        assert!(message.contains("; allowed: "), "{message}");
    }
    assert!(refusal("chunk_bytes", "512K").help().unwrap().contains("512KiB"));
    assert_eq!(refusal("progress", "caler").help().as_deref(), Some("did you mean `caller`?"));
}

#[test]
fn unknown_names_are_refused_everywhere_with_the_nearest() {
    let error = refusal("chunk_byte", "1");
    let allowed = "; allowed: those that `polyrail config show` lists";
    let expected = "unknown setting `chunk_byte` (from an option or the program)";
    assert_eq!(error.to_string(), format!("{expected}{allowed}"));
    assert_eq!(error.help().as_deref(), Some("did you mean `chunk_bytes`?"));

    let error = Config::builder().yaml("sockets: 1\n  \nchunks: 1\n", "f").unwrap_err();
    assert_eq!(error.to_string(), format!("unknown setting `chunks` (file f:3:1){allowed}"));

    let error = env_refusal("POLYRAIL_CHUNK_BYTE", "1");
    let expected = "unknown setting `POLYRAIL_CHUNK_BYTE` (env POLYRAIL_CHUNK_BYTE)";
    assert_eq!(error.to_string(), format!("{expected}{allowed}"));
    assert_eq!(error.help().as_deref(), Some("did you mean `POLYRAIL_CHUNK_BYTES`?"));

    // POLYRAIL_STATE_DIR is for `polyrail host`. Other commands ignore it.
    let state = [("POLYRAIL_STATE_DIR".to_owned(), "/x".to_owned())];
    assert!(Config::builder().env_from(state).build().is_ok());

    let error = refusal("colour", "red");
    assert_eq!(error.help().as_deref(), Some("`polyrail config docs` explains all settings"));
}

#[test]
fn names_of_earlier_versions_are_refused_everywhere_with_what_to_do_instead() {
    let error = refusal("hello_timeout_ms", "100");
    assert_eq!(
        error.to_string(),
        "setting `hello_timeout_ms` (from an option or the program) is of an earlier version; allowed: those that \
         `polyrail config show` lists"
    );
    assert!(error.help().unwrap().contains("connect_timeout_ms"), "{:?}", error.help());
    let error = env_refusal("POLYRAIL_LISTEN_PORTS", "64");
    assert!(
        error.to_string().starts_with("setting `POLYRAIL_LISTEN_PORTS` (env POLYRAIL"),
        "{error}"
    );
    assert!(error.help().unwrap().contains("listen_port=5000-5063"), "{:?}", error.help());
    let error = Config::builder().yaml("sockets: 1\nreconnect_min_ms: 5\n", "f").unwrap_err();
    assert!(error.to_string().contains("`reconnect_min_ms` (file f:2:1) is of an"), "{error}");
}

#[test]
fn an_own_spelling_of_an_alias_is_as_strict_as_a_setting() {
    assert!(env_refusal("POLYRAIL_DEBUG_BINDINGS", "x").to_string().contains("verbose_bindings"));
}

#[test]
fn an_empty_own_variable_is_refused_unless_empty_is_a_value() {
    let error = env_refusal("POLYRAIL_SOCKETS", "");
    assert!(error.to_string().contains("is empty"));
    assert_eq!(error.help().as_deref(), Some("unset the variable to keep the default"));
    let log = [("POLYRAIL_LOG_FILE".to_owned(), String::new())];
    assert_eq!(Config::builder().env_from(log).build().unwrap().log_file, "");
}

#[test]
fn conflicts_name_both_settings_with_their_origins() {
    let error = set(&[("rail_stall_ms", "11s")]).unwrap().build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "rail_stall_ms = `11000` (from an option or the program) conflicts with peer_timeout_ms = `10000` (default): \
         the engine would give up the peer before a stalled rail; allowed: all but where rail_stall_ms is over \
         peer_timeout_ms"
    );
    assert!(error.help().is_some());
}

#[test]
fn every_conflict_is_found() {
    let cases: &[(Pairs, &str, &str)] = &[
        (&[("progress", "caller"), ("proxy_layout", "split")], "progress", "proxy_layout"),
        (&[("preset", "latency"), ("proxy_layout", "split")], "progress", "proxy_layout"),
        (&[("progress", "caller"), ("proxies", "2,0")], "progress", "proxies"),
        (&[("progress", "caller"), ("proxies", "0,2")], "progress", "proxies"),
        (&[("progress", "caller"), ("tx_bindings", "0")], "progress", "tx_bindings"),
        (&[("preset", "latency"), ("rx_bindings", "0")], "progress", "rx_bindings"),
        (
            &[("proxy_layout", "merged"), ("tx_bindings", "0"), ("rx_bindings", "1")],
            "tx_bindings",
            "rx_bindings",
        ),
        (&[("progress", "caller"), ("tx_bindings", "lo:0")], "progress", "tx_bindings"),
        (&[("progress", "caller"), ("rx_bindings", "lo:0")], "progress", "rx_bindings"),
        (
            &[("proxy_layout", "merged"), ("tx_bindings", "lo:0"), ("rx_bindings", "lo:1")],
            "tx_bindings",
            "rx_bindings",
        ),
        (&[("append_batch", "128"), ("ops_pool", "64")], "append_batch", "ops_pool"),
        (
            &[("channels", "256"), ("sockets", "32"), ("flow_limit", "8191")],
            "channels",
            "flow_limit",
        ),
        (&[("peer_timeout_ms", "399")], "rail_stall_ms", "peer_timeout_ms"),
        (&[("trace_file", "a"), ("log_file", "a")], "trace_file", "log_file"),
        (&[CERTIFICATE, TRUST, NAMES], "certificate_file", "certificate_key_file"),
        (&[KEY, TRUST, NAMES], "certificate_key_file", "certificate_file"),
        (&[CERTIFICATE, KEY, NAMES], "certificate_file", "trust_file"),
        (&[TRUST], "trust_file", "certificate_file"),
        (&[CERTIFICATE, KEY, TRUST], "certificate_file", "allowed_names"),
        (&[NAMES], "allowed_names", "certificate_file"),
    ];
    for (pairs, first, second) in cases {
        match set(pairs).unwrap().build() {
            Err(ConfigError::Conflict(conflict)) => {
                assert_eq!((conflict.first.name, conflict.second.name), (*first, *second));
            }
            other => panic!("{pairs:?}: {other:?}"),
        }
    }
}

#[test]
fn what_only_looks_like_a_conflict_is_taken() {
    let cases: &[Pairs] = &[
        &[("progress", "caller")],
        &[("progress", "caller"), ("proxies", "1")],
        &[("preset", "latency"), ("progress", "proxy"), ("proxy_layout", "split")],
        &[("preset", "latency"), ("progress", "proxy"), ("tx_bindings", "0-3")],
        &[("preset", "cpu"), ("proxies", "2,1")],
        &[("append_batch", "64"), ("ops_pool", "64")],
        &[("proxy_layout", "merged"), ("proxies", "2,3")],
    ];
    for pairs in cases {
        assert!(set(pairs).unwrap().build().is_ok(), "{pairs:?}");
    }
}

#[test]
fn a_pair_needs_an_equals_sign_and_keeps_those_of_the_value() {
    let error = Config::builder().set_pair("chunk_bytes").unwrap_err();
    assert_eq!(error.to_string(), "`chunk_bytes` has no `=`; allowed: NAME=VALUE");
    let config = Config::builder().set_pair("rails==eth1").unwrap().build().unwrap();
    assert_eq!(config.rails, "=eth1");
}

#[test]
fn files_that_cannot_be_read_are_refused_by_their_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polyrail.yaml");
    let missing = Config::builder().file(&path).unwrap_err().to_string();
    assert!(missing.starts_with("can't read the config file") && missing.contains("polyrail.yaml"));

    std::fs::write(&path, b"sockets: \xff\n").unwrap();
    let binary = Config::builder().file(&path).unwrap_err().to_string();
    assert!(binary.contains("byte 9 is not UTF-8 text; allowed: "), "{binary}");

    // A character of three bytes straddles the limit; the error is still about the size.
    std::fs::write(&path, "\u{20ac}".repeat(FILE_LIMIT_BYTES / 3 + 1)).unwrap();
    let error = Config::builder().file(&path).unwrap_err();
    assert!(matches!(error, ConfigError::TooLarge { .. }), "{error}");

    std::fs::write(&path, "sockets: 4\n").unwrap();
    assert_eq!(Config::builder().file(&path).unwrap().build().unwrap().sockets, 4);
}

/// Reading some of these files would hang, or never end.
#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, socket] = ["pipe", "socket"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, what) in [
        (&*pipe, "a pipe"),
        (&*socket, "a socket"),
        (folder.path(), "a folder"),
        (Path::new("/dev/zero"), "a device"),
    ] {
        let (done, refused) = mpsc::channel();
        let named = path.to_owned();
        std::thread::spawn(move || done.send(Config::builder().file(&named).unwrap_err()));
        let error = refused.recv_timeout(Duration::from_secs(30)).expect("it waits for nobody");
        let text = error.to_string();
        assert!(text.contains(&format!("it is {what}; allowed: a regular file")), "{text}");
        assert!(text.contains(path.to_str().unwrap()) && error.help().is_some(), "{text}");
    }
    assert!(Config::builder().file("/dev/null".as_ref()).is_ok(), "it holds nothing");
}

proptest! {
    #[test]
    fn any_text_of_a_file_is_taken_or_refused_by_the_name_of_the_file(
        text in "\\PC*|[a-z: \n\\-\\[\\]{}&*!'\"#%~|>]*",
    ) {
        match Config::builder().yaml(&text, "far.yaml").and_then(ConfigBuilder::build) {
            // Random text never happens to be the name of a setting.
            Ok(config) => prop_assert_eq!(config, Config::builder().build().unwrap()),
            Err(error) => prop_assert!(error.to_string().contains("far.yaml"), "{}", error),
        }
    }

    #[test]
    fn no_value_of_any_setting_panics_and_what_is_taken_reads_back(
        index in 0..polyrail_config::names().count(),
        value in "\\PC*|[0-9]{1,20}( ?[kKMGBibmus]{0,3})|[\\^a-z0-9,%\\-]*",
    ) {
        let name = polyrail_config::names().nth(index).unwrap();
        match Config::builder().set(name, &value).and_then(ConfigBuilder::build) {
            Ok(config) => {
                let row = config.rows().into_iter().find(|row| row.name == name).unwrap();
                let again = Config::builder().set(name, &row.value).unwrap().build().unwrap();
                prop_assert_eq!(config, again);
            }
            Err(error) => prop_assert!(error.to_string().contains(name), "{}", error),
        }
    }

    #[test]
    fn a_variable_of_no_setting_changes_none_or_is_refused_by_its_name(
        name in "(POLYRAIL_|NCCL_)[A-Z_]{0,60}", value in "\\PC*",
    ) {
        match Config::builder().env_from([(name.clone(), value)]).build() {
            Ok(config) => prop_assert_eq!(config.settings(), &Settings::default()),
            Err(error) => prop_assert!(error.to_string().contains(&name), "{}", error),
        }
    }
}
