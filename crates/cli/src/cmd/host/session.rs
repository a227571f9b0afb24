//! `polyrail host verify`, `undo` and `confirm`: check plans that were applied, undo them, or keep them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use polyrail_doctor::CHECKS;
use polyrail_report::exit;
use polyrail_tune::profile::Profile;
use polyrail_tune::{Plan, RealDisk, TuneError, Which, reset};

use super::changes;
use super::place::{State, Where};
use super::profiles;
use super::words::conflict;
use crate::fault::Fault;
use crate::stdout::{excerpt, tell};
use crate::values::{completed, file_to_read, profile_name, time, word, word_or_file};

/// First words of the names of sessions.
const KINDS: [&str; 4] = ["irq", "nic", "tune", "doctor"];

/// The plan that a command looks at.
#[derive(clap::Args)]
pub(super) struct Planned {
    /// The plan file, or irq, nic, tune or doctor for the last such plan that was applied [default: the last of any kind].
    #[arg(value_name = "WHAT|FILE", hide_possible_values = true,
          value_parser = completed(word_or_file(&KINDS, None), kinds))]
    plan: Option<PathBuf>,

    #[command(flatten)]
    pub(super) state: State,
}

#[derive(clap::Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    pub(super) planned: Planned,

    /// Give pending interrupts this long to come.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    wait: Duration,

    /// Exit with 0 even if some interrupts have not fired yet.
    #[arg(long)]
    allow_pending: bool,
}

#[derive(clap::Args)]
pub(super) struct UndoArgs {
    /// Undo the last change of irq, nic, tune or doctor, or the one with the ID that `apply` printed [default: the last
    /// one that still holds].
    #[arg(value_name = "WHAT|ID", hide_possible_values = true, value_parser = completed(word, kinds))]
    what: Option<String>,

    /// Behind `tune` the profile, behind `doctor` the check.
    #[arg(value_parser = profile_name)]
    name: Option<String>,

    /// The profile that `host apply tune --profile-file` took from this file; it may have changed nothing.
    #[arg(long, value_name = "FILE", value_parser = file_to_read())]
    profile_file: Option<PathBuf>,

    /// Put back every value that was changed since the machine was booted.
    #[arg(long)]
    pristine: bool,

    /// Also undo what was changed before the last boot, what something else has set since, and what a damaged journal
    /// still tells.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    pub(super) state: State,
}

impl Planned {
    /// The file or word after `polyrail host verify` or `watch`, with a space in front; empty if there is none.
    pub(super) fn argument(&self) -> String {
        let word = |plan: &PathBuf| format!(" {}", excerpt(&plan.to_string_lossy()));
        self.plan.as_ref().map(word).unwrap_or_default()
    }

    /// The plan in the file, or that of the last open session of this boot.
    pub(super) fn read(&self, place: &Where) -> Result<Plan, TuneError> {
        let word = self.plan.as_deref().map(Path::to_str);
        let name = match (&self.plan, word.flatten()) {
            (None, _) => "",
            (_, Some(word)) if KINDS.contains(&word) => word,
            (Some(path), _) => return changes::read_plan(path),
        };
        match self.state.last_session(name, place)? {
            Some(session) => Ok(session.plan),
            None => {
                let remedy = "name a plan file, or carry one out with `polyrail host apply`";
                let of = if name.is_empty() { String::new() } else { format!(" of {name}") };
                let what = format!("no plan{of}");
                Err(TuneError::NeverApplied { what, allowed: "a plan file", remedy })
            }
        }
    }
}

impl UndoArgs {
    /// The name of the sessions to undo, and the choice among them. For a profile from a file the caller completes the
    /// name.
    ///
    /// # Errors
    /// A fault if the arguments exclude each other.
    pub(super) fn which(&self) -> Result<(String, Which), Fault> {
        let latest = if self.pristine { Which::Pristine } else { Which::Latest };
        let kind = self.what.as_deref().unwrap_or_default();
        if self.profile_file.is_some() && (kind != "tune" || self.name.is_some()) {
            let message = "--profile-file <FILE>: names a profile by itself; allowed: `polyrail host undo tune \
                           --profile-file FILE`";
            return Err(Fault::new(exit::USAGE, message));
        }
        match (kind, &self.name) {
            ("" | "irq" | "nic" | "tune" | "doctor", None) => Ok((kind.to_owned(), latest)),
            (kind @ ("tune" | "doctor"), Some(name)) => Ok((format!("{kind} {name}"), latest)),
            (subject @ ("channels" | "rings" | "coalesce" | "rss" | "fix"), None) => {
                let kind = if subject == "fix" { "doctor" } else { "nic" };
                let fault = format!("is undone by the name `{kind}`");
                let fault = Fault::usage(
                    "[WHAT|ID]",
                    subject,
                    fault,
                    format!("{}, or an ID", KINDS.join(", ")),
                );
                Err(fault.with_help(format!("`polyrail host undo {kind}`")))
            }
            (_, Some(name)) => {
                let allowed = "a profile behind `tune`, or a check behind `doctor`";
                Err(Fault::usage("[NAME]", name, format!("has no place behind `{kind}`"), allowed))
            }
            (id, None) if self.pristine => Err(conflict("--pristine", &format!("the ID {id}"))),
            (id, None) => Ok((String::new(), Which::Id(id.to_owned()))),
        }
    }
}

pub(super) fn verify(args: &VerifyArgs, place: &Where) -> Result<ExitCode, Fault> {
    let plan = args.planned.read(place)?;
    Ok(changes::check(place, &args.planned.state, &plan, args.wait, args.allow_pending)?)
}

pub(super) fn undo(args: &UndoArgs, place: &Where) -> Result<ExitCode, Fault> {
    let (mut name, which) = args.which()?;
    if let Some(path) = &args.profile_file {
        name = format!("tune {}", profiles::own(path)?.name);
    } else if let Some((kind, one)) = name.split_once(' ') {
        require_known(kind, one, &args.state, place)?;
    }
    Ok(changes::undo(place, &args.state, &name, &which, args.force)?)
}

/// Refuses a profile or check that is neither built in nor was ever applied.
fn require_known(kind: &str, name: &str, state: &State, place: &Where) -> Result<(), TuneError> {
    // Sessions also name the user's own profiles, and checks of earlier versions.
    let sessions = state.dir(place).sessions()?;
    let used = sessions.iter().filter_map(|session| session.name.split_once(' '));
    let mut known: Vec<String> =
        used.filter(|(of, _)| *of == kind).map(|(_, one)| one.to_owned()).collect();
    match kind {
        "tune" => known.extend(Profile::built_in()?.into_iter().map(|one| one.name)),
        _ => known.extend(CHECKS.iter().copied().flatten().map(|one| one.id.to_owned())),
    }
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    known.sort_unstable();
    known.dedup();
    let fault = "is not known and was never applied";
    let (field, allowed) = match kind {
        "tune" => ("profile", known.join(", ")),
        _ => ("check", "the checks that `polyrail doctor --explain` lists".to_owned()),
    };
    Err(TuneError::argument(field, name, fault, allowed))
}

pub(super) fn confirm(state: &State, place: &Where) -> Result<ExitCode, Fault> {
    let open = state.open_sessions("", place)?;
    let Some(last) = open.last() else {
        let (what, allowed) = ("nothing".to_owned(), "what `polyrail host apply` carried out");
        let remedy = "`polyrail host apply` carries a plan out";
        return Err(TuneError::NeverApplied { what, allowed, remedy }.into());
    };
    // Confirm all of them: each may have a guard.
    let waiting: Vec<_> = open.iter().filter(|session| !session.is_confirmed).collect();
    if waiting.is_empty() {
        tell!("polyrail: session {} was confirmed before", last.id);
    }
    for session in waiting {
        session.confirm(&mut RealDisk)?;
        tell!("polyrail: session {} stays", session.id);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the guard: waits, then restores the values of a session unless `confirm` has kept them.
pub(super) fn revert(
    session: &str,
    after: Duration,
    state: &State,
    place: &Where,
) -> Result<ExitCode, Fault> {
    // A failed link may hang up the terminal that started this process. The guard must survive that.
    let _ = rustix::process::setsid();
    std::thread::sleep(after);
    let state = state.dir(place);
    let which = Which::Id(session.to_owned());
    let restored = loop {
        let sessions = state.sessions()?;
        if sessions
            .iter()
            .any(|known| known.id == session && (known.is_confirmed || !known.is_open()))
        {
            return Ok(ExitCode::SUCCESS);
        }
        // The link may have failed. So restore values even if another program has set them since.
        match reset(&mut place.machine(), &mut RealDisk, &state, "", &which, true) {
            // `apply` may still write, or wait for interrupts.
            Err(TuneError::Locked { .. }) => std::thread::sleep(Duration::from_millis(200)),
            ended => break ended?,
        }
    };
    let failed = restored.iter().any(|one| one.failure.is_some());
    Ok(ExitCode::from(if failed { exit::ENVIRONMENT } else { exit::OK }))
}

fn kinds() -> Vec<String> {
    KINDS.map(str::to_owned).into()
}
