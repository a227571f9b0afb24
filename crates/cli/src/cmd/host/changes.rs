//! Shows, applies, checks and undoes plans.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polyrail_report::{Align, Table, exit};
use polyrail_tune::{
    Applied, ApplyOptions, Checked, Effect, Machine, Plan, Reach, RealDisk, SysMachine, Target,
    TuneError, Which, apply, check_host, is_good, refuse_disruptive, reset, verify,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::output::{print, print_json, print_list, print_table};
use super::place::{State, Where};
use crate::files;
use crate::progress::{Progress, show_time};
use crate::stdout::{self, excerpt, tell};
use crate::values::{time, time_within};

/// Options of carrying out a plan.
#[derive(clap::Args)]
pub(super) struct Doing {
    /// Show each file, its value and the new one, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Apply a plan of another machine or boot, or one whose values have changed since, to everything
    /// that matches by PCI address, index and name.
    #[arg(long)]
    force: bool,

    /// Wait this long between writes, so that running traffic suffers one change at a time.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    pace: Duration,

    /// The longest wait for interrupts to arrive at their new CPUs; later ones are reported as pending.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    settle: Duration,

    /// Apply even changes that may take down, for a moment, an interface by which you reach this host.
    ///
    /// The values are restored after this time, at least 1s, unless you run `polyrail host confirm`. Without a time that
    /// is 60s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
        default_missing_value = "60s",
        value_parser = time_within(Duration::from_secs(1), Duration::from_secs(86_400), "1s to 24h"))]
    allow_disruptive: Option<Duration>,
}

/// Reads a plan file. A privileged process refuses a file that another user can change.
pub(super) fn read_plan(path: &Path) -> Result<Plan, TuneError> {
    let allowed = "what `polyrail host plan -o` wrote";
    let text = files::read_trusted_text(path).map_err(|source| {
        // Only the error of a file that others can change contains `allowed:`.
        match source.to_string().split_once("; allowed: ") {
            Some((fault, _)) if source.kind() == io::ErrorKind::InvalidData => {
                TuneError::UntrustedPlan { path: path.to_owned(), fault: fault.to_owned() }
            }
            _ => unread("plan", path, allowed)(source),
        }
    })?;
    Plan::parse(&text).map_err(|error| match error {
        TuneError::BadPlan { reason } => {
            TuneError::argument("plan", path.display().to_string(), reason, allowed)
        }
        other => other,
    })
}

/// Returns the text of a file that an argument names.
pub(crate) fn read_argument(
    field: &'static str,
    path: &Path,
    allowed: &str,
) -> Result<String, TuneError> {
    files::read_text(path).map_err(unread(field, path, allowed))
}

fn unread(
    field: &'static str,
    path: &Path,
    allowed: &str,
) -> impl FnOnce(std::io::Error) -> TuneError {
    move |source| match exit::of_io(&source) {
        exit::USAGE => {
            let fault = format!("can't be read: {source}");
            TuneError::argument(field, path.display().to_string(), fault, allowed)
        }
        _ => TuneError::Unread { field, path: path.to_owned(), source },
    }
}

/// Prints a plan: changes on standard output, the rest on standard error.
pub(super) fn show_plan(plan: &Plan, as_json: bool) -> ExitCode {
    warn_of(plan);
    if as_json {
        return print(&plan.to_json());
    }
    let mut table = Table::default()
        .column("what", Align::Left)
        .column("target", Align::Left)
        .column("old", Align::Left)
        .column("new", Align::Left)
        .column("why", Align::Left);
    for change in &plan.changes {
        table.row([
            change.what.clone(),
            short_target(&change.target),
            change.old.clone(),
            change.new.clone(),
            change.reason.clone(),
        ]);
    }
    for skipped in &plan.skipped {
        table.row([
            skipped.what.clone(),
            short_target(&skipped.target),
            "-".to_owned(),
            "skipped".to_owned(),
            skipped.reason.clone(),
        ]);
    }
    let result = print_table(&table, "every value is as planned already");
    tell!(
        "polyrail: {} to change, {} as planned already, {} skipped",
        plan.changes.len(),
        plan.unchanged.len(),
        plan.skipped.len()
    );
    result
}

/// Carries a plan out, or shows what it would do.
pub(super) fn carry_out(
    place: &Where,
    state: &State,
    plan: &Plan,
    doing: &Doing,
) -> Result<ExitCode, TuneError> {
    let mut machine = place.machine();
    let reach = place.reach()?;
    if doing.dry_run {
        return dry_run(&mut machine, plan, doing, &reach, place.json);
    }
    place.require_writable()?;
    warn_of(plan);
    let disruptive = refuse_disruptive(plan, &reach, doing.allow_disruptive.is_some())?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // If this fails, a signal ends the process at once, and `undo` restores the values.
        let _ = flag::register(signal, Arc::clone(&stopped));
    }
    let within = doing.allow_disruptive.unwrap_or_default();
    let unguarded = Cell::new(false);
    let guard = |session: &str| {
        if disruptive > 0
            && let Err(error) = spawn_guard(place, state, session, within)
        {
            tell!("polyrail: the guard that would restore the values can't start: {error}");
            unguarded.set(true);
        }
    };
    let options = ApplyOptions {
        force: doing.force,
        pace: doing.pace,
        settle: doing.settle,
        stop: &|| stopped.load(Ordering::Relaxed) || unguarded.get(),
        begun: &guard,
    };
    let waiting = Progress::waiting("writing values and reading them back");
    let applied = apply(&mut machine, &mut RealDisk, &state.dir(place), plan, &options)?;
    drop(waiting);
    if disruptive > 0 {
        tell!(
            "polyrail: the old values return in {} unless you run: polyrail host confirm",
            show_time(within)
        );
    }
    Ok(show_applied(&applied, place.json))
}

/// Compares a plan with the machine and prints the result.
pub(super) fn check(
    place: &Where,
    state: &State,
    plan: &Plan,
    wait: Duration,
    pending_is_good: bool,
) -> Result<ExitCode, TuneError> {
    if let Err(error) = check_host(&mut place.machine(), plan, false) {
        tell!("polyrail: {error}; its values are compared with those here");
    }
    let managed = managed(place, state)?;
    let waiting =
        Progress::waiting(&format!("waiting for interrupts, {} at most", show_time(wait)));
    let checked = verify(&mut place.machine(), plan, &managed, wait)?;
    drop(waiting);
    let printed = match place.json {
        true => print_list("values", &checked),
        false => print_table(&checked_table(&checked), "the plan has no values to check"),
    };
    Ok(match is_good(&checked, pending_is_good) {
        true => printed,
        false => ExitCode::from(exit::VERDICT),
    })
}

/// Interrupt vectors that the kernel refused to move in any session of this boot.
pub(super) fn managed(place: &Where, state: &State) -> Result<Vec<Target>, TuneError> {
    let here = polyrail_tune::HostId::read(&place.root())?;
    let sessions = state.dir(place).sessions()?;
    let of_boot = sessions.into_iter().filter(|session| session.host.is_same_boot(&here));
    Ok(of_boot.flat_map(|session| session.managed).collect())
}

/// Undoes sessions of this name. An empty name means all sessions.
pub(super) fn undo(
    place: &Where,
    state: &State,
    name: &str,
    which: &Which,
    force: bool,
) -> Result<ExitCode, TuneError> {
    place.require_writable()?;
    let mut machine = place.machine();
    let restored = reset(&mut machine, &mut RealDisk, &state.dir(place), name, which, force)?;
    if restored.is_empty() {
        let of = if name.is_empty() { String::new() } else { format!(" of {name}") };
        let message = format!("no change{of} since boot still holds");
        let help = "if it was made with another --state-dir, name that folder";
        stdout::complain(&message, Some(help));
        return Ok(match place.json {
            true => print_list("restored", &restored),
            false => print("there is nothing to undo\n"),
        });
    }
    let changed = restored.iter().filter(|one| one.found != one.value || one.failure.is_some());
    let mut table = Table::default()
        .column("place", Align::Left)
        .column("was", Align::Left)
        .column("is again", Align::Left)
        .column("fault", Align::Left);
    for one in changed {
        table.row([
            one.place.clone(),
            one.found.clone(),
            if one.failure.is_none() { one.value.clone() } else { "-".to_owned() },
            one.failure.clone().unwrap_or_default(),
        ]);
    }
    let printed = match place.json {
        true => print_list("restored", &restored),
        false => print_table(&table, "every value is as it was before already"),
    };
    let left = restored.iter().filter(|one| one.is_of_others).count();
    let failed = restored.iter().filter(|one| one.failure.is_some()).count() - left;
    let mut counts = format!("{} values checked, {failed} could not be restored", restored.len());
    if left > 0 {
        counts += &format!(
            ", {left} stay, as something else has set them since (--pristine --force restores them)"
        );
    }
    tell!("polyrail: {counts}");
    if failed == 0
        && let Some(session) = state.last_session(name, place)?
    {
        let (id, of) = (&session.id, excerpt(&session.name));
        tell!("polyrail: session {id} of {of} still holds; `polyrail host undo {id}` undoes it");
    }
    Ok(if failed > 0 { ExitCode::from(exit::ENVIRONMENT) } else { printed })
}

fn dry_run(
    machine: &mut SysMachine,
    plan: &Plan,
    doing: &Doing,
    reach: &Reach,
    as_json: bool,
) -> Result<ExitCode, TuneError> {
    check_host(machine, plan, doing.force)?;
    let differences = plan.differences(machine)?;
    if !differences.is_empty() && !doing.force {
        return Err(TuneError::Drifted { differences });
    }
    warn_of(plan);
    if let Err(error) = refuse_disruptive(plan, reach, doing.allow_disruptive.is_some()) {
        let message = format!("without --dry-run this would be refused: {error}");
        stdout::complain(&message, error.help().as_deref());
    }
    if as_json {
        return Ok(print(&plan.to_json()));
    }
    let mut table = Table::default()
        .column("place", Align::Left)
        .column("old", Align::Left)
        .column("new", Align::Left)
        .column("what", Align::Left);
    for change in &plan.changes {
        let place = machine.place(&change.target);
        // With --force the plan may be of another machine, whose old values mean nothing here.
        let old = machine.read(&change.target)?.unwrap_or_else(|| "missing".to_owned());
        table.row([place, old, change.new.clone(), change.what.clone()]);
    }
    for skipped in &plan.skipped {
        let place = machine.place(&skipped.target);
        table.row([place, "-".to_owned(), "skipped".to_owned(), skipped.what.clone()]);
    }
    let printed = print_table(&table, "every value is as planned already");
    tell!("polyrail: nothing was changed");
    Ok(printed)
}

fn show_applied(applied: &Applied, as_json: bool) -> ExitCode {
    let printed = if as_json {
        print_json(applied)
    } else {
        let mut table = Table::default()
            .column("what", Align::Left)
            .column("target", Align::Left)
            .column("old", Align::Left)
            .column("new", Align::Left)
            .column("effect", Align::Left);
        for outcome in &applied.outcomes {
            let effect = match outcome.effect {
                Effect::Ok => "ok",
                Effect::Pending => "pending",
                Effect::Managed => "skipped (managed)",
                Effect::Refused => "skipped (refused by the driver)",
                Effect::Missing => "missing",
            };
            table.row([
                outcome.change.what.clone(),
                short_target(&outcome.change.target),
                outcome.change.old.clone(),
                outcome.change.new.clone(),
                effect.to_owned(),
            ]);
        }
        for skipped in &applied.skipped {
            table.row([
                skipped.what.clone(),
                short_target(&skipped.target),
                "-".to_owned(),
                "-".to_owned(),
                format!("skipped ({})", skipped.reason),
            ]);
        }
        print_table(&table, "every value is as planned already")
    };
    match &applied.session {
        Some(session) => {
            tell!(
                "polyrail: session {session}; `polyrail host undo {session}` restores the old values"
            )
        }
        None => tell!("polyrail: nothing to change"),
    }
    let count = |effect| applied.outcomes.iter().filter(|one| one.effect == effect).count();
    if count(Effect::Pending) > 0 {
        tell!(
            "polyrail: {} interrupts move when they fire next; `polyrail host verify --wait 5s` checks again",
            count(Effect::Pending)
        );
    }
    match count(Effect::Missing) {
        0 => printed,
        _ => ExitCode::from(exit::VERDICT),
    }
}

fn checked_table(checked: &[Checked]) -> Table {
    let mut table = Table::default()
        .column("what", Align::Left)
        .column("target", Align::Left)
        .column("planned", Align::Left)
        .column("set", Align::Left)
        .column("effective", Align::Left)
        .column("state", Align::Left)
        .column("why", Align::Left);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for one in checked {
        table.row([
            one.what.clone(),
            short_target(&one.target),
            one.wanted.clone(),
            or_dash(&one.found),
            or_dash(&one.effective),
            one.state.word().to_owned(),
            one.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn short_target(target: &Target) -> String {
    match target {
        Target::Irq(id) => format!("{}#{}", id.pci, id.index),
        Target::File { path } => path.clone(),
        Target::Ethtool { setting, .. } => setting.clone(),
        Target::Rss { .. } => "RSS table".to_owned(),
        Target::IrqbalanceService | Target::IrqbalanceProcess { .. } => target.to_string(),
    }
}

fn warn_of(plan: &Plan) {
    for warning in &plan.warnings {
        tell!("polyrail: {warning}");
    }
}

/// Starts the guard: a process that undoes the session unless `polyrail host confirm` keeps it. The
/// guard outlives this process and the terminal.
fn spawn_guard(place: &Where, state: &State, session: &str, after: Duration) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["host", "revert", session, "--after"]);
    command.arg(format!("{}ms", after.as_millis()));
    command.arg("--state-dir").arg(state.dir(place).path());
    if let Some(root) = &place.sysroot {
        command.arg("--sysroot").arg(&root.path);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(|_| ())
}
