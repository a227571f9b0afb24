//! What may make a size slow and can be changed for a trial, and what the trials come to.

use polyrail::Config;
use polyrail_report::{Spread, Tried, show_size};

use crate::cmd::bench::options::{BINDINGS, Change, TRIED_SETTINGS};

/// What the suspects follow from.
pub(crate) struct Scene<'a> {
    pub(crate) config: &'a Config,
    /// Names of the rails.
    pub(crate) rails: Vec<String>,
    /// Channels in use.
    pub(crate) channels: u64,
    /// The congestion control in use, if it is known.
    pub(crate) congestion: Option<String>,
    /// All that this user may choose.
    pub(crate) congestions: Vec<String>,
    pub(crate) size: u64,
    pub(crate) depth: u64,
    pub(crate) ping_pong: bool,
    /// Whether an end has its memory on a device.
    pub(crate) on_device: bool,
}

/// How many other congestion controls are tried.
const CONGESTIONS: usize = 2;
/// Of more rails, each carries so little that leaving it out shows nothing.
const RAILS_MAX: usize = 8;
/// What may be outstanding at most in a trial.
const OUTSTANDING_BYTES_MAX: u64 = 1 << 30;
const CHANNELS_MAX: u64 = 256;
const WINDOW_MAX: u64 = 1024;
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
const STEP: u64 = 4;
const BUFFERS: [&str; 2] = ["send_buffer_bytes", "recv_buffer_bytes"];
/// More than a flow of any usual network needs.
const BUFFER_BYTES: u64 = 4 << 20;
/// Of pinned memory for each flow and direction.
const STAGING_MAX: u64 = 256 << 20;

/// The changes to try: back to the default where a setting is not at it, and from the default to both
/// sides; then each rail.
pub(crate) fn suspects(scene: &Scene<'_>) -> Vec<Change> {
    let rows = scene.config.rows();
    let changed: Vec<(String, String)> = rows
        .iter()
        .filter(|row| TRIED_SETTINGS.contains(&row.name) && row.is_changed())
        .map(|row| (row.name.to_owned(), row.default.clone()))
        .collect();
    let is_changed = |name: &str| changed.iter().any(|(changed, _)| changed == name);
    let mut changes = Vec::new();
    let deeper = scene.depth.saturating_mul(STEP);
    if !scene.ping_pong && deeper.saturating_mul(scene.size) <= OUTSTANDING_BYTES_MAX {
        changes.push(Change::Depth(deeper));
    }
    // What belongs together is changed together: half of it would show little.
    let numbers = ["tx_proxies", "rx_proxies"];
    for group in [&BINDINGS[..], &numbers] {
        let of_group: Vec<_> =
            changed.iter().filter(|(name, _)| group.contains(&name.as_str())).cloned().collect();
        if !of_group.is_empty() {
            changes.push(Change::Settings(of_group));
        }
    }
    let is_alone = |name: &str| !BINDINGS.contains(&name) && !numbers.contains(&name);
    let lone = changed.iter().filter(|(name, _)| is_alone(name) && name != "congestion");
    changes.extend(lone.map(|pair| Change::Settings(vec![pair.clone()])));
    let others = scene.congestions.iter().filter(|name| scene.congestion.as_ref() != Some(*name));
    changes.extend(others.take(CONGESTIONS).map(|name| setting("congestion", name.clone())));
    if !is_changed("channels") && scene.channels * 2 <= CHANNELS_MAX {
        changes.push(setting("channels", (scene.channels * 2).to_string()));
    }
    let window = u64::from(scene.config.window_chunks) * STEP;
    if !scene.ping_pong && !is_changed("window_chunks") && window <= WINDOW_MAX {
        changes.push(setting("window_chunks", window.to_string()));
    }
    if !is_changed("chunk_bytes") {
        let chunk = scene.config.chunk_bytes;
        let others = [chunk * STEP, chunk / STEP].into_iter().filter(|chunk| {
            // A transfer of one chunk stays one.
            CHUNK_BYTES.contains(chunk) && (*chunk).min(scene.config.chunk_bytes) < scene.size
        });
        changes.extend(others.map(|chunk| setting("chunk_bytes", show_size(chunk))));
    }
    // The kernel's limits may be too small for what it chooses itself.
    if !BUFFERS.iter().any(|name| is_changed(name)) {
        let given = BUFFERS.iter().map(|name| ((*name).to_owned(), show_size(BUFFER_BYTES)));
        changes.push(Change::Settings(given.collect()));
    }
    let staging = scene.config.staging_bytes * STEP;
    if scene.on_device && !is_changed("staging_bytes") && staging <= STAGING_MAX {
        changes.push(setting("staging_bytes", show_size(staging)));
    }
    if !is_changed("proxy_layout") {
        changes.push(setting("proxy_layout", "merged".into()));
    }
    if (2..=RAILS_MAX).contains(&scene.rails.len()) {
        let rails = scene.rails.iter().enumerate();
        changes.extend(rails.map(|(rail, name)| Change::WithoutRail { rail, name: name.clone() }));
    }
    changes
}

fn setting(name: &str, value: String) -> Change {
    Change::Settings(vec![(name.to_owned(), value)])
}

/// Rates of a change and of none, in GB/s, in pairs that were measured one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs(pub(crate) Vec<[f64; 2]>);

/// Less is not worth a change.
const LEAST_GAIN: f64 = 1.05;

impl Pairs {
    /// What this change comes to; `noise` is what the rate varies by without any change, as a part of it.
    pub(crate) fn tried(&self, change: &Change, noise: f64) -> Option<Tried> {
        let ratio = Spread::of(self.0.iter().map(|[without, with]| with / without))?;
        let gb_per_s = Spread::of(self.0.iter().map(|[_, with]| *with))?.median;
        let helps = ratio.median >= least_ratio(noise) && ratio.min > 1.0;
        Some(Tried { change: change.to_string(), gb_per_s, ratio, helps })
    }
}

/// The least ratio of what helps.
pub(crate) fn least_ratio(noise: f64) -> f64 {
    LEAST_GAIN.max(1.0 + 2.0 * noise)
}

/// What the rates of one thing vary by, as a part of their median: half of the span of the middle ones, of
/// which a quarter on each side is left out.
pub(crate) fn noise(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let aside = sorted.len() / 4;
    let middle = &sorted[aside..sorted.len() - aside];
    let spread = Spread::of(middle.iter().copied());
    spread.map_or(0.0, |spread| spread.half_range_percent() / 100.0)
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
            "send_buffer_bytes=4MiB recv_buffer_bytes=4MiB",
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
    fn chunks_of_a_device_go_back_to_their_default_too() {
        let config = Config::builder().set_pair("gpu_chunk_bytes=16KiB").unwrap().build().unwrap();
        let on_device = Scene { on_device: true, ..scene(&config) };
        assert!(names(&on_device).contains(&"gpu_chunk_bytes=2MiB".to_owned()));
    }

    #[test]
    fn what_is_not_at_its_default_goes_back_there_and_what_belongs_together_at_once() {
        let config = Config::builder()
            .set_pair("chunk_bytes=4KiB")
            .and_then(|builder| builder.set_pair("tx_proxies=16"))
            .and_then(|builder| builder.set_pair("rx_proxies=16"))
            .and_then(|builder| builder.set_pair("tx_cpus=0"))
            .and_then(|builder| builder.set_pair("rx_cpus=0"))
            .and_then(|builder| builder.set_pair("congestion=bbr"))
            .and_then(polyrail_config::ConfigBuilder::build)
            .unwrap();
        let names = names(&scene(&config));
        let expected = [
            "threads not bound",
            "tx_proxies=0 rx_proxies=0",
            "chunk_bytes=512KiB",
            "congestion=reno",
        ];
        assert_eq!(names[1..5], expected);
        assert!(!names.iter().any(|name| name == "congestion=auto"), "{names:?}");
    }

    #[test]
    fn a_change_helps_only_beyond_the_noise_and_in_every_round() {
        let change = Change::Depth(4);
        let helps =
            |pairs: &[[f64; 2]], noise| Pairs(pairs.to_vec()).tried(&change, noise).unwrap().helps;
        assert!(helps(&[[1.0, 1.2], [1.1, 1.3], [1.0, 1.15]], 0.02));
        assert!(!helps(&[[1.0, 1.2], [1.1, 1.3], [1.0, 1.15]], 0.1), "within the noise");
        assert!(!helps(&[[1.0, 1.2], [1.1, 1.3], [1.0, 0.99]], 0.02), "slower in one round");
        assert!(!helps(&[[1.0, 1.04], [1.0, 1.03], [1.0, 1.04]], 0.0), "too little");
        assert!(Pairs::default().tried(&change, 0.0).is_none());
    }

    #[test]
    fn noise_leaves_out_the_odd_ones() {
        assert_eq!(noise(&[]), 0.0);
        let quiet = [1.0, 1.01, 1.0, 0.99, 1.0, 1.01, 0.5, 2.0];
        assert!(noise(&quiet) <= 0.011, "{}", noise(&quiet));
        assert!(noise(&[0.8, 1.0, 1.2]) >= 0.19);
    }
}
