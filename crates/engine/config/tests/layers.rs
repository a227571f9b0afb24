//! Precedence of layers, and the origin that each value keeps.

use polyrail_config::{
    Config, ConfigBuilder, LogLevel, Origin, Preset, Progress, Proxies, Spin, names,
};

fn env(builder: ConfigBuilder, variables: &[(&str, &str)]) -> ConfigBuilder {
    builder.env_from(variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())))
}

fn with_env(variables: &[(&str, &str)]) -> Config {
    env(Config::builder(), variables).build().unwrap()
}

fn origin(config: &Config, name: &str) -> String {
    config.origin(name).unwrap().to_string()
}

#[test]
fn each_layer_wins_over_the_ones_below_it() {
    type Add = fn(ConfigBuilder) -> ConfigBuilder;
    // Lowest first; each gives append_batch another value.
    let layers: [(Add, u32, &str); 6] = [
        (|b| b, 16, "default"),
        (|b| env(b, &[("POLYRAIL_PRESET", "cpu")]), 64, "preset cpu"),
        (|b| b.yaml("append_batch: 3", "a.yaml").unwrap(), 3, "file a.yaml:1"),
        (
            |b| env(b, &[("NCCL_PROXY_APPEND_BATCH_SIZE", "4")]),
            4,
            "env NCCL_PROXY_APPEND_BATCH_SIZE",
        ),
        (|b| env(b, &[("POLYRAIL_APPEND_BATCH", "5")]), 5, "env POLYRAIL_APPEND_BATCH"),
        (|b| b.set("append_batch", "6").unwrap(), 6, "set"),
    ];
    // Every pair, given in both orders.
    for (low, high) in (0..layers.len()).flat_map(|low| (low..layers.len()).map(move |h| (low, h)))
    {
        for [first, second] in [[low, high], [high, low]] {
            let builder = layers[second].0(layers[first].0(Config::builder()));
            let config = builder.build().unwrap();
            let (_, value, from) = layers[high];
            assert_eq!(config.append_batch, value, "layers {first} and {second}");
            assert_eq!(origin(&config, "append_batch"), from);
        }
    }
}

#[test]
fn a_preset_can_be_named_in_every_layer_and_yields_to_explicit_values_of_all() {
    let file = "preset: throughput\nwindow_chunks: 99\n";
    let config = Config::builder().yaml(file, "f").unwrap().build().unwrap();
    assert_eq!((config.preset, config.chunk_bytes), (Preset::Throughput, 1 << 20));
    assert_eq!(config.window_chunks, 99);
    assert_eq!(origin(&config, "preset"), "file f:1");
    assert_eq!(origin(&config, "chunk_bytes"), "preset throughput");
    assert_eq!(origin(&config, "window_chunks"), "file f:2");

    let builder = Config::builder().yaml(file, "f").unwrap();
    let config = env(builder.clone(), &[("POLYRAIL_PRESET", "latency")]).build().unwrap();
    assert_eq!(config.preset, Preset::Latency);
    assert_eq!(config.progress, Progress::Caller);
    assert_eq!(config.window_chunks, 99, "the file's value outlives its preset");

    let config = builder.preset(Preset::Cpu).build().unwrap();
    assert_eq!((config.preset, config.spin), (Preset::Cpu, Spin::Off));
    assert_eq!(origin(&config, "preset"), "set");
    assert_eq!(origin(&config, "spin"), "preset cpu");
}

#[test]
fn within_a_layer_the_later_call_wins() {
    let config = Config::builder()
        .yaml("sockets: 2", "a")
        .and_then(|b| b.yaml("sockets: 3", "b"))
        .unwrap()
        .build()
        .unwrap();
    assert_eq!((config.sockets, origin(&config, "sockets").as_str()), (3, "file b:1"));
    let config = Config::builder().set("sockets", "2").unwrap().set("sockets", "4").unwrap();
    assert_eq!(config.build().unwrap().sockets, 4);
}

#[test]
fn every_setting_reads_its_own_environment_name() {
    for row in Config::default().rows() {
        let name = format!("POLYRAIL_{}", row.name.to_uppercase());
        let config = with_env(&[(&name, &row.default)]);
        assert_eq!(config.origin(row.name), Some(&Origin::Env { name }));
        assert_eq!(config.settings(), Config::default().settings());
        assert_eq!(config.warnings(), [] as [&str; 0]);
    }
}

#[test]
fn every_default_reads_back_through_set_and_file() {
    for row in Config::default().rows() {
        let config = Config::builder().set(row.name, &row.default).unwrap().build().unwrap();
        assert_eq!(config.settings(), Config::default().settings(), "{}", row.name);
        let line = format!("{}: {:?}", row.name, row.default);
        let config = Config::builder().yaml(&line, "f").unwrap().build().unwrap();
        assert_eq!(config.settings(), Config::default().settings(), "{}", row.name);
    }
}

#[test]
fn names_of_other_tools_set_the_same_knob() {
    let config = with_env(&[
        ("NCCL_PROGRESS_APPENDOP_FREQ", "3"),
        ("NCCL_PROXY_APPEND_BATCH_SIZE", "32"),
        ("NCCL_PROXY_DUMP_SIGNAL", "10"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("NCCL_NSOCKS_PERTHREAD", "2"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "NET,PROXY"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"),
        ("UCCL_TCPX_NUM_CHANNELS", "8"),
        ("UCCL_TCPX_WINDOW_SIZE", "64"),
        ("UCCL_TCPX_CHUNK_BYTES", "524288"),
        ("UCCL_TCPX_DEBUG_BINDINGS", "1"),
        ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "eth1:8-21,112-125"),
        ("NCCL_GPUDIRECTTCPX_RX_BINDINGS", "eth1:22-35,126-139;eth2:22-35,126-139"),
        ("RCCL_ENABLE_PROXY_TRACE", "1"),
        ("PATH", "/bin"),
    ]);
    assert_eq!((config.append_freq, config.append_batch, config.dump_signal), (3, 32, 10));
    assert_eq!(config.rails, "^docker,lo");
    assert_eq!((config.proxies, config.sockets), (Proxies { tx: 4, rx: 4 }, 2));
    assert_eq!(config.log_level, LogLevel::Info);
    assert_eq!(config.log_subsystems, "rail,flow,proxy,nccl");
    assert_eq!(config.log_file, "/tmp/nccl.%h.%p");
    assert_eq!((config.channels, config.window_chunks, config.chunk_bytes), (8, 64, 512 << 10));
    assert!(config.verbose_bindings);
    assert_eq!(config.tx_bindings, "eth1:8-21,112-125");
    assert_eq!(config.rx_bindings, "eth1:22-35,126-139;eth2:22-35,126-139");
    assert_eq!(config.trace_file, "polyrail-trace-%h-%p.json");
    assert_eq!(origin(&config, "proxies"), "env NCCL_SOCKET_NTHREADS");
    assert_eq!(config.warnings(), [] as [&str; 0]);
}

#[test]
fn an_own_name_that_differs_from_an_alias_wins_with_a_warning() {
    let config = with_env(&[
        ("POLYRAIL_CHANNELS", "2"),
        ("UCCL_TCPX_NUM_CHANNELS", "8"),
        ("NCCL_DEBUG", "WARN"),
    ]);
    assert_eq!(config.channels, 2);
    assert_eq!(
        config.warnings(),
        [
            "channels: env POLYRAIL_CHANNELS says `2` and hides env UCCL_TCPX_NUM_CHANNELS, which says `8`"
        ]
    );
    let same = with_env(&[("POLYRAIL_CHANNELS", "8"), ("UCCL_TCPX_NUM_CHANNELS", "8")]);
    assert_eq!(same.warnings(), [] as [&str; 0]);
}

#[test]
fn of_two_aliases_the_own_spelling_wins_with_a_warning() {
    let config = with_env(&[("UCCL_TCPX_DEBUG_BINDINGS", "0"), ("POLYRAIL_DEBUG_BINDINGS", "1")]);
    assert!(config.verbose_bindings);
    assert_eq!(origin(&config, "verbose_bindings"), "env POLYRAIL_DEBUG_BINDINGS");
    assert_eq!(config.warnings().len(), 1, "{:?}", config.warnings());
}

#[test]
fn names_without_a_counterpart_warn_only_where_set() {
    for name in [
        "NCCL_BUFFSIZE",
        "NCCL_GPUDIRECTTCPX_TX_IRQ_BINDINGS",
        "NCCL_GPUDIRECTTCPX_RX_IRQ_BINDINGS",
        "NCCL_SHM_LOCALITY",
        "NCCL_SHM_MEMCPY_MODE",
        "NCCL_NET_SHARED_BUFFERS",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_IGNORE_CPU_AFFINITY",
    ] {
        let config = with_env(&[(name, "1")]);
        let [warning] = config.warnings() else { panic!("{name}: {:?}", config.warnings()) };
        let start = format!("{name}=1 is read but has no counterpart yet: ");
        assert!(warning.starts_with(&start), "{warning}");
        assert_eq!(config.settings(), Config::default().settings());
    }
    assert_eq!(with_env(&[]).warnings(), [] as [&str; 0]);
}

#[test]
fn an_automatic_or_empty_alias_changes_nothing_and_says_so() {
    let config = with_env(&[("NCCL_SOCKET_NTHREADS", "-2"), ("NCCL_SOCKET_IFNAME", "")]);
    assert_eq!(config.settings(), Config::default().settings());
    assert_eq!(
        config.warnings(),
        [
            "NCCL_SOCKET_IFNAME is empty and ignored",
            "NCCL_SOCKET_NTHREADS=-2 asks for the automatic choice, so nothing changes",
        ]
    );
    assert_eq!(with_env(&[("NCCL_PROXY_DUMP_SIGNAL", "-1")]).dump_signal, 0);
}

/// Every alias of another tool, with values that the tool reads in another way than a person, and the setting's
/// resulting value. An empty text is the default.
const ODD_VALUES: &[(&str, &str, &str, &str)] = &[
    ("NCCL_SOCKET_IFNAME", ",", "rails", ""),
    ("NCCL_SOCKET_IFNAME", "eth0:5000", "rails", "eth0"),
    ("NCCL_SOCKET_FAMILY", "AF_IPX", "address_family", ""),
    ("NCCL_NSOCKS_PERTHREAD", "64", "sockets", "32"),
    ("NCCL_NSOCKS_PERTHREAD", "0", "sockets", "1"),
    ("NCCL_NSOCKS_PERTHREAD", "many", "sockets", ""),
    ("NCCL_SOCKET_NTHREADS", "0x4", "proxies", "4"),
    ("NCCL_SOCKET_NTHREADS", "010", "proxies", "8"),
    ("NCCL_SOCKET_NTHREADS", "99", "proxies", "16"),
    ("NCCL_SOCKET_NTHREADS", "99999999999999999999", "proxies", ""),
    ("NCCL_PROGRESS_APPENDOP_FREQ", "0", "append_freq", "1"),
    ("NCCL_PROGRESS_APPENDOP_FREQ", "8 passes", "append_freq", "8"),
    ("NCCL_PROXY_APPEND_BATCH_SIZE", "5000", "append_batch", "4096"),
    ("NCCL_PROXY_APPEND_BATCH_SIZE", "-9223372036854775808", "append_batch", "1"),
    ("NCCL_PROXY_DUMP_SIGNAL", "9", "dump_signal", ""),
    ("NCCL_PROXY_DUMP_SIGNAL", "USR1", "dump_signal", ""),
    ("NCCL_DEBUG", "DEBUG", "log_level", ""),
    ("NCCL_DEBUG", "NONE", "log_level", ""),
    ("NCCL_DEBUG", "0", "log_level", ""),
    ("NCCL_DEBUG_SUBSYS", "GRAPH,BOGUS", "log_subsystems", "rail,host"),
    ("NCCL_DEBUG_SUBSYS", "BOGUS", "log_subsystems", ""),
    ("NCCL_DEBUG_FILE", "a\nb", "log_file", ""),
    ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "eth1", "tx_bindings", ""),
    ("NCCL_GPUDIRECTTCPX_RX_BINDINGS", "eth1:9-8", "rx_bindings", ""),
    ("UCCL_TCPX_NUM_CHANNELS", "1000", "channels", "256"),
    ("UCCL_TCPX_WINDOW_SIZE", "4096", "window_chunks", "1024"),
    ("UCCL_TCPX_WINDOW_SIZE", "-1", "window_chunks", "1"),
    ("UCCL_TCPX_CHUNK_BYTES", "512K", "chunk_bytes", ""),
    ("UCCL_TCPX_CHUNK_BYTES", "1", "chunk_bytes", "4KiB"),
    ("UCCL_TCPX_DEBUG_BINDINGS", "2", "verbose_bindings", ""),
    ("RCCL_ENABLE_PROXY_TRACE", "on", "trace_file", ""),
    ("RCCL_ENABLE_PROXY_TRACE", "2", "trace_file", "polyrail-trace-%h-%p.json"),
];

#[test]
fn odd_values_of_other_tools_are_clamped_or_ignored_and_named_in_a_warning() {
    for &(variable, text, setting, wanted) in ODD_VALUES {
        let config = with_env(&[(variable, text)]);
        let row = config.rows().into_iter().find(|row| row.name == setting).unwrap();
        let wanted = if wanted.is_empty() { row.default.as_str() } else { wanted };
        assert_eq!(row.value, wanted, "{variable}={text}");
        let is_exact = text == "2" && setting == "trace_file";
        let shown = text.replace('\n', "\\u000a");
        let start = format!("{variable}={shown} ");
        let is_told = config.warnings().iter().any(|warning| warning.starts_with(&start));
        assert!(is_told || is_exact, "{start}: {:?}", config.warnings());
    }
}

#[test]
fn every_alias_of_another_tool_has_an_odd_value_here() {
    let page = polyrail_config::markdown();
    let also = page.lines().filter_map(|line| line.strip_prefix("- Also read: `"));
    let aliases: Vec<&str> = also.filter_map(|line| line.split('`').next()).collect();
    assert!(aliases.len() > 15, "{aliases:?}");
    for alias in aliases.into_iter().filter(|alias| !alias.starts_with("POLYRAIL_")) {
        assert!(ODD_VALUES.iter().any(|(variable, ..)| *variable == alias), "{alias}");
    }
}

#[test]
fn a_list_of_interfaces_that_serves_a_fleet_leaves_out_those_that_are_not_there() {
    assert_eq!(with_env(&[("NCCL_SOCKET_IFNAME", "eno1,eth0")]).rails, "?eno1,eth0");
    assert_eq!(with_env(&[("POLYRAIL_RAILS", "eno1,eth0")]).rails, "eno1,eth0");
    let family = with_env(&[("NCCL_SOCKET_FAMILY", "AF_INET6")]);
    assert_eq!(family.address_family, polyrail_config::AddressFamily::Ipv6);
    assert_eq!(family.warnings(), [] as [&str; 0]);
}

#[test]
fn a_value_of_another_tool_gives_way_to_a_setting_that_it_conflicts_with() {
    let config = with_env(&[
        ("POLYRAIL_PROGRESS", "caller"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "eth1:1"),
    ]);
    assert_eq!(config.progress, Progress::Caller);
    assert_eq!((config.proxies, config.tx_bindings.as_str()), (Proxies { tx: 0, rx: 0 }, ""));
    let about = |name: &str| config.warnings().iter().any(|warning| warning.starts_with(name));
    assert!(about("NCCL_SOCKET_NTHREADS is ignored: progress"), "{:?}", config.warnings());
    assert!(about("NCCL_GPUDIRECTTCPX_TX_BINDINGS is ignored: "), "{:?}", config.warnings());
}

#[test]
fn service_links_of_kubernetes_are_noted_and_ignored() {
    let config = with_env(&[
        ("POLYRAIL_SERVICE_HOST", "10.96.0.7"),
        ("POLYRAIL_SERVICE_PORT", "9754"),
        ("POLYRAIL_PORT", "tcp://10.96.0.7:9754"),
        ("POLYRAIL_PORT_9754_TCP_ADDR", "10.96.0.7"),
        ("POLYRAIL_EXPORTER_SERVICE_PORT_METRICS", "9754"),
        ("POLYRAIL_LISTEN_PORT", "tcp://10.96.0.8:1"),
    ]);
    assert_eq!(config.settings(), Config::default().settings());
    assert_eq!(config.warnings(), [] as [&str; 0]);
    let [note] = config.notes() else { panic!("{:?}", config.notes()) };
    assert!(note.contains("POLYRAIL_PORT_9754_TCP_ADDR") && note.contains("POLYRAIL_LISTEN_PORT"));
    for (name, value) in [
        ("POLYRAIL_PORT", "9754"),
        ("POLYRAIL_LISTN_PORT", "9754"),
        ("POLYRAIL_LISTEN_PORT", "tcp://polyrail-listen:9754"),
        ("POLYRAIL_VERSION", "1.2"),
    ] {
        let given = [(name.to_owned(), value.to_owned())];
        let error = Config::builder().env_from(given).build().unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        let help = error.help().unwrap();
        let is_near = name.ends_with("_PORT") && value == "9754";
        let is_told =
            help.contains(&format!("unset {name}")) && help.contains("enableServiceLinks");
        assert!(is_near || is_told, "{name}: {help}");
    }
}

#[test]
fn merged_proxies_may_have_two_counts_and_one_list() {
    let config = Config::builder().preset(Preset::Cpu).set("proxies", "3,1").unwrap();
    let config = config.set("rx_bindings", "4-7").unwrap().build().unwrap();
    assert_eq!((config.proxies.merged(), config.rx_bindings.as_str()), (3, "4-7"));
}

#[test]
fn names_are_plain_identifiers_given_once() {
    let all: Vec<_> = names().collect();
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    assert!(all.iter().all(is_plain), "{all:?}");
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
}

#[test]
fn a_proposal_gives_way_to_all_but_the_default() {
    let proposed = || Config::builder().propose("channels", "8", "8 CPUs for each rank").unwrap();
    let config = proposed().build().unwrap();
    assert_eq!(config.channels, 8);
    let origin = config.origin("channels").unwrap();
    assert_eq!(origin.to_string(), "proposal: 8 CPUs for each rank");
    assert!(!origin.is_explicit());
    let from_env = proposed().env_from([("POLYRAIL_CHANNELS".to_owned(), "2".to_owned())]);
    assert_eq!(from_env.build().unwrap().channels, 2);
    let preset = Config::builder().propose("chunk_bytes", "64KiB", "small").unwrap();
    let preset = preset.preset(Preset::Throughput).build().unwrap();
    assert_eq!(preset.chunk_bytes, 1 << 20, "a preset was chosen by somebody");
    assert!(Config::builder().propose("channels", "many", "").is_err());
}
