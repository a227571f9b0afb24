//! Suspects: changes to try, to find out whether they remove the cause of a slow size.

use polyrail::Config;
use polyrail_report::show_size;

use crate::cmd::bench::options::{BINDINGS, Change, TRIED_SETTINGS};

/// State that determines the suspects.
pub(crate) struct Scene<'a> {
    pub(crate) config: &'a Config,
    /// Names of the rails.
    pub(crate) rails: Vec<String>,
    /// Channels in use.
    pub(crate) channels: u64,
    /// Congestion control in use, if known.
    pub(crate) congestion: Option<String>,
    /// Congestion controls that this user may choose.
    pub(crate) congestions: Vec<String>,
    pub(crate) size: u64,
    pub(crate) depth: u64,
    pub(crate) ping_pong: bool,
    /// Whether an end has its memory on a device.
    pub(crate) on_device: bool,
    /// Whether an end protects payload.
    pub(crate) protected: bool,
}

/// Maximum number of other congestion controls to try.
const CONGESTIONS: usize = 2;
/// Maximum number of rails. With more, each carries so little that leaving it out shows nothing.
const RAILS_MAX: usize = 8;
/// Maximum number of bytes outstanding in a trial.
const OUTSTANDING_BYTES_MAX: u64 = 1 << 30;
const CHANNELS_MAX: u64 = 256;
const WINDOW_MAX: u64 = 1024;
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
const STEP: u64 = 4;
/// Size of socket buffers to try: more than a flow of any usual network needs.
const BUFFER_BYTES: u64 = 4 << 20;
/// Maximum size of the bounce buffer of each flow and direction, in bytes of pinned memory.
const STAGING_MAX: u64 = 256 << 20;

/// Setting or property that `--why` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knob {
    /// Number of outstanding transfers.
    Depth,
    /// CPUs that threads are bound to.
    Bindings,
    /// Number of progress threads.
    Proxies,
    /// Protection of payload. Turning it off shows its cost: a diagnosis, not a recommendation.
    Payload,
    /// Changed settings that no other knob has.
    Others,
    Congestion,
    Channels,
    Window,
    Chunk,
    /// Buffers of sockets.
    Buffers,
    Staging,
    Layout,
    /// Each rail, left out.
    Rails,
}

impl Knob {
    const ALL: [Self; 13] = [
        Self::Depth,
        Self::Bindings,
        Self::Proxies,
        Self::Payload,
        Self::Others,
        Self::Congestion,
        Self::Channels,
        Self::Window,
        Self::Chunk,
        Self::Buffers,
        Self::Staging,
        Self::Layout,
        Self::Rails,
    ];

    /// Returns the settings of the knob that go back to their defaults if they were changed.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Depth | Self::Payload | Self::Rails | Self::Others => &[],
            Self::Bindings => &BINDINGS,
            Self::Proxies => &["proxies"],
            Self::Congestion => &["congestion"],
            Self::Channels => &["channels"],
            Self::Window => &["window_chunks"],
            Self::Chunk => &["chunk_bytes"],
            Self::Buffers => &["socket_buffer_bytes"],
            Self::Staging => &["staging_bytes"],
            Self::Layout => &["proxy_layout"],
        }
    }

    /// Returns the changes to try in this scene: a changed setting goes back to its default, a default goes up and
    /// down.
    pub(crate) fn changes(self, scene: &Scene<'_>) -> Vec<Change> {
        let back = scene.changed(self);
        match self {
            Self::Depth => scene.deeper().into_iter().collect(),
            // Settings that belong together change together: half of them would show little.
            Self::Bindings | Self::Proxies if !back.is_empty() => vec![Change::Settings(back)],
            Self::Bindings | Self::Proxies => Vec::new(),
            Self::Payload if scene.protected => vec![Change::Unprotected],
            Self::Payload => Vec::new(),
            Self::Congestion => scene.congestions(),
            Self::Rails => scene.fewer_rails(),
            _ if !back.is_empty() => {
                back.into_iter().map(|pair| Change::Settings(vec![pair])).collect()
            }
            Self::Others => Vec::new(),
            Self::Channels => {
                let more = Some(scene.channels * 2).filter(|more| *more <= CHANNELS_MAX);
                more.map(|more| setting("channels", more.to_string())).into_iter().collect()
            }
            Self::Window => {
                let window = u64::from(scene.config.window_chunks) * STEP;
                let is_possible = !scene.ping_pong && window <= WINDOW_MAX;
                is_possible
                    .then(|| setting("window_chunks", window.to_string()))
                    .into_iter()
                    .collect()
            }
            Self::Chunk => scene.chunks(),
            // The kernel's limits may be too small for the sizes that it chooses.
            Self::Buffers => vec![setting("socket_buffer_bytes", show_size(BUFFER_BYTES))],
            Self::Staging => {
                let staging = scene.config.staging_bytes * STEP;
                let is_possible = scene.on_device && staging <= STAGING_MAX;
                let value = || setting("staging_bytes", show_size(staging));
                is_possible.then(value).into_iter().collect()
            }
            Self::Layout => vec![setting("proxy_layout", "merged".into())],
        }
    }
}

/// Returns the changes to try.
pub(crate) fn suspects(scene: &Scene<'_>) -> Vec<Change> {
    Knob::ALL.iter().flat_map(|knob| knob.changes(scene)).collect()
}

impl Scene<'_> {
    /// Returns the changed settings of a knob, with their defaults.
    fn changed(&self, knob: Knob) -> Vec<(String, String)> {
        let is_of = |knob: Knob, name: &str| knob.settings().contains(&name);
        let is_meant = |name: &str| match knob {
            Knob::Others => !Knob::ALL.iter().any(|other| is_of(*other, name)),
            knob => is_of(knob, name),
        };
        let rows = self.config.rows();
        let rows = rows.iter().filter(|row| TRIED_SETTINGS.contains(&row.name) && row.is_changed());
        let rows = rows.filter(|row| is_meant(row.name));
        rows.map(|row| (row.name.to_owned(), row.default.clone())).collect()
    }

    fn deeper(&self) -> Option<Change> {
        let deeper = self.depth.saturating_mul(STEP);
        let is_possible = deeper.saturating_mul(self.size) <= OUTSTANDING_BYTES_MAX;
        (!self.ping_pong && is_possible).then_some(Change::Depth(deeper))
    }

    /// Returns other congestion controls than the one in use, no matter who chose that one.
    fn congestions(&self) -> Vec<Change> {
        let others = self.congestions.iter().filter(|name| self.congestion.as_ref() != Some(*name));
        others.take(CONGESTIONS).map(|name| setting("congestion", name.clone())).collect()
    }

    fn chunks(&self) -> Vec<Change> {
        let chunk = self.config.chunk_bytes;
        let others = [chunk * STEP, chunk / STEP].into_iter().filter(|other| {
            // A transfer of one chunk would still be one chunk.
            CHUNK_BYTES.contains(other) && (*other).min(chunk) < self.size
        });
        others.map(|chunk| setting("chunk_bytes", show_size(chunk))).collect()
    }

    fn fewer_rails(&self) -> Vec<Change> {
        if !(2..=RAILS_MAX).contains(&self.rails.len()) {
            return Vec::new();
        }
        let rails = self.rails.iter().enumerate();
        rails.map(|(rail, name)| Change::WithoutRail { rail, name: name.clone() }).collect()
    }
}

fn setting(name: &str, value: String) -> Change {
    Change::Settings(vec![(name.to_owned(), value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(config: &Config) -> Scene<'_> {
        Scene {
            config,
            rails: vec!["rail0".into(), "rail1".into()],
            channels: 8,
            congestion: Some("bbr".into()),
            congestions: vec!["reno".into(), "bbr".into()],
            size: 1 << 20,
            depth: 16,
            ping_pong: false,
            on_device: false,
            protected: false,
        }
    }

    fn names(scene: &Scene<'_>) -> Vec<String> {
        suspects(scene).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn from_the_defaults_each_setting_goes_to_both_sides_and_each_rail_is_left_out() {
        let config = Config::default();
        let expected = [
            "depth=64",
            "congestion=reno",
            "channels=16",
            "window_chunks=64",
            "chunk_bytes=2MiB",
            "chunk_bytes=128KiB",
            "socket_buffer_bytes=4MiB",
            "proxy_layout=merged",
            "without rail0",
            "without rail1",
        ];
        assert_eq!(names(&scene(&config)), expected);
        let ping_pong = Scene { ping_pong: true, depth: 1, size: 8, ..scene(&config) };
        assert_eq!(names(&ping_pong)[..2], ["congestion=reno", "channels=16"]);
        let large = Scene { depth: 4, size: 256 << 20, rails: vec!["a".into()], ..scene(&config) };
        let on_device = Scene { on_device: true, ..scene(&config) };
        assert!(
            names(&on_device).contains(&"staging_bytes=32MiB".to_owned()),
            "{:?}",
            names(&on_device)
        );
        assert!(!names(&large).iter().any(|name| name.starts_with("depth")), "4 GiB at once");
    }

    #[test]
    fn protection_is_taken_off_where_either_end_has_it() {
        let config = Config::default();
        assert!(!names(&scene(&config)).contains(&"payload=none".to_owned()));
        let protected = Scene { protected: true, ..scene(&config) };
        assert!(names(&protected).contains(&"payload=none".to_owned()));
    }

    #[test]
    fn every_setting_that_may_be_tried_goes_back_to_its_default_by_one_knob() {
        for name in TRIED_SETTINGS {
            let knobs = Knob::ALL.iter().filter(|knob| knob.settings().contains(&name)).count();
            assert!(knobs <= 1, "{name}: {knobs}");
        }
    }

    #[test]
    fn chunks_of_a_device_go_back_to_their_default_too() {
        let config = Config::builder().set_pair("gpu_chunk_bytes=16KiB").unwrap().build().unwrap();
        let on_device = Scene { on_device: true, ..scene(&config) };
        assert!(names(&on_device).contains(&"gpu_chunk_bytes=2MiB".to_owned()));
    }

    #[test]
    fn what_is_not_at_its_default_goes_back_there_and_what_belongs_together_at_once() {
        let config = Config::builder()
            .set_pair("chunk_bytes=4KiB")
            .and_then(|builder| builder.set_pair("proxies=16"))
            .and_then(|builder| builder.set_pair("tx_bindings=0"))
            .and_then(|builder| builder.set_pair("rx_bindings=lo:0"))
            .and_then(|builder| builder.set_pair("congestion=bbr"))
            .and_then(polyrail_config::ConfigBuilder::build)
            .unwrap();
        let names = names(&scene(&config));
        let expected = ["threads not bound", "proxies=0", "chunk_bytes=512KiB", "congestion=reno"];
        for name in expected {
            assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name == "congestion=auto"), "{names:?}");
    }
}
