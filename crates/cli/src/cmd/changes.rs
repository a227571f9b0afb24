//! What `irq`, `tune` and `nic` share: showing, applying, checking and undoing plans.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polyrail_host::{Sysroot, Topology};
use polyrail_netlink::Routes;
use polyrail_report::{Align, Table, exit};
use polyrail_tune::{
    Applied, ApplyOptions, Blame, Checked, Effect, Machine, Plan, Reach, RealDisk, Session,
    StateDir, SysMachine, Target, TuneError, Which, apply, check_host, is_good, refuse_disruptive,
    reset, verify,
};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::files;
use crate::machine_args::MachineCopy;
use crate::progress::{Progress, show_time};
use crate::stdout::{self, tell};
use crate::values::{folder_to_write, time, word};

/// The version of every JSON here but plans, which have their own; raised when a field changes its
/// meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A result as JSON.
#[derive(Serialize)]
pub(crate) struct Document<'a, T> {
    pub(crate) schema_version: u32,
    #[serde(flatten)]
    pub(crate) fields: &'a T,
}

/// Which machine, and where its sessions are kept.
#[derive(clap::Args)]
pub(crate) struct Where {
    /// Read and write below this folder, which holds copies of /proc and /sys; or read an archive
    /// made by `polyrail topo snapshot`.
    #[arg(long, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    sysroot: Option<MachineCopy>,

    /// The folder for backups and journals.
    #[arg(long, value_name = "DIR", env = "POLYRAIL_STATE_DIR", default_value = StateDir::DEFAULT,
          value_parser = folder_to_write())]
    state_dir: PathBuf,
}

/// How a plan is carried out.
#[derive(clap::Args)]
pub(crate) struct Doing {
    /// Show each file, its value and the new one, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Apply a plan of another machine or boot, or one whose values have changed since, to everything
    /// that matches by PCI address, index and name.
    #[arg(long)]
    force: bool,

    /// Wait this long between writes, so that running traffic suffers one change at a time.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    pace: Duration,

    /// How long to wait for interrupts to arrive at their new CPUs before reporting them as pending.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    settle: Duration,

    /// Apply even changes that may take down, for a moment, an interface by which you reach this host.
    /// The values are restored after --confirm-within, unless you run `polyrail tune confirm`.
    #[arg(long)]
    allow_disruptive: bool,

    /// How long to wait for `polyrail tune confirm`.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time,
        requires = "allow_disruptive")]
    confirm_within: Duration,
}

/// Which session to undo.
#[derive(clap::Args)]
pub(crate) struct Undoing {
    /// Which change to undo, by the ID that `apply` printed [default: the last one that still holds].
    #[arg(value_name = "ID", conflicts_with = "pristine", value_parser = word)]
    id: Option<String>,

    /// Put back every value that was changed since the machine was booted.
    #[arg(long)]
    pristine: bool,

    /// Also undo what was changed before the last boot, what something else has set since, and what a damaged journal
    /// still tells.
    #[arg(long)]
    force: bool,
}

impl Undoing {
    pub(crate) fn new(id: Option<String>, pristine: bool, force: bool) -> Self {
        Self { id, pristine, force }
    }
}

impl Where {
    pub(crate) fn root(&self) -> Sysroot {
        MachineCopy::root(self.sysroot.as_ref())
    }

    /// Refuses to change an archive.
    pub(crate) fn require_writable(&self) -> Result<(), TuneError> {
        require_writable(self.sysroot.as_ref())
    }

    pub(crate) fn machine(&self) -> SysMachine {
        SysMachine::new(self.root())
    }

    pub(crate) fn topology(&self) -> Result<Topology, TuneError> {
        Ok(Topology::read(&self.root())?)
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir::new(&self.state_dir)
    }

    /// The last session of this name that still holds.
    pub(crate) fn last_session(&self, name: &str) -> Result<Option<Session>, TuneError> {
        let here = polyrail_tune::HostId::read(&self.root())?;
        let sessions = self.state().sessions()?;
        let holds = |session: &Session| {
            session.is_open() && session.is_of(name) && session.host.is_same_boot(&here)
        };
        Ok(sessions.into_iter().rfind(holds))
    }
}

/// Reads a plan file. A process with privileges obeys none that another user can change.
pub(crate) fn read_plan(path: &Path) -> Result<Plan, TuneError> {
    let allowed = "what `irq plan -o` or `tune plan -o` wrote";
    let text = files::read_trusted_text(path).map_err(unread("plan", path, allowed))?;
    Plan::parse(&text).map_err(|error| match error {
        TuneError::BadPlan { reason } => {
            TuneError::argument("plan", path.display().to_string(), reason, allowed)
        }
        other => other,
    })
}

/// The text of a file that an argument names.
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

/// Prints a plan: what will change on standard output, the rest beside it.
pub(crate) fn show_plan(plan: &Plan, as_json: bool) -> ExitCode {
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
pub(crate) fn carry_out(
    place: &Where,
    plan: &Plan,
    doing: &Doing,
    as_json: bool,
) -> Result<ExitCode, TuneError> {
    let mut machine = place.machine();
    let root = place.root();
    let reach = Reach::read(&root, if root.is_live() { ssh_interface(&root) } else { None })?;
    if doing.dry_run {
        return dry_run(&mut machine, plan, doing, &reach, as_json);
    }
    place.require_writable()?;
    warn_of(plan);
    let disruptive = refuse_disruptive(plan, &reach, doing.allow_disruptive)?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Without it a signal ends the process at once, and `reset` takes back what was done.
        let _ = flag::register(signal, Arc::clone(&stopped));
    }
    let unguarded = Cell::new(false);
    let guard = |session: &str| {
        if disruptive > 0
            && let Err(error) = spawn_guard(place, session, doing.confirm_within)
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
    let applied = apply(&mut machine, &mut RealDisk, &place.state(), plan, &options)?;
    drop(waiting);
    if disruptive > 0 {
        tell!(
            "polyrail: the old values return in {} s unless you run: polyrail tune confirm",
            doing.confirm_within.as_secs()
        );
    }
    Ok(show_applied(&applied, as_json))
}

/// Compares a plan with the machine and prints the verdict.
pub(crate) fn check(
    place: &Where,
    plan: &Plan,
    wait: Duration,
    pending_is_good: bool,
    as_json: bool,
) -> Result<ExitCode, TuneError> {
    let managed = managed(place)?;
    let waiting =
        Progress::waiting(&format!("waiting for interrupts, {} at most", show_time(wait)));
    let checked = verify(&mut place.machine(), plan, &managed, wait)?;
    drop(waiting);
    let printed = match as_json {
        true => print_list("values", &checked),
        false => print_table(&checked_table(&checked), "the plan has no values to check"),
    };
    Ok(match is_good(&checked, pending_is_good) {
        true => printed,
        false => ExitCode::from(exit::VERDICT),
    })
}

/// The vectors that the kernel refused to move in any session of this boot.
pub(crate) fn managed(place: &Where) -> Result<Vec<Target>, TuneError> {
    let here = polyrail_tune::HostId::read(&place.root())?;
    let sessions = place.state().sessions()?;
    let of_boot = sessions.into_iter().filter(|session| session.host.is_same_boot(&here));
    Ok(of_boot.flat_map(|session| session.managed).collect())
}

/// Takes sessions of this name back.
pub(crate) fn undo(
    place: &Where,
    name: &str,
    undoing: &Undoing,
    as_json: bool,
) -> Result<ExitCode, TuneError> {
    let which = match (&undoing.id, undoing.pristine) {
        (_, true) => Which::Pristine,
        (Some(id), _) => Which::Id(id.clone()),
        (None, _) => Which::Latest,
    };
    place.require_writable()?;
    let mut machine = place.machine();
    let state = place.state();
    let restored = reset(&mut machine, &mut RealDisk, &state, name, &which, undoing.force)?;
    if restored.is_empty() {
        let message = format!("no change of {name} since boot still holds");
        let help = "if it was made with another --state-dir, name that folder";
        stdout::complain(&message, Some(help));
        return Ok(match as_json {
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
            one.value.clone(),
            one.failure.clone().unwrap_or_default(),
        ]);
    }
    let printed = match as_json {
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
    Ok(if failed > 0 { ExitCode::from(exit::ENVIRONMENT) } else { printed })
}

/// Says on standard error what is wrong and what helps.
pub(crate) fn refuse(error: &TuneError) -> ExitCode {
    let code = match error.blame() {
        Blame::Input => exit::USAGE,
        Blame::Environment => exit::ENVIRONMENT,
        Blame::Stop => exit::INTERRUPTED,
    };
    stdout::refuse(error, error.help(), code)
}

/// Writes the result of a command.
pub(crate) fn print(text: &str) -> ExitCode {
    stdout::print(text, exit::OK)
}

/// Writes a table, or this sentence if it has no row.
pub(crate) fn print_table(table: &Table, nothing: &str) -> ExitCode {
    print(&if table.is_empty() { format!("{nothing}\n") } else { stdout::fitted(table) })
}

/// Writes the result of a command, a structure, as JSON with the version of its form.
pub(crate) fn print_json(fields: &impl Serialize) -> ExitCode {
    match serde_json::to_string_pretty(&Document { schema_version: SCHEMA_VERSION, fields }) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => {
            tell!("polyrail: the result can't be written as JSON: {error}");
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// As [`print_json`], for a list, which gets a name.
pub(crate) fn print_list(name: &str, list: &impl Serialize) -> ExitCode {
    print_json(&BTreeMap::from([(name, list)]))
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
    if let Err(error) = refuse_disruptive(plan, reach, doing.allow_disruptive) {
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
        // With --force a plan may be of another machine, where its old values say nothing.
        let old = machine.read(&change.target)?.unwrap_or_else(|| "missing".to_owned());
        table.row([place, old, change.new.clone(), change.what.clone()]);
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
        print_table(&table, "every value is as planned already")
    };
    match &applied.session {
        Some(session) => tell!("polyrail: session {session}; `reset` restores the old values"),
        None => tell!("polyrail: nothing to change"),
    }
    let count = |effect| applied.outcomes.iter().filter(|one| one.effect == effect).count();
    if count(Effect::Pending) > 0 {
        tell!(
            "polyrail: {} interrupts move when they fire next; `verify --wait 5s` checks again",
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

/// The interface by which the SSH client that started this process is reached.
pub(crate) fn ssh_interface(root: &Sysroot) -> Option<String> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    let destination: IpAddr = connection.split_whitespace().next()?.parse().ok()?;
    let wanted = Routes::open().ok()?.interface(destination, None).ok()??;
    let names = root.list("/sys/class/net").ok()?;
    let is_wanted = |name: &String| {
        let index = root.read_parsed::<u32>(format!("/sys/class/net/{name}/ifindex"));
        matches!(index, Ok(Some(index)) if index == wanted)
    };
    names.into_iter().find(is_wanted)
}

/// Starts the process that takes the session back unless somebody confirms it. It outlives this
/// one and the terminal.
fn spawn_guard(place: &Where, session: &str, after: Duration) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["tune", "revert", session, "--after"]);
    command.arg(format!("{}ms", after.as_millis()));
    command.arg("--state-dir").arg(&place.state_dir);
    if let Some(root) = &place.sysroot {
        command.arg("--sysroot").arg(&root.path);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(|_| ())
}

/// Refuses to write into an archive, which is unpacked for reading and then gone.
///
/// # Errors
/// [`TuneError::Argument`] if it is one.
pub(crate) fn require_writable(copy: Option<&MachineCopy>) -> Result<(), TuneError> {
    match copy {
        Some(copy) if !copy.path.is_dir() => Err(TuneError::argument(
            "--sysroot",
            copy.path.display().to_string(),
            "is an archive, in which nothing can be changed",
            "an unpacked archive, or --dry-run",
        )),
        _ => Ok(()),
    }
}
