//! Every setting of Polyrail in one table.
//!
//! A setting is declared once, in [`Settings`]'s table: name, type, default, range, unit, help and
//! the environment names of other tools that mean the same. The table drives the typed struct the
//! engine reads, the environment, the YAML file, `--set`, the page `docs/config.md` and
//! `polyrail config show`.
//!
//! Values come in layers, lowest first: default, preset, file, alias environment names,
//! `POLYRAIL_*` environment, then what the program or `--set` says. Each effective value remembers
//! its [`Origin`].
//!
//! ```
//! use polyrail_config::Config;
//!
//! let config = Config::builder()
//!     .yaml("preset: throughput\nwindow_chunks: 32\n", "polyrail.yaml")?
//!     .set("chunk_bytes", "2MiB")?
//!     .build()?;
//! assert_eq!(config.chunk_bytes, 2 << 20);
//! assert_eq!(config.window_chunks, 32);
//! assert_eq!(config.origin("window_chunks").unwrap().to_string(), "file polyrail.yaml:2");
//! # Ok::<(), polyrail_config::ConfigError>(())
//! ```
//!
//! Nothing here does I/O except [`ConfigBuilder::file`] and [`ConfigBuilder::env`]. All types are
//! `Send + Sync`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod alias;
mod bindings;
mod builder;
mod choices;
mod config;
mod conflict;
mod cpus;
mod discovery;
mod docs;
mod error;
mod file_name;
mod invalid;
mod kind;
mod metrics_listen;
mod number;
mod peer_names;
mod ports;
mod preset;
mod proxies;
mod renamed;
mod rendezvous;
mod service_links;
mod signal;
mod spin;
mod subsystems;
mod suggest;
mod table;
mod value;
mod yaml;

pub use bindings::{Binding, BindingsError, BindingsFault, OTHERS, parse_bindings};
pub use builder::ConfigBuilder;
pub use choices::{
    AddressFamily, Auth, LogFormat, LogLevel, NcclDevices, PathChoice, Payload, Preset, Progress,
    ProxyLayout, UnknownChoice,
};
pub use config::{Config, Origin, Row};
pub use cpus::{CpuListError, LAST_CPU, parse_cpu_ranges};
pub use docs::{help, markdown};
pub use error::{BadValue, ConfigError, Conflict, Party, is_wrong_path};
pub use file_name::expand_file_name;
pub use invalid::Invalid;
pub use metrics_listen::MetricsListen;
pub use number::{parse_size, parse_time, show_size};
pub use peer_names::{NamePattern, NamesError, NamesFault, parse_names};
pub use polyrail_yaml::{
    cell, debug_as_text, harmless, json_in_markup, markdown_line, markup, shortened, steers,
};
pub use proxies::Proxies;
pub use rendezvous::{Launcher, Rendezvous};
pub use spin::Spin;
pub use subsystems::{SUBSYSTEMS, Subsystems};
pub use table::{Settings, choices, names};
pub use value::Value;
pub use yaml::FILE_LIMIT_BYTES;

/// Makes the program in the README a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
