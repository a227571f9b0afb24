//! NCCL for the path `nccl`: its library, and the environment that it reads once in a process.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use clap::ValueEnum;
use polyrail_nccl_ref::Nccl;
use polyrail_profile::{Folder, PathKind};

use super::args::{Args, Gpus, Way};
use crate::fault::Fault;

/// How NCCL moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// As it does by itself: between GPUs directly.
    #[default]
    P2p,
    /// By its socket transport, over the loopback unless NCCL_SOCKET_IFNAME says otherwise.
    Socket,
}

/// Name of the setting in a folder.
pub(super) const MODE: &str = "nccl_mode";

/// Variables for both modes. No send uses multicast, and NCCL has no other machine to find.
const ALWAYS: [(&str, &str); 3] =
    [("NCCL_NVLS_ENABLE", "0"), ("NCCL_NET_PLUGIN", "none"), ("NCCL_SOCKET_IFNAME", "lo")];
const SOCKET: [(&str, &str); 3] =
    [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_NET", "Socket")];

impl Mode {
    /// The mode of the resumed folder, else that of the options.
    pub(super) fn of(args: &Args, resumed: Option<&Folder>) -> Self {
        let before = resumed.and_then(|folder| folder.run().settings.get(MODE)?.as_str());
        let before = before.and_then(|word| Self::from_str(word, true).ok());
        before.or(args.nccl_mode).unwrap_or_default()
    }

    /// Word for the mode in a folder.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::P2p => "p2p",
            Self::Socket => "socket",
        }
    }

    /// Variables that this mode lacks. Keeps what a user set, except for the variables that make the mode.
    fn missing(self, is: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
        let unset = ALWAYS.into_iter().filter(|(name, _)| is(name).is_none());
        let mode: &[_] = if self == Self::Socket { &SOCKET } else { &[] };
        let other = mode.iter().copied().filter(|(name, value)| is(name).as_deref() != Some(value));
        unset.chain(other).collect()
    }
}

/// Loads the library, if it may be needed. If it is missing, a note has the reason.
///
/// # Errors
/// A library that is missing and was asked for, or that was given and is not needed.
pub(super) fn library(
    args: &Args,
    resumed: Option<&Folder>,
    gpus: usize,
    notes: &mut Vec<String>,
) -> Result<Option<Arc<Nccl>>, Fault> {
    let is_nccl = |one: &polyrail_profile::Configuration| one.path == PathKind::Nccl;
    let must = match resumed {
        Some(folder) => folder.plan().configurations.iter().any(is_nccl),
        None => args.paths.contains(&Way::Nccl),
    };
    let may = resumed.is_none() && args.paths.is_empty() && gpus > 1;
    let is_used = must || may && args.load.is_empty();
    if let Some(library) = args.nccl_lib.as_ref().filter(|_| !is_used) {
        let given = library.display().to_string();
        let fault = "is for the path nccl, which this profile does not measure";
        let allowed = "with --paths nccl, two GPUs or more, and no --load";
        return Err(Fault::usage("--nccl-lib", given, fault, allowed));
    }
    if may && !args.load.is_empty() {
        notes.push("the path nccl is left out: it has no background load".into());
        return Ok(None);
    }
    if !is_used {
        return Ok(None);
    }
    match Nccl::load(args.nccl_lib.as_deref()) {
        Ok(nccl) => Ok(Some(nccl)),
        Err(error) if must || args.nccl_lib.is_some() => Err(error.into()),
        Err(error) => {
            notes.push(format!("the path nccl is left out: {error}"));
            Ok(None)
        }
    }
}

/// Starts this program again if NCCL's settings are not in its environment. Only a new process can have other variables
/// safely, since NCCL reads them at any time.
pub(super) fn settle(mode: Mode) -> Result<(), Fault> {
    let missing = mode.missing(|name| std::env::var(name).ok());
    if missing.is_empty() {
        return Ok(());
    }
    let failed = |source| Fault::system("starting this program again for NCCL", source);
    let program = std::env::current_exe().map_err(failed)?;
    Err(failed(Command::new(program).args(std::env::args_os().skip(1)).envs(missing).exec()))
}

/// Refuses options that don't fit the path nccl.
pub(super) fn refuse(args: &Args) -> Result<(), Fault> {
    let is_asked = args.paths.contains(&Way::Nccl);
    if is_asked && !args.load.is_empty() {
        let allowed = "other paths, such as --paths tcp";
        return Err(Fault::usage("--load", "", "is not there for the path nccl", allowed));
    }
    let has_none = args.gpus == Some(Gpus::None) || !is_asked && !args.paths.is_empty();
    if args.nccl_mode.is_some() && has_none {
        let fault = "is for the path nccl, which needs GPUs";
        return Err(Fault::usage("--nccl-mode", "", fault, "with GPUs and --paths nccl"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_adds_what_is_missing_and_leaves_what_users_set() {
        let none = |_: &str| None;
        assert_eq!(Mode::P2p.missing(none), ALWAYS);
        assert_eq!(Mode::Socket.missing(none).len(), 6);
        let set = |name: &str| {
            let all = ALWAYS.iter().chain(&SOCKET);
            all.map(|(known, value)| (*known, (*value).to_owned()))
                .find(|(known, _)| *known == name)
                .map(|(_, value)| if name == "NCCL_SOCKET_IFNAME" { "eth0".into() } else { value })
        };
        assert!(Mode::Socket.missing(set).is_empty(), "or it would begin anew for ever");
        let other = |name: &str| (name == "NCCL_P2P_DISABLE").then(|| "0".to_owned());
        assert!(Mode::Socket.missing(other).contains(&("NCCL_P2P_DISABLE", "1")));
        assert!(!Mode::P2p.missing(other).contains(&("NCCL_P2P_DISABLE", "1")));
    }

    #[test]
    fn words_in_folders_read_back() {
        for mode in [Mode::P2p, Mode::Socket] {
            assert_eq!(Mode::from_str(mode.word(), false), Ok(mode));
        }
    }
}
