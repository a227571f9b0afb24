//! Environment names of NCCL, RCCL and UCCL, and their meanings here.

use std::collections::BTreeMap;

mod nccl;

pub(crate) use nccl::{
    count, debug, debug_file, debug_subsys, dump_signal, proxy_trace, socket_family, socket_ifname,
    sockets, threads,
};

/// Prefix of the environment variables of settings.
pub(crate) const ENV_PREFIX: &str = "POLYRAIL_";

/// The environment: values by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// An environment name of another tool for a setting.
#[derive(Clone, Copy)]
pub(crate) struct Alias {
    pub(crate) env: &'static str,
    /// Converts the other tool's value into the setting's.
    pub(crate) read: fn(&str, &Variables) -> Reading,
    /// Difference from the setting, for the documentation; empty if there is none.
    pub(crate) note: &'static str,
}

impl Alias {
    /// Returns whether the name is Polyrail's own, so that a wrong value is an error. Other tools continue with a value
    /// that they don't know, and so does Polyrail.
    pub(crate) fn is_strict(&self) -> bool {
        self.env.starts_with(ENV_PREFIX)
    }
}

/// Meaning of another tool's value here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Text for the setting; `None` leaves the setting unchanged.
    pub(crate) value: Option<String>,
    /// Phrases for the user that follow the variable's name and value.
    pub(crate) warnings: Vec<String>,
}

impl Reading {
    fn of(text: impl Into<String>) -> Self {
        Self { value: Some(text.into()), warnings: Vec::new() }
    }

    fn ignored(why: impl Into<String>) -> Self {
        Self { value: None, warnings: vec![format!("{} and is ignored", why.into())] }
    }

    fn warn(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

/// Names that Polyrail reads only to report why they have no effect.
pub(crate) const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    (
        "NCCL_BUFFSIZE",
        "there is no buffer per channel; chunk_bytes and window_chunks bound what is in flight",
    ),
    ("NCCL_GPUDIRECTTCPX_TX_IRQ_BINDINGS", "the engine does not move interrupts"),
    ("NCCL_GPUDIRECTTCPX_RX_IRQ_BINDINGS", "the engine does not move interrupts"),
    ("NCCL_SHM_LOCALITY", "host memory has no shared-memory transport"),
    ("NCCL_SHM_MEMCPY_MODE", "host memory has no shared-memory transport"),
    ("NCCL_NET_SHARED_BUFFERS", "data lands in place, so there are no buffers to share"),
    ("NCCL_NET_GDR_LEVEL", "there is no transport from GPU memory straight to the network"),
    (
        "NCCL_IGNORE_CPU_AFFINITY",
        "Polyrail never changes the program's affinity; tx_bindings and rx_bindings pin the proxies",
    ),
];

/// Returns an alias: the same setting under another name.
pub(crate) const fn same(env: &'static str) -> Alias {
    Alias { env, read: unchanged, note: "" }
}

/// Returns an alias for a setting whose values need translation, or a note.
pub(crate) const fn via(
    env: &'static str,
    read: fn(&str, &Variables) -> Reading,
    note: &'static str,
) -> Alias {
    Alias { env, read, note }
}

fn unchanged(text: &str, _: &Variables) -> Reading {
    Reading::of(text)
}
