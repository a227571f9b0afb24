//! The configuration as the data path needs it: converted once, when the engine is built.

use std::sync::{Arc, Once};
use std::time::Duration;

use polyrail_config::{Config, Origin, PathChoice, Payload, Progress, ProxyLayout};
use polyrail_proto::hello::{Capabilities, Card, EngineFeatures};
use polyrail_proto::liveness::ReconnectSettings;
use polyrail_proto::{RequestLimits, defaults};
use polyrail_sys::interfaces::CongestionControls;
use polyrail_sys::process::descriptor_limit;
use polyrail_sys::tcp::{FlowOptions, may_use};

use crate::base::error::{EngineError, origin_of};
use crate::engine::bindings::usable_cpus;
use crate::memory::region_core::RegionCore;

/// The minimum time for a hello, however short `connect_timeout_ms` is: round trips, and CPU time at both ends.
const SHORTEST_HELLO: Duration = Duration::from_millis(100);

pub(crate) struct EngineSettings {
    /// CPUs that this process may use.
    pub(crate) cpus: usize,
    pub(crate) chunk_bytes: u64,
    /// Used if the number of channels is not set.
    pub(crate) channels_per_rail: u32,
    pub(crate) gpu_chunk_bytes: u64,
    pub(crate) staging_bytes: u64,
    pub(crate) append_freq: u32,
    pub(crate) append_batch: u32,
    pub(crate) payload: Payload,
    pub(crate) caller_driven: bool,
    /// Whether connections within this host may go through shared memory.
    pub(crate) shared_stream: bool,
    pub(crate) merged: bool,
    pub(crate) rail_stall: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Maximum time from accepting a connection to knowing its identity.
    pub(crate) hello_timeout: Duration,
    /// Maximum number of connections from peers in the handshake at once.
    pub(crate) most_handshakes: u32,
    pub(crate) reconnect: ReconnectSettings,
    congestion: Congestion,
    flow: FlowOptions,
    /// Whether CPUs may copy between host memories.
    pub(crate) single_copy: bool,
    /// Whether payload may lie in memory that a peer has open.
    pub(crate) shares: bool,
}

enum Congestion {
    /// The given control where both ends are on one host: there `bbr`, which paces by its own estimate of the path,
    /// costs a factor of two to three. Elsewhere the system's.
    Auto {
        here: Option<&'static str>,
    },
    System,
    Named(String),
}

impl EngineSettings {
    pub(crate) fn new(config: &Config, rails: usize) -> Result<Self, EngineError> {
        let ms = Duration::from_millis;
        let caller_driven = config.progress == Progress::Caller;
        Ok(Self {
            cpus: usable_cpus()?.len(),
            chunk_bytes: config.chunk_bytes,
            channels_per_rail: defaults::channels_per_rail(rails, busy_cpus(config.payload)?),
            gpu_chunk_bytes: config.gpu_chunk_bytes,
            staging_bytes: config.staging_bytes,
            append_freq: config.append_freq,
            append_batch: config.append_batch,
            payload: config.payload,
            caller_driven,
            merged: caller_driven || config.proxy_layout == ProxyLayout::Merged,
            rail_stall: ms(config.rail_stall_ms),
            peer_timeout: ms(config.peer_timeout_ms),
            connect_timeout: ms(config.connect_timeout_ms),
            hello_timeout: ms(config.connect_timeout_ms).max(SHORTEST_HELLO),
            most_handshakes: defaults::handshakes(config.flow_limit, descriptor_limit()),
            reconnect: ReconnectSettings {
                min: ms((config.reconnect_max_ms / 10).max(1)),
                max: ms(config.reconnect_max_ms),
                timeout: ms(config.connect_timeout_ms),
            },
            congestion: Congestion::parse(config)?,
            flow: FlowOptions {
                congestion: None,
                // The configuration bounds both to 1 GiB.
                send_buffer_bytes: config.socket_buffer_bytes as usize,
                receive_buffer_bytes: config.socket_buffer_bytes as usize,
                user_timeout: Some(ms(config.peer_timeout_ms)),
            },
            // Threads that poll for their caller gain most. Proxies sleep between messages, which uses the socket
            // anyway.
            shared_stream: caller_driven && config.path != PathChoice::Tcp,
            single_copy: config.path == PathChoice::Auto,
            shares: config.path != PathChoice::Tcp,
        })
    }

    /// Size of a chunk of memory in these regions.
    pub(crate) fn chunk_bytes_of(&self, regions: &[Arc<RegionCore>]) -> u64 {
        match regions.iter().any(|region| region.memory.device().is_some()) {
            true => self.gpu_chunk_bytes,
            false => self.chunk_bytes,
        }
    }

    /// Size of the largest chunk that is cut here.
    pub(crate) fn largest_chunk(&self) -> u64 {
        self.chunk_bytes.max(self.gpu_chunk_bytes)
    }

    /// Capabilities of this engine. A flow uses those that both ends have.
    pub(crate) fn capabilities(&self, hosts: bool) -> Capabilities {
        Capabilities::of_engine(EngineFeatures {
            // Both directions of a connection have one owner only where one thread drives both.
            duplex: self.caller_driven,
            stream: self.shared_stream,
            sealed: self.payload == Payload::Aead,
            carriers: hosts,
        })
    }

    /// Returns an error if rails of a plugin conflict with the other settings.
    pub(crate) fn check_hosted(&self) -> Result<(), EngineError> {
        if self.payload == Payload::Aead {
            // A plugin's payload is not in records.
            let (setting, value, allowed) = ("payload", "aead", "none or crc32c");
            return Err(EngineError::NotHosted { setting, value, allowed });
        }
        if self.caller_driven {
            let (setting, value, allowed) = ("progress", "caller", "proxy");
            return Err(EngineError::NotHosted { setting, value, allowed });
        }
        Ok(())
    }

    /// Protection of payload for the peer with this card: the stronger wish of the two.
    pub(crate) fn payload_for(&self, card: &Card) -> Payload {
        let wants_sealed = card.capabilities.contains(Capabilities::SEALED_PAYLOAD);
        if wants_sealed { Payload::Aead } else { self.payload }
    }

    /// Socket options of a flow to a peer on this host, or elsewhere.
    pub(crate) fn flow_options(&self, same_host: bool) -> FlowOptions {
        let congestion = match &self.congestion {
            Congestion::Auto { here } if same_host => here.map(str::to_owned),
            Congestion::Auto { .. } | Congestion::System => None,
            Congestion::Named(name) => Some(name.clone()),
        };
        FlowOptions { congestion, ..self.flow.clone() }
    }

    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits { chunk_bytes: self.chunk_bytes, gpu_chunk_bytes: self.gpu_chunk_bytes }
    }
}

/// Number of CPUs that one direction may keep busy.
pub(crate) fn busy_cpus(payload: Payload) -> Result<usize, EngineError> {
    Ok(defaults::busy_cpus(usable_cpus()?.len(), payload != Payload::None))
}

impl Congestion {
    /// Controls that don't pace, the better one first.
    const UNPACED: [&str; 2] = ["cubic", "reno"];

    fn parse(config: &Config) -> Result<Self, EngineError> {
        match config.congestion.as_str() {
            "auto" => Ok(Self::Auto { here: Self::unpaced(&Self::known("").usable) }),
            "system" => Ok(Self::System),
            name => Self::named(name, &Self::known(name), origin_of(config, "congestion")),
        }
    }

    /// The kernel's controls. Where a container hides its list, those of `name` and the unpaced ones that a socket
    /// accepts.
    fn known(name: &str) -> CongestionControls {
        let is_list = |all: &CongestionControls| !(all.usable.is_empty() && all.denied.is_empty());
        CongestionControls::read().ok().filter(is_list).unwrap_or_else(|| {
            let tried = [name].into_iter().chain(Self::UNPACED);
            let usable = tried.filter(|name| !name.is_empty() && may_use(name));
            CongestionControls { usable: usable.map(str::to_owned).collect(), denied: Vec::new() }
        })
    }

    fn named(
        name: &str,
        controls: &CongestionControls,
        origin: Box<Origin>,
    ) -> Result<Self, EngineError> {
        if controls.usable.iter().any(|usable| usable == name) {
            return Ok(Self::Named(name.to_owned()));
        }
        let (got, known) = (name.to_owned(), controls.usable.join(", "));
        Err(match controls.denies(name) {
            true => {
                EngineError::CongestionDenied { got, origin, known, line: controls.allow(name) }
            }
            false => EngineError::Congestion { got, origin, known },
        })
    }

    /// The best control that this user may use for flows on this host.
    fn unpaced(known: &[String]) -> Option<&'static str> {
        static TOLD: Once = Once::new();
        let best = Self::UNPACED.into_iter().find(|name| known.iter().any(|known| known == name));
        if best.is_none() {
            TOLD.call_once(|| {
                tracing::warn!(target: "polyrail::config",
                    "flows on this host use the system's congestion control, which may pace: the kernel \
                     has neither cubic nor reno, or this user may not use them \
                     (net.ipv4.tcp_allowed_congestion_control); `polyrail doctor` says which");
            });
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Explain;

    #[test]
    fn flows_on_one_host_use_the_best_control_that_does_not_pace_and_is_allowed() {
        let known =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(Congestion::unpaced(&known(&["reno", "bbr", "cubic"])), Some("cubic"));
        // As an ordinary user finds it where only these are allowed.
        assert_eq!(Congestion::unpaced(&known(&["reno", "bbr"])), Some("reno"));
        assert_eq!(Congestion::unpaced(&known(&["bbr"])), None);
    }

    #[test]
    fn a_control_that_is_there_and_denied_is_no_wrong_value() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let controls =
            CongestionControls { usable: names(&["reno", "bbr"]), denied: names(&["cubic"]) };
        let refused = |name| {
            let error = Congestion::named(name, &controls, Box::new(Origin::Default));
            let error = error.err().unwrap();
            (error.exit_code(), error.to_string(), error.help())
        };
        let (code, message, help) = refused("cubic");
        assert!(code == 3 && message.contains("this user may not use it"), "{message}");
        assert!(message.ends_with("allowed: auto, system, reno, bbr"), "{message}");
        assert!(help.unwrap().contains("_congestion_control=\"reno bbr cubic\""));
        let (code, message, _) = refused("nope");
        assert!(code == 2 && message.contains("the kernel does not have it"), "{message}");
    }
}
