//! `polyrail irq`: which CPUs the interrupts of network interfaces go to.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use polyrail_host::CpuSet;
use polyrail_host::bindings::Bindings;
use polyrail_report::{Align, Table};
use polyrail_tune::irq::{self, IrqMap, Policy, PolicyOptions, Shown};
use polyrail_tune::{Plan, TuneError};

use super::changes::{self, Doing, Undoing, Where};
use crate::files;
use crate::files::OutFile;
use crate::progress::{Progress, show_time};
use crate::signals;
use crate::stdout::{refuse_place, tell};
use crate::unwritten::Unwritten;
use crate::values::{bindings, cpus, file_to_read, file_to_write, interface, some_cpus, time};

mod watch;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the interrupts of each interface: their queue, the CPUs that they may go to and do go to, and how many come.
    Show(ShowArgs),
    /// Choose a CPU for the interrupt of each queue, and show old, new and why; changes nothing.
    Plan(PlanArgs),
    /// Carry a plan out, all of it or nothing. The old values are kept, so that `reset` can put them back.
    Apply(ApplyArgs),
    /// Tell whether a plan still holds: ok, pending, drift, skipped or missing.
    ///
    /// The exit code is 1 if anything is not ok. An interrupt is pending until it comes the next
    /// time, which on an idle queue may be long; `--wait` gives it time, `--allow-pending` accepts it.
    Verify(VerifyArgs),
    /// Put the values back that a plan has changed. Works also after `apply` was killed halfway.
    Reset(ResetArgs),
    /// Watch who changes planned values back: a process, a driver or the kernel.
    Watch(watch::WatchArgs),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Only these interfaces.
    #[arg(value_parser = interface)]
    nics: Vec<String>,

    /// How long to count interrupts; 0s shows the counts since boot.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    interval: Duration,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
struct Planning {
    /// How to place queues: `split` gives each a core of its own on the interface's node, apart
    /// from CPU 0, workers and other interfaces; `numa` deals out the node's CPUs; `spread` those of
    /// the machine; `single` takes one; `colocate` puts each beside its worker.
    #[arg(long, default_value = "split", conflicts_with = "map",
          value_parser = PossibleValuesParser::new(Policy::ALL.iter().map(|(word, _)| *word))
              .map(|word| policy(&word)))]
    policy: Policy,

    /// Place queues as this YAML file says; docs/irq.md shows one.
    #[arg(long, value_name = "FILE", value_parser = file_to_read())]
    map: Option<PathBuf>,

    /// Use these CPUs only.
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: Option<CpuSet>,

    /// Never use these CPUs.
    #[arg(long, value_name = "CPUS", default_value = "", value_parser = cpus)]
    avoid: CpuSet,

    /// The CPUs of threads that send, by interface: eth1:8-21;eth2:22-35.
    #[arg(long, value_name = "BINDINGS", default_value = "", value_parser = bindings)]
    tx_bindings: Bindings,

    /// The CPUs of threads that receive, by interface.
    #[arg(long, value_name = "BINDINGS", default_value = "", value_parser = bindings)]
    rx_bindings: Bindings,

    /// Also move the interrupts of disks and those that are for no queue, if the map names them.
    #[arg(long, requires = "map")]
    include_others: bool,

    /// What to do with irqbalance, which moves interrupts by itself: `leave` warns of it, `stop` stops it
    /// until `irq reset` or the next boot starts it again.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "leave")]
    irqbalance: Irqbalance,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Irqbalance {
    Leave,
    Stop,
}

#[derive(clap::Args)]
struct PlanArgs {
    /// Only these interfaces.
    #[arg(value_parser = interface)]
    nics: Vec<String>,

    #[command(flatten)]
    planning: Planning,

    /// Write the plan to this file, for `irq apply FILE`.
    #[arg(short, long, value_name = "FILE", value_parser = file_to_write())]
    output: Option<OutFile>,

    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
struct ApplyArgs {
    /// The plan file; without it, a plan is made as `irq plan` would.
    #[arg(value_parser = file_to_read())]
    plan: Option<PathBuf>,

    #[command(flatten)]
    planning: Planning,

    /// Only these interfaces, separated by commas; not with a plan file.
    #[arg(long, value_name = "NICS", value_delimiter = ',', value_parser = interface,
          conflicts_with = "plan")]
    nic: Vec<String>,

    #[command(flatten)]
    doing: Doing,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
struct VerifyArgs {
    /// The plan file [default: the plan applied last].
    #[arg(value_parser = file_to_read())]
    plan: Option<PathBuf>,

    /// Give pending interrupts this long to come.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    wait: Duration,

    /// Exit with 0 even if some interrupts have not fired yet.
    #[arg(long)]
    allow_pending: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
struct ResetArgs {
    #[command(flatten)]
    undoing: Undoing,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match &args.command {
        Command::Show(args) => show(args),
        Command::Plan(args) => plan(args),
        Command::Apply(args) => apply(args),
        Command::Verify(args) => verify(args),
        Command::Reset(args) => changes::undo(&args.place, "irq", &args.undoing, args.json),
        Command::Watch(args) => watch::run(args),
    };
    result.unwrap_or_else(|error| changes::refuse(&error))
}

/// The plan of a file, or that of the last session that still holds.
fn plan_or_last(path: Option<&PathBuf>, place: &Where) -> Result<Plan, TuneError> {
    match path {
        Some(path) => changes::read_plan(path),
        None => match place.last_session("irq")? {
            Some(session) => Ok(session.plan),
            None => {
                let remedy = "name a plan file, or carry one out with `polyrail irq apply`";
                Err(TuneError::NeverApplied { what: "no plan", allowed: "a plan file", remedy })
            }
        },
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode, TuneError> {
    let root = args.place.root();
    let topology = args.place.topology()?;
    // Without it they end the process all the same, with the signal's own code.
    let _ = signals::end_at_once();
    let waiting =
        Progress::waiting(&format!("counting interrupts for {}", show_time(args.interval)));
    let followed = topology.follow(&args.nics).map_err(|nic| {
        let names: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        TuneError::unknown_interface(&nic, &names)
    })?;
    let shown = irq::show(&root, &topology, &followed.nics, args.interval)?;
    drop(waiting);
    let absent = irq::without_vectors(&root, &topology, &followed.nics)?;
    for note in followed.notes.iter().chain(&topology.unread).chain(&absent) {
        tell!("polyrail: {note}");
    }
    for (pid, name) in irq::rivals_running(&root) {
        tell!("polyrail: {name} (process {pid}) runs and may move interrupts by itself");
    }
    Ok(match args.json {
        true => changes::print_list("vectors", &shown),
        false => changes::print_table(
            &shown_table(&shown),
            "no network card here has interrupts of its own",
        ),
    })
}

fn shown_table(shown: &[Shown]) -> Table {
    let mut table = Table::default()
        .column("nic", Align::Left)
        .column("vector", Align::Left)
        .column("irq", Align::Right)
        .column("role", Align::Left)
        .column("queue", Align::Right)
        .column("wanted", Align::Left)
        .column("effective", Align::Left)
        .column("node", Align::Left)
        .column("per s", Align::Right)
        .column("total", Align::Right)
        .column("name", Align::Left);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for one in shown {
        let node = match (one.nic_node, one.is_on_node) {
            (Some(node), Some(true)) => format!("{node}"),
            (Some(node), Some(false)) => format!("off {node}"),
            (Some(node), None) => format!("{node} ?"),
            (None, _) => "unknown".to_owned(),
        };
        table.row([
            one.nic.clone(),
            format!("{}#{}", one.pci, one.index),
            one.irq.to_string(),
            one.role.word().to_owned(),
            or_dash(one.queue.map(|queue| queue.to_string())),
            or_dash(one.wanted.clone()),
            or_dash(one.effective.clone()),
            node,
            or_dash(one.per_second.map(|rate| format!("{rate:.0}"))),
            one.total.to_string(),
            one.action.clone(),
        ]);
    }
    table
}

fn policy(word: &str) -> Policy {
    let found = Policy::ALL.iter().find(|(known, _)| *known == word);
    // clap lets no other word through.
    found.map_or(Policy::Split, |(_, policy)| *policy)
}

fn make_plan(nics: &[String], planning: &Planning, place: &Where) -> Result<Plan, TuneError> {
    let topology = place.topology()?;
    let mut machine = place.machine();
    let mut plan = match &planning.map {
        Some(path) => {
            let name = path.display().to_string();
            let allowed = "a map as docs/irq.md describes it";
            let text = changes::read_argument("--map", path, allowed)?;
            let map = IrqMap::parse(&text, &name)?;
            irq::plan_from_map(&mut machine, &topology, &map, planning.include_others)?
        }
        None => {
            let workers = |bindings: &Bindings| bindings.entries.iter().cloned().collect();
            let options = PolicyOptions {
                nics: nics.to_vec(),
                cpus: planning.cpus.clone(),
                avoid: planning.avoid.clone(),
                tx_workers: workers(&planning.tx_bindings),
                rx_workers: workers(&planning.rx_bindings),
            };
            irq::plan(&mut machine, &topology, planning.policy, &options)?
        }
    };
    if planning.irqbalance == Irqbalance::Stop {
        plan = irq::stop_irqbalance(&place.root(), plan);
    }
    plan.warn_of_rivals(&place.root());
    Ok(plan)
}

fn plan(args: &PlanArgs) -> Result<ExitCode, TuneError> {
    let plan = make_plan(&args.nics, &args.planning, &args.place)?;
    if let Some(path) = &args.output
        && let Err(error) = files::replace(path, plan.to_json())
    {
        return Ok(refuse_place(&Unwritten::at(path)(error)));
    }
    Ok(changes::show_plan(&plan, args.json))
}

fn apply(args: &ApplyArgs) -> Result<ExitCode, TuneError> {
    let plan = match &args.plan {
        Some(path) => {
            let plan = changes::read_plan(path)?;
            match args.planning.irqbalance {
                Irqbalance::Leave => plan,
                Irqbalance::Stop => irq::stop_irqbalance(&args.place.root(), plan),
            }
        }
        None => make_plan(&args.nic, &args.planning, &args.place)?,
    };
    changes::carry_out(&args.place, &plan, &args.doing, args.json)
}

fn verify(args: &VerifyArgs) -> Result<ExitCode, TuneError> {
    let plan = plan_or_last(args.plan.as_ref(), &args.place)?;
    changes::check(&args.place, &plan, args.wait, args.allow_pending, args.json)
}
