//! Settings for other engines and processes, derived from those in effect in this process.

use std::ffi::OsString;

use polyrail::{Config, Engine};
use polyrail_config::ConfigBuilder;

use crate::cmd::bench::faults;
use crate::fault::Fault;

/// Returns options that give another process the settings in effect in this one, whatever its environment, except for
/// those in `theirs`.
pub(crate) fn settings_for_child(config: &Config, theirs: &[(&str, String)]) -> Vec<OsString> {
    let mut options = Vec::new();
    for row in config.rows() {
        let value = match row.name {
            name if theirs.iter().any(|(theirs, _)| *theirs == name) => theirs
                .iter()
                .filter(|(theirs, _)| *theirs == name)
                .map(|(_, v)| v.clone())
                .collect(),
            // Two processes of one machine can't listen on one port, but on two of a range.
            "listen_port" if is_one_port(config) => "0".to_owned(),
            // The other process reads NCCL's variable itself, and logs to standard error if it can't open that file.
            "log_file" if row.origin.is_foreign() => continue,
            // Two processes can't write one file either, unless its name distinguishes them.
            "log_file" | "trace_file" if !row.value.is_empty() && !row.value.contains("%p") => {
                format!("{}.peer", row.value)
            }
            _ if row.is_changed() || row.origin.is_explicit() => row.value,
            _ => continue,
        };
        options.extend(["--set".into(), format!("{}={value}", row.name).into()]);
    }
    options
}

/// Returns the settings for an engine on a single rail: the rail's address, and its share of the channels.
pub(crate) fn lone_rail_config(engine: &Engine, rail: &str) -> Result<Config, Fault> {
    let rails = engine.rails();
    let Some(info) = rails.iter().find(|info| info.name == rail) else {
        let answer = format!("no rail is called {rail}");
        return Err(faults::protocol("open_rail", answer));
    };
    let channels = match engine.config().channels {
        0 => 0,
        all => (all as usize / rails.len()).max(1),
    };
    let builder = like(engine.config())?
        .set("rails", &info.address.ip().to_string())?
        .set("channels", &channels.to_string())?;
    Ok(builder.build()?)
}

/// Returns the settings for another engine like this one, with this number of channels if given.
pub(crate) fn other_config(engine: &Engine, channels: Option<u32>) -> Result<Config, Fault> {
    let mut builder = like(engine.config())?;
    if let Some(channels) = channels {
        builder = builder.set("channels", &channels.to_string())?;
    }
    Ok(builder.build()?)
}

/// Returns the same settings, except for those that two engines of one process can't share.
pub(crate) fn like(config: &Config) -> Result<ConfigBuilder, Fault> {
    let mut builder = Config::builder();
    for row in config.rows() {
        builder = builder.set(row.name, &row.value)?;
    }
    // In a range each engine finds a free port.
    if is_one_port(config) {
        builder = builder.set("listen_port", "0")?;
    }
    Ok(builder.set("trace_file", "")?)
}

fn is_one_port(config: &Config) -> bool {
    config.listen_port.start() == config.listen_port.end()
}

#[cfg(test)]
mod tests {
    use super::super::configure::tests::config;
    use super::*;

    #[test]
    fn two_engines_share_a_range_of_ports_and_no_single_one() {
        for (given, theirs, ports) in
            [("5000", "0", 0..=0), ("5000-5003", "5000-5003", 5000..=5003)]
        {
            let config = config(&format!("--set listen_port={given}"));
            let options = settings_for_child(&config, &[]);
            assert!(options.contains(&format!("listen_port={theirs}").into()), "{options:?}");
            assert_eq!(like(&config).unwrap().build().unwrap().listen_port, ports);
        }
    }

    #[test]
    fn another_process_gets_the_same_settings_but_not_the_same_files() {
        let config = config(
            "--set chunk_bytes=1MiB --preset cpu --set log_file=/tmp/x --set trace_file=/tmp/%p",
        );
        let options = settings_for_child(&config, &[("rx_bindings", "1-2".to_owned())]);
        let pairs: Vec<&str> = options
            .iter()
            .filter_map(|option| option.to_str())
            .filter(|o| o.contains('='))
            .collect();
        assert!(pairs.contains(&"chunk_bytes=1MiB") && pairs.contains(&"preset=cpu"), "{pairs:?}");
        assert!(pairs.contains(&"rx_bindings=1-2"), "{pairs:?}");
        assert!(pairs.contains(&"log_file=/tmp/x.peer") && pairs.contains(&"trace_file=/tmp/%p"));
        let mut builder = Config::builder();
        for pair in &pairs {
            builder = builder.set_pair(pair).unwrap();
        }
        let child = builder.build().unwrap();
        assert_eq!((child.window_chunks, &child.rails), (config.window_chunks, &config.rails));
    }
}
