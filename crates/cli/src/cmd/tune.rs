//! `polyrail tune`: settings for fast TCP, by profile.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use polyrail_config::steers;
use polyrail_report::{Align, Table, exit};
use polyrail_tune::profile::{self, Aim, Profile, Subject};
use polyrail_tune::{RealDisk, TuneError, Which, reset};

use super::changes::{self, Doing, Undoing, Where};
use crate::files;
use crate::files::OutFile;
use crate::stdout::{fitted, refuse_place, tell};
use crate::unwritten::Unwritten;
use crate::values::{Refusal, completed, file_to_read, file_to_write, interface, time, word};

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the profiles, or what one wants and why.
    List {
        /// The profile.
        #[arg(hide_possible_values = true, value_parser = completed(profile_name, profiles))]
        profile: Option<String>,
    },
    /// Show what a profile would change here; changes nothing.
    Plan {
        #[command(flatten)]
        choice: Choice,
        /// Write the plan to this file, for `tune apply --plan FILE`.
        #[arg(short, long, value_name = "FILE", value_parser = file_to_write())]
        output: Option<OutFile>,
        /// Print the plan as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Where,
    },
    /// Carry a profile out, all of it or nothing. The old values are kept, so that `reset` can put them back.
    Apply {
        #[command(flatten)]
        choice: Choice,
        /// The plan file, in place of a profile.
        #[arg(long, value_name = "FILE", value_parser = file_to_read(), conflicts_with_all = ["profile", "profile_file", "nic"])]
        plan: Option<PathBuf>,
        #[command(flatten)]
        doing: Doing,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Where,
    },
    /// Tell whether the values of the last `tune apply` still hold.
    Verify {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Where,
    },
    /// Put the values back that a profile has changed.
    Reset {
        /// The profile [default: the last one that still holds].
        #[arg(hide_possible_values = true, value_parser = completed(profile_name, profiles))]
        profile: Option<String>,
        /// The profile that `tune apply --profile-file` took from this file; it may have changed nothing.
        #[arg(long, value_name = "FILE", value_parser = file_to_read(), conflicts_with = "profile")]
        profile_file: Option<PathBuf>,
        /// One session.
        #[arg(long, value_name = "ID", conflicts_with = "pristine", value_parser = word)]
        session: Option<String>,
        /// Restore every value that was changed since the machine was booted.
        #[arg(long)]
        pristine: bool,
        /// Also sessions of another boot, and the readable lines of a damaged journal.
        #[arg(long)]
        force: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Where,
    },
    /// Keep the last session: its guard then restores nothing. Use it if you can still reach the machine.
    Confirm {
        #[command(flatten)]
        place: Where,
    },
    /// Restore the values of a session after a while, unless somebody confirms it.
    #[command(hide = true)]
    Revert {
        #[arg(value_parser = word)]
        session: String,
        #[arg(long, value_parser = time)]
        after: Duration,
        #[command(flatten)]
        place: Where,
    },
}

#[derive(clap::Args)]
struct Choice {
    /// The profile: throughput, latency or zerocopy.
    #[arg(hide_possible_values = true, value_parser = completed(profile_name, profiles))]
    profile: Option<String>,

    /// Your own profile, from a YAML file.
    #[arg(long, value_name = "FILE", value_parser = file_to_read(), conflicts_with = "profile")]
    profile_file: Option<PathBuf>,

    /// Settings of these interfaces only, separated by commas.
    #[arg(long, value_name = "NICS", value_delimiter = ',', value_parser = interface)]
    nic: Vec<String>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match &args.command {
        Command::List { profile } => list(profile.as_deref()),
        Command::Plan { choice, output, json, place } => {
            plan(choice, output.as_deref(), *json, place)
        }
        Command::Apply { choice, plan, doing, json, place } => {
            apply(choice, plan.as_ref(), doing, *json, place)
        }
        Command::Verify { json, place } => verify(*json, place),
        Command::Reset { profile, profile_file, session, pristine, force, json, place } => {
            let undoing = Undoing::new(session.clone(), *pristine, *force);
            match profile_file {
                Some(path) => own_profile(path).and_then(|profile| {
                    changes::undo(place, &format!("tune {}", profile.name), &undoing, *json)
                }),
                None => put_back(profile.as_deref(), &undoing, *json, place),
            }
        }
        Command::Confirm { place } => confirm(place),
        Command::Revert { session, after, place } => revert(session, *after, place),
    };
    result.unwrap_or_else(|error| changes::refuse(&error))
}

fn list(profile: Option<&str>) -> Result<ExitCode, TuneError> {
    let Some(name) = profile else {
        let mut table = Table::default().column("profile", Align::Left).column("for", Align::Left);
        for profile in Profile::built_in()? {
            table.row([profile.name, profile.about]);
        }
        return Ok(changes::print(&fitted(&table)));
    };
    let mut table = Table::default()
        .column("setting", Align::Left)
        .column("wanted", Align::Left)
        .column("why", Align::Left)
        .column("source", Align::Left);
    for rule in Profile::named(name)?.rules {
        let subject = match &rule.subject {
            Subject::File(path) => path.clone(),
            Subject::Ethtool(setting) => format!("ethtool {setting}"),
        };
        let field = rule.field.map_or_else(String::new, |field| format!(" [{}]", field + 1));
        let aim = match &rule.aim {
            Aim::AtLeast(least) => format!("at least {least}"),
            Aim::AtMost(most) => format!("at most {most}"),
            Aim::Equals(value) => value.clone(),
            Aim::Maximum => "the maximum".to_owned(),
            Aim::NoCpus => "no CPU".to_owned(),
            Aim::NearQueue => "CPUs of the node".to_owned(),
        };
        table.row([subject + &field, aim, rule.why, rule.source]);
    }
    Ok(changes::print(&fitted(&table)))
}

fn make_plan(choice: &Choice, place: &Where) -> Result<polyrail_tune::Plan, TuneError> {
    let profile = match (&choice.profile_file, &choice.profile) {
        (Some(path), _) => own_profile(path)?,
        (None, Some(name)) => Profile::named(name)?,
        (None, None) => {
            let allowed = "what `polyrail tune list` shows, or --profile-file";
            return Err(TuneError::argument("profile", "", "is left out", allowed));
        }
    };
    profile::plan(&mut place.machine(), &place.topology()?, &profile, &choice.nic)
}

/// A user's own profile, which is called like its file.
fn own_profile(path: &Path) -> Result<Profile, TuneError> {
    let allowed = "a profile as docs/tune.md describes it";
    let text = changes::read_argument("--profile-file", path, allowed)?;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("own");
    Profile::parse(&text, name, &path.display().to_string())
}

fn plan(
    choice: &Choice,
    output: Option<&Path>,
    as_json: bool,
    place: &Where,
) -> Result<ExitCode, TuneError> {
    let plan = make_plan(choice, place)?;
    if let Some(path) = output
        && let Err(error) = files::replace(path, plan.to_json())
    {
        return Ok(refuse_place(&Unwritten::at(path)(error)));
    }
    Ok(changes::show_plan(&plan, as_json))
}

fn apply(
    choice: &Choice,
    plan: Option<&PathBuf>,
    doing: &Doing,
    as_json: bool,
    place: &Where,
) -> Result<ExitCode, TuneError> {
    let plan = match plan {
        Some(path) => changes::read_plan(path)?,
        None => make_plan(choice, place)?,
    };
    changes::carry_out(place, &plan, doing, as_json)
}

fn verify(as_json: bool, place: &Where) -> Result<ExitCode, TuneError> {
    match place.last_session("tune")? {
        Some(session) => changes::check(place, &session.plan, Duration::ZERO, true, as_json),
        None => Err(never_applied("no profile")),
    }
}

fn put_back(
    profile: Option<&str>,
    undoing: &Undoing,
    as_json: bool,
    place: &Where,
) -> Result<ExitCode, TuneError> {
    let Some(profile) = profile else {
        return changes::undo(place, "tune", undoing, as_json);
    };
    let name = format!("tune {profile}");
    // The sessions know the user's own profiles that were applied.
    let sessions = place.state().sessions()?;
    let mut known: Vec<String> = Profile::built_in()?.into_iter().map(|one| one.name).collect();
    let used = sessions.iter().filter_map(|session| session.name.strip_prefix("tune "));
    known.extend(used.map(str::to_owned));
    if !known.iter().any(|known| known == profile) {
        known.sort_unstable();
        known.dedup();
        let fault = "is not known and was never applied";
        return Err(TuneError::argument("profile", profile, fault, known.join(", ")));
    }
    changes::undo(place, &name, undoing, as_json)
}

fn confirm(place: &Where) -> Result<ExitCode, TuneError> {
    match place.last_session("")? {
        Some(session) => {
            session.confirm(&mut RealDisk)?;
            tell!("polyrail: session {} stays", session.id);
            Ok(ExitCode::SUCCESS)
        }
        None => Err(never_applied("nothing")),
    }
}

/// Reads what can be the name of a profile: users' own are called as their files are.
fn profile_name(text: &str) -> Result<String, Refusal> {
    let is_bad = |one: char| one == '/' || steers(one);
    if text.is_empty() || text.len() > 255 || text.starts_with('-') || text.contains(is_bad) {
        let refusal = Refusal::new("is no name of a profile", "what `polyrail tune list` shows");
        return Err(refusal.with_help("name a file of your own with --profile-file"));
    }
    Ok(text.to_owned())
}

/// The names of those that come with the program.
fn profiles() -> Vec<String> {
    let built_in = Profile::built_in().unwrap_or_default();
    built_in.into_iter().map(|profile| profile.name).collect()
}

fn never_applied(what: &'static str) -> TuneError {
    let remedy = "`polyrail tune apply PROFILE` carries one out";
    TuneError::NeverApplied { what, allowed: "what `polyrail tune apply` carried out", remedy }
}

fn revert(session: &str, after: Duration, place: &Where) -> Result<ExitCode, TuneError> {
    // If the link fails, the terminal that started this may hang up, and must not end this process.
    let _ = rustix::process::setsid();
    std::thread::sleep(after);
    let state = place.state();
    let sessions = state.sessions()?;
    if sessions.iter().any(|known| known.id == session && known.is_confirmed) {
        return Ok(ExitCode::SUCCESS);
    }
    let which = Which::Id(session.to_owned());
    // The link may have failed, so a value that something else has set since goes back, too.
    let restored = reset(&mut place.machine(), &mut RealDisk, &state, "", &which, true)?;
    let failed = restored.iter().any(|one| one.failure.is_some());
    Ok(ExitCode::from(if failed { exit::ENVIRONMENT } else { exit::OK }))
}
