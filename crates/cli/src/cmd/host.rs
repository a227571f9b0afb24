//! `polyrail host`: shows this machine, changes its settings, and undoes changes.

use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};

mod apply;
mod bindings;
pub(crate) mod changes;
pub(crate) mod fix;
mod irq;
mod nic;
pub(crate) mod output;
pub(crate) mod place;
mod profiles;
mod session;
mod show;
mod snapshot;
mod subject;
mod topology;
mod tree;
mod watch;
mod words;

use crate::fault::Fault;
use crate::values::{time, word};
use place::{State, Where};
use words::refuse_others;

/// Arguments of the subcommand, checked against each other.
pub(crate) struct Args {
    words: Words,
}

#[derive(clap::Args)]
struct Words {
    #[command(flatten)]
    place: Where,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show CPUs, interfaces and GPUs, interrupts, queues and counters, bindings and profiles.
    Show(show::ShowArgs),
    /// Save what this machine tells about itself in an archive, to examine it elsewhere.
    ///
    /// It holds no hardware or IP addresses, host names, serial numbers or keys. It does hold the limits and
    /// rights of the user who takes it. `polyrail host show --sysroot FILE` shows it, `polyrail doctor --sysroot
    /// FILE` examines it; unpacked, `lstopo -i` of hwloc shows it, too.
    Snapshot(snapshot::SnapshotArgs),
    /// Choose new values, and show old, new and why; changes nothing.
    Plan(Box<apply::PlanArgs>),
    /// Carry a plan out, all of it or nothing. The old values are kept, so that `undo` can put them back.
    Apply(Box<apply::ApplyArgs>),
    /// Tell whether a plan still holds: ok, pending, drift, skipped or missing.
    ///
    /// The exit code is 1 if anything is not ok. An interrupt is pending until it comes the next
    /// time, which on an idle queue may be long; `--wait` gives it time, `--allow-pending` accepts it.
    Verify(session::VerifyArgs),
    /// Watch who changes planned values back: a process, a driver or the kernel.
    Watch(watch::WatchArgs),
    /// Put the values back that a plan has changed. Works also after `apply` was killed halfway.
    Undo(session::UndoArgs),
    /// Keep the last change: its guard then restores nothing. Use it if you can still reach the machine.
    Confirm(State),
    /// Restore the values of a session after a while, unless `confirm` keeps them.
    #[command(hide = true)]
    Revert {
        /// The ID of the session.
        #[arg(value_parser = word)]
        session: String,
        /// The time that `confirm` has.
        #[arg(long, value_name = "TIME", value_parser = time)]
        after: Duration,
        #[command(flatten)]
        state: State,
    },
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        Words::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Words::augment_args_for_update(command)
    }
}

/// Checks the arguments against each other while clap reads the command line.
impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let words = Words::from_arg_matches(matches)?;
        words.check().map_err(|fault| {
            let help = fault.help.map(|help| format!("\nhelp: {help}")).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, fault.message + &help)
        })?;
        Ok(Self { words })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Words {
    fn check(&self) -> Result<(), Fault> {
        let json: &[&str] = if self.place.json { &["--json"] } else { &[] };
        match &self.verb {
            Verb::Show(args) => args.asked(self.place.json).map(drop),
            Verb::Plan(args) => args.subject().map(drop),
            Verb::Apply(args) => args.source().map(drop),
            Verb::Undo(args) => args.which().map(drop),
            Verb::Snapshot(_) => refuse_others("snapshot", json, &[]),
            Verb::Confirm(_) => refuse_others("confirm", json, &[]),
            Verb::Verify(_) | Verb::Watch(_) | Verb::Revert { .. } => Ok(()),
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Words { place, verb } = &args.words;
    let state = match verb {
        Verb::Show(_) | Verb::Snapshot(_) | Verb::Plan(_) => None,
        Verb::Apply(args) => Some(&args.state),
        Verb::Verify(args) => Some(&args.planned.state),
        Verb::Watch(args) => Some(&args.planned.state),
        Verb::Undo(args) => Some(&args.state),
        Verb::Confirm(state) | Verb::Revert { state, .. } => Some(state),
    };
    if let Some(Err(fault)) = state.map(State::check) {
        return fault.refuse();
    }
    let result = match verb {
        Verb::Show(args) => show::run(args, place),
        Verb::Snapshot(args) => snapshot::take(args, place),
        Verb::Plan(args) => apply::plan(args, place),
        Verb::Apply(args) => apply::apply(args, place),
        Verb::Verify(args) => session::verify(args, place),
        Verb::Watch(args) => watch::run(args, place),
        Verb::Undo(args) => session::undo(args, place),
        Verb::Confirm(state) => session::confirm(state, place),
        Verb::Revert { session, after, state } => session::revert(session, *after, state, place),
    };
    result.unwrap_or_else(Fault::refuse)
}
