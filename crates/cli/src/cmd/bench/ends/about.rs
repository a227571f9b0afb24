//! Descriptions that each end gives of itself.

use std::collections::BTreeMap;

use polyrail::{Config, Engine};
use polyrail_host::CpuSet;
use polyrail_report::{PlacedThread, Setting};

/// Returns the settings in the form of reports.
pub(crate) fn settings(config: &Config) -> BTreeMap<String, Setting> {
    let rows = config.rows().into_iter().map(|row| {
        let value = serde_json::to_value(&row.raw).unwrap_or_default();
        (row.name.to_owned(), Setting { value, origin: row.origin.to_string() })
    });
    rows.collect()
}

/// Returns the CPUs of the engine's progress threads.
pub(crate) fn threads(engine: &Engine, is_peer: bool) -> Vec<PlacedThread> {
    let list = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>().to_string();
    let proxies = engine.stats().proxies.into_iter();
    let placed = proxies.map(|proxy| PlacedThread {
        expected: list(&proxy.cpus),
        actual: list(&proxy.actual_cpus),
        name: proxy.name,
        is_peer,
        last_cpu: proxy.last_cpu,
        migrations: proxy.migrations,
    });
    placed.collect()
}
