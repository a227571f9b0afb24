//! Values of each preset, with the reasons.

use crate::choices::Preset;

/// A value that a preset gives to a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PresetValue {
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    pub(crate) because: &'static str,
}

/// Values of the preset; any explicit value wins over them.
pub(crate) const fn values(preset: Preset) -> &'static [PresetValue] {
    match preset {
        Preset::Latency => LATENCY,
        Preset::Throughput => THROUGHPUT,
        Preset::Cpu => CPU,
        Preset::Balanced => &[],
    }
}

const LATENCY: &[PresetValue] = &[
    value("progress", "caller", "no hand-over between threads on the way of a small message"),
    value("proxy_layout", "merged", "one thread answers what it receives"),
    value("append_freq", "1", "a new operation never waits for a pass over the old ones"),
    value("inline_bytes", "64KiB", "larger writes, too, leave before posting returns"),
    value("chunk_bytes", "256KiB", "a small message waits less behind a large one on its flow"),
    value("spin", "2ms", "a wake-up costs more than the round trip itself"),
];

const THROUGHPUT: &[PresetValue] = &[
    value("chunk_bytes", "1MiB", "fewer headers and system calls per byte"),
    value("window_chunks", "16", "16 MiB in flight per channel cover 100 Gbit/s at 1 ms"),
    value("sockets", "2", "the kernel serves two connections of a channel on two cores"),
    value("append_batch", "64", "a burst of operations reaches the flows in one fetch"),
    value(
        "inline_bytes",
        "4KiB",
        "the posting thread does not spend its time copying into the kernel",
    ),
];

const CPU: &[PresetValue] = &[
    value("proxy_layout", "merged", "fewer threads to wake"),
    value("proxies", "1", "one proxy for all rails"),
    value("append_batch", "64", "fewer visits to the ops pool"),
    value("chunk_bytes", "1MiB", "fewer headers and system calls per byte"),
    value("spin", "off", "proxies and waiting threads sleep at once"),
];

const fn value(name: &'static str, value: &'static str, because: &'static str) -> PresetValue {
    PresetValue { name, value, because }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Settings, TABLE, index_of};

    #[test]
    fn every_value_of_a_preset_is_a_valid_value_of_a_setting_given_once() {
        for &preset in Preset::ALL {
            let mut seen = Vec::new();
            for PresetValue { name, value, because } in values(preset) {
                let spec = &TABLE[index_of(name).unwrap()];
                let parsed = spec.kind.parse(value).unwrap();
                assert!(spec.store(&mut Settings::default(), parsed).is_ok(), "{preset}: {name}");
                assert!(!because.is_empty());
                assert!(!seen.contains(name), "{preset} sets {name} twice");
                assert_ne!(*name, "preset");
                seen.push(name);
            }
        }
    }
}
