//! Changes that `--why` tries, and the settings that make them.

use std::fmt;

use polyrail::{Config, Engine};
use serde::{Deserialize, Serialize};

use super::derived::like;
use crate::fault::Fault;

/// Change that both ends make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// This number of outstanding transfers.
    Depth(u64),
    /// No protection of payload. A listening end agrees, whatever its own settings are: a bench moves only a pattern
    /// that its client chose, and everything else stays as it is.
    Unprotected,
    /// These values of settings, by name.
    Settings(Vec<(String, String)>),
    /// All rails except this one.
    WithoutRail {
        /// Index of the rail. Both ends have the rails in the same order.
        rail: usize,
        name: String,
    },
}

/// [`Change::Unprotected`] as a setting.
pub(crate) const UNPROTECTED: &str = "payload=none";

/// Settings that decide how fast bytes move. A peer may request other values of these settings only: none of them names
/// a file, admits a peer, or protects data.
pub(crate) const TRIED_SETTINGS: [&str; 15] = [
    "channels",
    "sockets",
    "window_chunks",
    "chunk_bytes",
    "gpu_chunk_bytes",
    "progress",
    "proxy_layout",
    "proxies",
    "tx_bindings",
    "rx_bindings",
    "inline_bytes",
    "spin",
    "congestion",
    "socket_buffer_bytes",
    "staging_bytes",
];

/// Settings that bind threads to CPUs.
pub(crate) const BINDINGS: [&str; 2] = ["tx_bindings", "rx_bindings"];

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth(depth) => write!(f, "depth={depth}"),
            Self::Unprotected => f.write_str(UNPROTECTED),
            Self::Settings(settings) if settings.iter().all(is_no_binding) => {
                f.write_str("threads not bound")
            }
            Self::Settings(settings) => {
                let pairs = settings.iter().map(|(name, value)| format!("{name}={value}"));
                f.write_str(&pairs.collect::<Vec<_>>().join(" "))
            }
            Self::WithoutRail { name, .. } => write!(f, "without {name}"),
        }
    }
}

fn is_no_binding((name, value): &(String, String)) -> bool {
    BINDINGS.contains(&name.as_str()) && value.is_empty()
}

/// Returns the settings for another engine like this one, with the change.
pub(crate) fn changed_config(engine: &Engine, change: &Change) -> Result<Config, Fault> {
    let mut builder = like(engine.config())?;
    match change {
        // The engine stays the same; only its use changes.
        Change::Depth(_) => {}
        Change::Unprotected => builder = builder.set_pair(UNPROTECTED)?,
        Change::Settings(settings) => {
            for (name, value) in settings {
                if !TRIED_SETTINGS.contains(&name.as_str()) {
                    let allowed = TRIED_SETTINGS.join(", ");
                    let reason = "is no setting that a peer may change";
                    return Err(Fault::usage("--why", name, reason, allowed));
                }
                builder = builder.set(name, value)?;
            }
        }
        Change::WithoutRail { rail, name } => {
            let mut rails = engine.rails();
            if rails.len() < 2 || *rail >= rails.len() {
                let allowed = "one of several rails, the same in number at both ends";
                return Err(Fault::usage("--why", name, "can't be left out", allowed));
            }
            rails.remove(*rail);
            let addresses = rails.iter().map(|rail| rail.address.ip().to_string());
            builder = builder.set("rails", &addresses.collect::<Vec<_>>().join(","))?;
        }
    }
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests {
    use polyrail_config::Payload;

    use super::*;

    fn engine() -> Engine {
        let rails = Config::builder().set("rails", "127.0.0.1,127.0.0.2,127.0.0.3").unwrap();
        let config = rails.set("window_chunks", "4").unwrap().build().unwrap();
        Engine::builder().config(config).build().unwrap()
    }

    fn set(name: &str, value: &str) -> Change {
        Change::Settings(vec![(name.into(), value.into())])
    }

    #[test]
    fn a_change_changes_what_it_names_and_nothing_else() {
        let engine = engine();
        let config = |change: &Change| changed_config(&engine, change).unwrap();
        let chunk = config(&set("chunk_bytes", "64KiB"));
        assert_eq!((chunk.chunk_bytes, chunk.window_chunks), (64 << 10, 4));
        assert_eq!(chunk.rails, "127.0.0.1,127.0.0.2,127.0.0.3");
        let without = config(&Change::WithoutRail { rail: 1, name: "x".into() });
        assert_eq!(without.rails, "127.0.0.1,127.0.0.3");
        assert_eq!(config(&Change::Depth(64)).window_chunks, 4);
        let sealed = like(engine.config()).unwrap().set("payload", "aead").unwrap();
        let sealed = Engine::builder().config(sealed.build().unwrap()).build().unwrap();
        let open = changed_config(&sealed, &Change::Unprotected).unwrap();
        assert_eq!((open.payload, open.window_chunks), (Payload::None, 4));
    }

    #[test]
    fn what_a_peer_may_not_change_is_refused_and_so_are_bad_values_and_rails() {
        let engine = engine();
        for (change, part) in [
            (set("log_file", "/etc/passwd"), "is no setting that a peer may change"),
            (set("payload", "none"), "is no setting that a peer may change"),
            (set("secret_file", "/x"), "is no setting that a peer may change"),
            (set("chunk_bytes", "1"), "4KiB"),
            (Change::WithoutRail { rail: 3, name: "rail3".into() }, "can't be left out"),
        ] {
            let error = changed_config(&engine, &change).unwrap_err().to_string();
            assert!(error.contains(part), "{change}: {error}");
        }
    }

    #[test]
    fn a_change_is_written_as_the_option_that_makes_it() {
        assert_eq!(set("congestion", "reno").to_string(), "congestion=reno");
        let none = BINDINGS.map(|name| (name.to_owned(), String::new()));
        assert_eq!(Change::Settings(none.into()).to_string(), "threads not bound");
        assert_eq!(Change::Depth(8).to_string(), "depth=8");
    }
}
