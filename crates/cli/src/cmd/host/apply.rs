//! `polyrail host plan` and `apply`: make plans, and carry them out.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use polyrail_host::CpuSet;
use polyrail_host::bindings::Bindings;
use polyrail_report::exit;
use polyrail_tune::irq::{Policy, stop_irqbalance};
use polyrail_tune::{Plan, nic};

use super::changes::{self, Doing};
use super::irq::Placing;
use super::place::{State, Where};
use super::subject::{Subject, What};
use super::words::{excess, given, refuse_others};
use super::{bindings, fix, irq, profiles};
use crate::fault::Fault;
use crate::files;
use crate::files::OutFile;
use crate::stdout::{excerpt, tell};
use crate::unwritten::Unwritten;
use crate::values::{
    bindings as read_bindings, completed, cpus, file_or_stdout, file_to_read, interface, some_cpus,
    word_or_file,
};

#[derive(clap::Args)]
pub(super) struct PlanArgs {
    /// The subject; --help explains each.
    #[arg(value_enum)]
    what: What,

    #[command(flatten)]
    values: Values,

    #[command(flatten)]
    choice: Choice,

    /// The placement of the queues of `irq` [default: split].
    ///
    /// `split` gives each a core of its own on the interface's node, apart from CPU 0, workers and other
    /// interfaces; `numa` deals out the node's CPUs; `spread` those of the machine; `single` takes one;
    /// `colocate` puts each beside its worker.
    #[arg(long,
          value_parser = PossibleValuesParser::new(Policy::ALL.iter().map(|(word, _)| *word))
              .map(|word| policy(&word)))]
    policy: Option<Policy>,

    /// Place the queues of `irq` as this YAML file says; docs/irq.md shows one.
    ///
    /// It also moves interrupts of disks, and those that are for no queue, where it names them.
    #[arg(long, value_name = "FILE", value_parser = file_to_read(),
          conflicts_with_all = ["policy", "nic", "cpus", "avoid", "tx_bindings", "rx_bindings"])]
    map: Option<PathBuf>,

    /// Use these CPUs only, for `irq`.
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: Option<CpuSet>,

    /// Never use these CPUs, for `irq` and `bindings`.
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    avoid: Option<CpuSet>,

    /// The CPUs of threads that send, by interface, for `irq`: eth1:8-21;eth2:22-35 [default: the setting
    /// tx_bindings].
    #[arg(long, value_name = "BINDINGS", value_parser = read_bindings)]
    tx_bindings: Option<Bindings>,

    /// The CPUs of threads that receive, by interface, for `irq` [default: the setting rx_bindings].
    #[arg(long, value_name = "BINDINGS", value_parser = read_bindings)]
    rx_bindings: Option<Bindings>,

    /// With `bindings`: interfaces of one node get the same CPUs, and not each a part of them.
    #[arg(long)]
    shared: bool,

    /// Write the plan to this file, for `host apply FILE`; `-` is standard output.
    #[arg(short, long, value_name = "FILE", value_parser = file_or_stdout())]
    output: Option<OutFile>,
}

#[derive(clap::Args)]
#[command(mut_arg("nic", |nic| {
    nic.help("Only these interfaces, separated by commas, for `irq`, `tune` and `fix`")
}))]
pub(super) struct ApplyArgs {
    /// A plan file of `host plan -o`, or a subject: irq, tune, channels, rings, coalesce, rss or fix.
    ///
    /// `host plan --help` explains them. Without a file the plan is made as `host plan` would make it.
    #[arg(value_name = "WHAT|FILE", hide_possible_values = true,
          value_parser = completed(word_or_file(&SUBJECTS, Some("bindings")), || SUBJECTS.map(str::to_owned).into()))]
    what: PathBuf,

    #[command(flatten)]
    values: Values,

    #[command(flatten)]
    choice: Choice,

    #[command(flatten)]
    pub(super) state: State,

    #[command(flatten)]
    doing: Doing,
}

#[derive(clap::Args)]
struct Values {
    /// For `tune` a profile: throughput, latency or zerocopy; for `fix` a check; for `channels`, `rings`, `coalesce` and
    /// `rss` an interface and new values.
    ///
    /// `tune throughput`, `channels eth1 combined=8`, `rings eth1 rx=2048`, `coalesce eth1 rx-usecs=20`,
    /// `rss eth1 equal=8`, `fix bbr-without-fq`. `equal=N` deals packets out to queues 0 to N−1 evenly, `weights=W0,W1,…` in
    /// proportion to the weights of queue 0, 1 and so on, of which 0 leaves a queue out; the hash and its
    /// key stay, and queues without packets are free for flow rules.
    #[arg(value_name = "VALUE")]
    values: Vec<String>,
}

/// The choices of both commands.
#[derive(clap::Args)]
struct Choice {
    /// Only these interfaces, separated by commas, for `irq`, `tune`, `fix` and `bindings` [default for bindings: those
    /// best for a GPU, or all without GPUs].
    #[arg(long, value_name = "NICS", value_delimiter = ',', value_parser = interface)]
    nic: Vec<String>,

    /// Your own profile for `tune`, from a YAML file.
    #[arg(long, value_name = "FILE", value_parser = file_to_read())]
    profile_file: Option<PathBuf>,

    /// With `irq`: leave irqbalance running, which moves interrupts by itself, or stop it [default: leave].
    ///
    /// `leave` warns of it, `stop` stops it until `host undo irq` or the next boot starts it again.
    #[arg(long, value_enum, value_name = "WHAT")]
    irqbalance: Option<Irqbalance>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Irqbalance {
    Leave,
    Stop,
}

/// First words of `apply` that name a subject instead of a plan file.
const SUBJECTS: [&str; 7] = ["irq", "tune", "channels", "rings", "coalesce", "rss", "fix"];

/// A plan to carry out, or its subject.
pub(super) enum Source<'a> {
    Plan(&'a Path),
    Subject(Subject),
}

impl Choice {
    fn options(&self) -> [(&'static str, bool); 3] {
        [
            ("--nic", !self.nic.is_empty()),
            ("--profile-file", self.profile_file.is_some()),
            ("--irqbalance", self.irqbalance.is_some()),
        ]
    }

    fn stops_irqbalance(&self) -> bool {
        self.irqbalance == Some(Irqbalance::Stop)
    }
}

impl PlanArgs {
    /// Reads the subject with its values.
    ///
    /// # Errors
    /// A fault if a value is wrong, or if an option belongs to another subject.
    pub(super) fn subject(&self) -> Result<Subject, Fault> {
        let has_file = self.choice.profile_file.is_some();
        let subject = Subject::read(self.what, &self.values.values, has_file)?;
        let own = [
            ("--policy", self.policy.is_some()),
            ("--map", self.map.is_some()),
            ("--cpus", self.cpus.is_some()),
            ("--avoid", self.avoid.is_some()),
            ("--tx-bindings", self.tx_bindings.is_some()),
            ("--rx-bindings", self.rx_bindings.is_some()),
            ("--shared", self.shared),
            ("--output", self.output.is_some()),
        ];
        let given = given(&[&self.choice.options()[..], &own].concat());
        refuse_others(self.what.word(), &given, self.what.options())?;
        if let Some(policy @ (Policy::Numa | Policy::Spread | Policy::Single)) = self.policy {
            let has_no_workers = format!("--policy {}", policy_word(policy));
            let of_workers: Vec<&str> =
                given.into_iter().filter(|option| option.ends_with("-bindings")).collect();
            refuse_others(&has_no_workers, &of_workers, &[])?;
        }
        Ok(subject)
    }
}

impl ApplyArgs {
    /// Reads the plan file, or the subject with its values.
    ///
    /// # Errors
    /// The errors of [`PlanArgs::subject`].
    pub(super) fn source(&self) -> Result<Source<'_>, Fault> {
        let given = given(&self.choice.options());
        let word = self.what.to_str();
        let Some(what) = word.and_then(|word| What::from_str(word, false).ok()) else {
            if let Some(value) = self.values.values.first() {
                return Err(excess(value, "a plan file alone"));
            }
            refuse_others("FILE", &given, &["--irqbalance"])?;
            return Ok(Source::Plan(&self.what));
        };
        if what == What::Bindings {
            let fault = "are settings of programs, and nothing of this host";
            let allowed = SUBJECTS.join(", ");
            return Err(Fault::usage("<WHAT|FILE>", "bindings", fault, allowed)
                .with_help("`polyrail host plan bindings` prints them for the environment"));
        }
        let has_file = self.choice.profile_file.is_some();
        let subject = Subject::read(what, &self.values.values, has_file)?;
        let here = self.choice.options();
        let is_here = |option: &&&str| here.iter().any(|(own, _)| own == *option);
        let read: Vec<&str> = what.options().iter().filter(is_here).copied().collect();
        refuse_others(what.word(), &given, &read)?;
        Ok(Source::Subject(subject))
    }
}

pub(super) fn plan(args: &PlanArgs, place: &Where) -> Result<ExitCode, Fault> {
    let subject = args.subject()?;
    if subject == Subject::Bindings {
        let avoid = args.avoid.clone().unwrap_or_default();
        return bindings::suggestion(place, &args.choice.nic, args.shared, avoid);
    }
    let placing = Placing {
        policy: args.policy,
        map: args.map.as_deref(),
        cpus: args.cpus.clone(),
        avoid: args.avoid.clone().unwrap_or_default(),
        tx: args.tx_bindings.clone(),
        rx: args.rx_bindings.clone(),
    };
    let plan = make(&subject, &args.choice, &placing, place)?;
    let Some(path) = &args.output else { return Ok(changes::show_plan(&plan, place.json)) };
    if **path == *Path::new("-") {
        return Ok(changes::show_plan(&plan, true));
    }
    files::replace(path, plan.to_json()).map_err(Unwritten::at(path))?;
    let shown = changes::show_plan(&plan, place.json);
    tell!("polyrail: the plan is in {}", path.display());
    Ok(shown)
}

pub(super) fn apply(args: &ApplyArgs, place: &Where) -> Result<ExitCode, Fault> {
    let plan = match args.source()? {
        Source::Plan(path) => {
            let plan = changes::read_plan(path)?;
            if args.choice.irqbalance.is_some() && plan.name != "irq" {
                let message = format!(
                    "--irqbalance: cannot be used with a plan of {}; allowed: a plan of irq",
                    excerpt(&plan.name)
                );
                return Err(Fault::new(exit::USAGE, message).with_help("leave --irqbalance out"));
            }
            match args.choice.stops_irqbalance() {
                true => stop_irqbalance(&place.root(), plan),
                false => plan,
            }
        }
        Source::Subject(subject) => make(&subject, &args.choice, &Placing::default(), place)?,
    };
    Ok(changes::carry_out(place, &args.state, &plan, &args.doing)?)
}

fn make(
    subject: &Subject,
    choice: &Choice,
    placing: &Placing<'_>,
    place: &Where,
) -> Result<Plan, Fault> {
    let mut machine = place.machine();
    let plan = match subject {
        Subject::Irq => {
            return irq::plan(&choice.nic, placing, choice.stops_irqbalance(), place);
        }
        Subject::Tune(name) => {
            profiles::plan(name.as_deref(), choice.profile_file.as_deref(), &choice.nic, place)
        }
        Subject::Setting(group, name, values) => nic::plan(&mut machine, name, *group, values),
        Subject::Rss(name, spread) => nic::plan_rss(&mut machine, name, spread),
        Subject::Fix(id) => return Ok(fix::plan(&mut machine, id, &choice.nic, &place.root())?),
        Subject::Bindings => return Err(Fault::new(exit::USAGE, "bindings change nothing here")),
    };
    Ok(plan?)
}

fn policy_word(policy: Policy) -> &'static str {
    Policy::ALL.iter().find(|(_, known)| *known == policy).map_or("", |(word, _)| *word)
}

fn policy(word: &str) -> Policy {
    let found = Policy::ALL.iter().find(|(known, _)| *known == word);
    // clap has refused all other words.
    found.map_or(Policy::Split, |(_, policy)| *policy)
}
