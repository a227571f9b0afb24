//! The table of all settings: the one place where a setting is declared.

use std::ops::RangeInclusive;

use crate::alias::{self, Alias, ENV_PREFIX};
use crate::choices::{
    AddressFamily, Auth, LogFormat, LogLevel, NcclDevices, PathChoice, Payload, Preset, Progress,
    ProxyLayout,
};
use crate::invalid::Invalid;
use crate::kind::Kind;
use crate::number::{GIB, KIB, MIB};
use crate::proxies::Proxies;
use crate::spin::Spin;
use crate::value::{Field, Value};

/// Port range below the kernel's ephemeral ports and those of Kubernetes' services, and not assigned by IANA.
const LISTEN_PORTS: RangeInclusive<u16> = 29200..=29999;

impl Settings {
    /// Returns whether each rail takes a free port of the engine's choice, as `listen_port` is 0.
    pub fn chooses_ports(&self) -> bool {
        self.listen_port == (0..=0)
    }

    /// Returns the ports of which each rail takes a free one. If `listen_port` is given, its rails try the first one
    /// first.
    pub fn listen_range(&self) -> RangeInclusive<u16> {
        match self.chooses_ports() {
            true => LISTEN_PORTS,
            false => self.listen_port.clone(),
        }
    }

    /// Returns whether `rails` names interfaces, addresses or a plugin, instead of leaving the choice to the engine
    /// (`auto`, or `^` with interfaces to leave out).
    pub fn names_rails(&self) -> bool {
        let rails = self.rails.trim();
        rails != "auto" && !rails.starts_with('^')
    }
}

/// One setting, apart from its field in [`Settings`].
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    /// Lines of the help, as written in the table.
    help_lines: &'static [&'static str],
    pub(crate) kind: Kind,
    pub(crate) aliases: &'static [Alias],
    get: fn(&Settings) -> Value,
    put: fn(&mut Settings, Value) -> bool,
}

impl Spec {
    /// Returns the help as one line of text.
    pub(crate) fn help(&self) -> String {
        self.help_lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the name of the setting's own environment variable.
    pub(crate) fn env_name(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_uppercase())
    }

    pub(crate) fn value(&self, settings: &Settings) -> Value {
        (self.get)(settings)
    }

    /// Stores a value that [`Kind::parse`] has accepted.
    pub(crate) fn store(&self, settings: &mut Settings, value: Value) -> Result<(), Invalid> {
        // A test shows that every value that a kind accepts fits its field.
        if (self.put)(settings, value) { Ok(()) } else { Err(Invalid::because("is out of range")) }
    }
}

/// Returns the index of a setting in [`TABLE`].
pub(crate) fn index_of(name: &str) -> Option<usize> {
    TABLE.iter().position(|spec| spec.name == name)
}

/// Returns whether a variable is read at all, as an alias or only to report that it has no effect.
pub(crate) fn is_known(env: &str) -> bool {
    let is_alias = || TABLE.iter().any(|spec| spec.aliases.iter().any(|alias| alias.env == env));
    alias::WITHOUT_COUNTERPART.iter().any(|(known, _)| *known == env) || is_alias()
}

/// Returns the names of all settings, in the order of the documentation.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|spec| spec.name)
}

/// Returns the allowed words of a setting that has only certain words as values; empty for other settings and unknown
/// names.
pub fn choices(name: &str) -> &'static [&'static str] {
    match index_of(name).map(|index| TABLE[index].kind) {
        Some(Kind::Choice(names)) => names,
        Some(Kind::Flag) => &["on", "off"],
        _ => &[],
    }
}

macro_rules! settings {
    ($(
        $group:literal {$(
            $(#[doc = $doc:literal])+
            $name:ident: $ty:ty = $default:expr, $kind:expr $(, [$($alias:expr),+])?;
        )+}
    )+) => {
        /// The value of every setting, for the engine to read.
        ///
        /// Only a [`crate::Config`] vouches that the values are in range and agree with each other.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Settings {$($(
            $(#[doc = $doc])+
            pub $name: $ty,
        )+)+}

        impl Default for Settings {
            fn default() -> Self {
                Self {$($($name: <$ty as Field>::new($default),)+)+}
            }
        }

        /// Every setting, in the order of the documentation.
        pub(crate) static TABLE: &[Spec] = &[$($(
            Spec {
                name: stringify!($name),
                group: $group,
                help_lines: &[$($doc),+],
                kind: $kind,
                aliases: &[$($($alias),+)?],
                get: |settings| Field::value(&settings.$name),
                put: |settings, value| match <$ty as Field>::from_value(value) {
                    Some(value) => {
                        settings.$name = value;
                        true
                    }
                    None => false,
                },
            },
        )+)+];
    };
}

settings! {
"Purpose" {
    /// A named set of values for one purpose. Any value in the file, in the environment or on the
    /// command line overrides the preset's.
    preset: Preset = Preset::Balanced, Kind::Choice(Preset::NAMES);
}

"Rails, channels and chunks" {
    /// Network interfaces to use as rails, separated by commas: `auto` (those that lead to other hosts: NICs
    /// and what is made on them, in a pod its own interface; tunnels only if nothing else does), names or prefixes
    /// (`eth` takes eth0, eth1, ...), `=eth1` for exactly that name, a leading `^` for what `auto` takes of those that
    /// are not in the list, or IP addresses.
    /// A leading `?` leaves out those of the list that are not there or down: `?eno1,eth0`.
    /// `plugin:NAME`: the devices of a net plugin of NCCL, named as in `NCCL_NET_PLUGIN`, which then carry
    /// payload; `plugin:NAME@eth1+2` takes two of its devices, by name or number.
    rails: String = "auto", Kind::Interfaces, [alias::via("NCCL_SOCKET_IFNAME", alias::socket_ifname, "names of a list that are not there are left out; `:PORT` is ignored")];

    /// Which address of an interface its rail takes: `auto` (IPv4, or IPv6 where there is no other), `ipv4` or `ipv6`
    /// alone. Addresses that `rails` names are taken whatever their family.
    address_family: AddressFamily = AddressFamily::Auto, Kind::Choice(AddressFamily::NAMES),
        [alias::via("NCCL_SOCKET_FAMILY", alias::socket_family, "AF_INET is ipv4, AF_INET6 is ipv6")];

    /// Channels to each peer, spread over the rails. A channel is an ordered lane with a window of
    /// its own.
    channels: u32 = 0, Kind::count("channels", 1, 256).or_zero("auto: 1 to 4 per rail, as CPUs allow, and 2 at least"),
        [alias::same("UCCL_TCPX_NUM_CHANNELS")];

    /// TCP connections (flows) of each channel.
    sockets: u32 = 1, Kind::count("flows", 1, 32),
        [alias::via("NCCL_NSOCKS_PERTHREAD", alias::sockets, "per channel, not per thread; -2 keeps Polyrail's value")];

    /// Chunks that a channel may have sent and not yet acknowledged.
    window_chunks: u32 = 16, Kind::count("chunks", 1, 1024), [alias::same("UCCL_TCPX_WINDOW_SIZE")];

    /// Size of the pieces that the engine cuts a transfer into. Each piece travels on one flow, and
    /// is the unit that the engine sends again when a rail fails.
    chunk_bytes: u64 = 512 * KIB, Kind::bytes(4 * KIB, 64 * MIB),
        [alias::same("UCCL_TCPX_CHUNK_BYTES")];
}

"GPU memory" {
    /// The way between two memories of one host; to another host all bytes take the rails. `auto`: the CPUs copy
    /// writes, reads and messages between host memories once, from memory to memory, inside one process and between
    /// processes where the kernel allows it (the same user, PID and network namespace; neither `ptrace_scope`
    /// nor a seccomp filter against it), for transfers that are faster so. Where the kernel does not, what has
    /// 64 KiB and more goes through memory that both processes have open, if they can. A GPU copies from memory to
    /// memory (NVLink, PCIe) where both ends can. Short writes and reads between a GPU here and another process's
    /// host memory are copied by way of pinned memory. All other GPU memory goes as with `shared`, all other host
    /// memory over the rails. `device`: as `auto` without copies by the CPUs from memory to memory, so what
    /// this end starts between host memories takes the rails. The engine then reads and writes no other process's
    /// memory, and does not look whether memory that is registered can be read. `shared`: through memory that both
    /// processes have open; where that is not possible, over the rails. `tcp`: over the rails.
    path: PathChoice = PathChoice::Auto, Kind::Choice(PathChoice::NAMES);

    /// Replaces `chunk_bytes` for GPU memory that travels over the rails: a GPU needs larger copies
    /// than a socket to keep its link busy.
    gpu_chunk_bytes: u64 = 2 * MIB, Kind::bytes(4 * KIB, 64 * MIB);

    /// Pinned host memory that stages GPU memory, for each flow and direction. A flow allocates it
    /// when it first needs it. It holds `staging_bytes` / `gpu_chunk_bytes` chunks: those on the
    /// wire and those that the GPU is copying.
    staging_bytes: u64 = 8 * MIB, Kind::bytes(64 * KIB, GIB);

    /// Pinned host memory of all flows together, one half for sending and one for receiving. When
    /// it runs short, new flows get smaller staging rings, and finally none. Flows to the same peer
    /// that have a ring then do the work. An eighth is kept for peers without a ring, one for each. If
    /// that is used up, transfers of GPU memory wait until others give memory back: idle flows do at once.
    staging_limit_bytes: u64 = 8 * GIB, Kind::bytes(MIB, 1024 * GIB);
}

"Progress" {
    /// Who moves the data: progress threads of the engine (`proxy`) or the thread that posts and
    /// waits (`caller`).
    progress: Progress = Progress::Proxy, Kind::Choice(Progress::NAMES);

    /// Whether sending and receiving have proxies of their own (`split`) or each proxy does both
    /// (`merged`). Merged proxies take their CPUs from `tx_bindings` or `rx_bindings`, whichever is given, and the
    /// larger one of two numbers of `proxies`.
    proxy_layout: ProxyLayout = ProxyLayout::Split, Kind::Choice(ProxyLayout::NAMES);

    /// Number of proxies: one number for each direction, or those that send and those that receive, like `2,3`.
    proxies: Proxies = Proxies { tx: 0, rx: 0 }, Kind::Proxies,
        [alias::via("NCCL_SOCKET_NTHREADS", alias::threads, "per engine, not per connection; 0 is auto; -2 keeps Polyrail's value")];

    /// CPUs that the sending proxies are pinned to, by interface, like `eth1:8-21,112-125;eth2:22-35`.
    /// An entry without an interface is for all that have no entry of their own: `8-21`, or `eth1:8-21;22-35`.
    /// `polyrail host plan bindings` derives them from the topology. The engine never changes
    /// the affinity of the program's own threads.
    tx_bindings: String = "", Kind::Bindings,
        [alias::same("NCCL_GPUDIRECTTCPX_TX_BINDINGS")];

    /// CPUs that the receiving proxies are pinned to, as `tx_bindings`.
    rx_bindings: String = "", Kind::Bindings,
        [alias::same("NCCL_GPUDIRECTTCPX_RX_BINDINGS")];

    /// Passes a proxy makes over its active operations before it fetches new ones from the ops
    /// pool. An idle proxy fetches at once.
    append_freq: u32 = 8, Kind::count("passes", 1, 4096),
        [alias::via("NCCL_PROGRESS_APPENDOP_FREQ", alias::count, "")];

    /// Operations that a proxy takes from the ops pool per fetch.
    append_batch: u32 = 16, Kind::count("operations", 1, 4096),
        [alias::via("NCCL_PROXY_APPEND_BATCH_SIZE", alias::count, "NCCL counts groups of operations")];

    /// Operations that may be outstanding in the engine. When the pool is full, posting says so and
    /// loses nothing.
    ops_pool: u32 = 4096, Kind::count("operations", 64, 1 << 20);

    /// The calling thread itself sends writes up to this size when the flow is idle, which saves
    /// the hand-over to a proxy. 0 hands every write over.
    inline_bytes: u64 = 16 * KIB, Kind::bytes(0, MIB);

    /// The time that proxies and waiting calls poll before they sleep. `auto`: they decide by themselves
    /// (they poll on machines with 8 CPUs or more, while messages are small and come in quick succession),
    /// and a waiting call polls for 20 us on every machine. `off`: they sleep at once. A time like `2ms`:
    /// at least that long, and longer where `auto` polls longer. Longer saves the wake-up but burns CPU.
    /// A caller that moves the data sleeps at once for a while where other programs take its CPU away again
    /// and again.
    spin: Spin = Spin::Auto, Kind::Spin;
}

"Sockets" {
    /// Congestion control of the flows: `auto` (cubic where both ends are on one host, otherwise
    /// the system's), `system`, or a name the kernel knows.
    congestion: String = "auto", Kind::Congestion;

    /// Send buffer and receive buffer of each flow in the kernel, each of this size. With less than a
    /// segment of the loopback interface (64 KiB), each one waits for an acknowledgement that the other end
    /// delays.
    socket_buffer_bytes: u64 = 0, Kind::bytes(64 * KIB, GIB).or_zero("kernel autotuning");

    /// TCP port to listen on. With 0 each rail takes a free one of a range that a firewall can let through. Of a range
    /// like `5000-5063` each rail takes the first that is free, so several engines of a machine share it.
    listen_port: RangeInclusive<u16> = 0..=0, Kind::Ports;
}

"Deadlines" {
    /// The longest that one TCP connection may take to come up, and one that has come to
    /// identify itself: round trips, and time for the threads of both ends to run. For that it has 100 ms at
    /// least.
    connect_timeout_ms: u64 = 3000, Kind::millis(1, 600_000);

    /// How long a rail may make no progress while others do, before other rails send its chunks
    /// again.
    rail_stall_ms: u64 = 400, Kind::millis(20, 600_000);

    /// Longest pause between attempts to bring a failed rail back. The first pause is a tenth of it, and each further
    /// one is twice as long, up to this, also while connections come up and soon fail.
    reconnect_max_ms: u64 = 1000, Kind::millis(1, 600_000);

    /// How long transfers with a peer may make no progress before they fail, and how long the peer
    /// may be unreachable on every rail. A mere sign of life is no progress. A peer whose process was
    /// killed is given up sooner, as its host refuses connections.
    peer_timeout_ms: u64 = 10_000, Kind::millis(100, 3_600_000);
}

"Rendezvous" {
    /// Where engines find each other, for programs that join a group and for `polyrail peers`: a
    /// folder (`dir:///shared/polyrail`), etcd (`etcd://node1:2379/polyrail?lease=10s`), the addresses
    /// of a name (`dns://workers:29600`), or the ranks of a job (`slurm://`, `mpi://`, `torchrun://`).
    /// docs/rendezvous.md explains each.
    rendezvous: String = "", Kind::Rendezvous;
}

"Security" {
    /// Whether who connects has to prove that it may: by the metadata of the engine it connects to,
    /// by a certificate, by a secret of `secret_file`, or as a process of the same user on the same
    /// host. With `none` anybody may who reaches the port; then both ends must be set to it, and the
    /// log says so.
    auth: Auth = Auth::On, Kind::Choice(Auth::NAMES);

    /// File with secrets for connecting by address alone, one on each line, that only its owner may
    /// read (mode 0600). The first is for connecting, all are accepted. `polyrail secret new` makes
    /// one.
    secret_file: String = "", Kind::FileName("none");

    /// File with this engine's certificate and those of the CAs between it and `trust_file`, in PEM,
    /// its own first. With `certificate_key_file`, `trust_file` and `allowed_names` it lets engines
    /// connect by address alone that have certificates, too. It is tried before a secret. A renewed
    /// file is read again without a restart.
    certificate_file: String = "", Kind::FileName("none");

    /// File with the private key of the certificate, in PEM (PKCS#8), that only its owner may read
    /// (mode 0600).
    certificate_key_file: String = "", Kind::FileName("none");

    /// File with the certificates of the CAs, in PEM, that vouch for the certificates of all engines,
    /// also of this one. Each may vouch for any name.
    trust_file: String = "", Kind::FileName("none");

    /// Names of engines that may connect by certificate, and that this engine connects to. One of the
    /// certificate's names has to be among them. There is no default: whoever has a certificate of
    /// these CAs is let in only if this is `*`.
    allowed_names: String = "", Kind::PeerNames;

    /// How payload is protected on its way over the rails: not at all, by a CRC-32C of each chunk
    /// (finds accidents), or encrypted and authenticated. `aead` at either end holds for both
    /// directions; a CRC is added by the end that sends. Heads, acknowledgements and messages between
    /// engines are always encrypted and authenticated. Memory that both ends on one host have open is
    /// protected by the host.
    payload: Payload = Payload::None, Kind::Choice(Payload::NAMES);
}

"Limits" {
    /// Notifications that may wait in the inbox, with 1 KiB for each on average (1 MiB for all at
    /// least). Peers share it in equal parts, and the engine holds back a peer whose part is full.
    /// The inbox keeps as many again from peers that are gone.
    notification_queue: u32 = 65_536, Kind::count("notifications", 1, 1 << 24);

    /// The most connections that an engine accepts, but no more than three quarters of the
    /// process's file descriptors. Peers that have connections share seven eighths; the rest is for peers
    /// without any, one for each. A 32nd of it, and 4 at least, may be in the handshake at once.
    flow_limit: u32 = 4096, Kind::count("flows", 16, 65_536);
}

"NCCL plugin" {
    /// What NCCL sees as a network device: all rails together (`one`), the rails of each NUMA node
    /// (`node`), or each rail (`nic`).
    nccl_devices: NcclDevices = NcclDevices::One, Kind::Choice(NcclDevices::NAMES);

    /// NCCL's own threads send and receive messages up to this size, on separate connections, so
    /// that no message waits for another thread. Ranks that share a process don't use this way, nor
    /// do engines with a `listen_port`.
    nccl_express_bytes: u64 = 16 * KIB, Kind::bytes(1, 32 * KIB).or_zero("off");
}

"Seeing inside" {
    /// Where the process serves metrics for Prometheus, as HTTP at `/metrics`: on a TCP port, on a
    /// Unix socket, or on a socket of its own in a folder, for `polyrail exporter`. All engines of a
    /// process with the same value share one server. With each value but `off`, an abstract Unix socket, which has no
    /// file, also serves them to `polyrail top` of the same user and of root. docs/metrics.md explains the metrics.
    metrics_listen: String = "", Kind::MetricsListen;

    /// Signal on which the engine writes a dump of its state, by number or name, like `USR1`: to standard error, or behind
    /// the log if `log_file` is given and `log_format` is text.
    dump_signal: u32 = 0, Kind::Signal,
        [alias::via("NCCL_PROXY_DUMP_SIGNAL", alias::dump_signal, "-1 is off")];

    /// File for the trace of every chunk, as Chrome/Perfetto JSON. It holds 1048576 events; later ones are counted, not kept.
    trace_file: String = "", Kind::FileName("off"),
        [alias::via("RCCL_ENABLE_PROXY_TRACE", alias::proxy_trace, "1 writes polyrail-trace-%h-%p.json")];

    /// The least severe log records that are written.
    log_level: LogLevel = LogLevel::Warn, Kind::Choice(LogLevel::NAMES),
        [alias::via("NCCL_DEBUG", alias::debug, "VERSION is error, ABORT is info, the others keep their names")];

    /// Parts of Polyrail that write log records; `^` in front turns the list around.
    log_subsystems: String = "all", Kind::Subsystems,
        [alias::via("NCCL_DEBUG_SUBSYS", alias::debug_subsys, "NCCL's names become Polyrail's; unknown ones are left out")];

    /// File the log is written to, behind what it holds already. docs/logs.md explains the log.
    log_file: String = "", Kind::FileName("standard error"), [alias::via("NCCL_DEBUG_FILE", alias::debug_file, "a file that can't be opened leaves the log on standard error")];

    /// How log records are written: lines for people (`text`), or one JSON document per line (`json`).
    log_format: LogFormat = LogFormat::Text, Kind::Choice(LogFormat::NAMES);

    /// Log the expected and the actual CPU affinity of every thread.
    verbose_bindings: bool = false, Kind::Flag,
        [alias::same("POLYRAIL_DEBUG_BINDINGS"), alias::same("UCCL_TCPX_DEBUG_BINDINGS")];
}
}
