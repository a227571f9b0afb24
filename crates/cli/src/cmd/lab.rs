//! `polyrail lab`: a multi-rail cluster on one machine.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{ArgGroup, Subcommand, value_parser};
use polyrail_lab::{Blame, Lab, LabError, LabInfo, LabSpec, Rate, Side};
use polyrail_report::exit;

use crate::stdout::{self, print, tell};

mod show;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build a lab: namespaces a and b, joined by one shaped link per rail.
    ///
    /// Root makes namespaces that `ip netns` knows as polyrail-NAME-a and polyrail-NAME-b; other
    /// users need user namespaces to be allowed. The lab stays until `polyrail lab down NAME`.
    Up(UpArgs),
    /// Run a program on one side of a lab.
    ///
    /// The program takes the place of this process: its exit status and signals are its own.
    /// 127 says that there is no such program, 126 that it cannot be run.
    Exec(ExecArgs),
    /// Change a rail's speed, cut it, or mend it, while traffic flows.
    Set(SetArgs),
    /// List this user's labs, whole or broken.
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove labs, with every process that still runs inside.
    Down(DownArgs),
}

#[derive(clap::Args)]
struct UpArgs {
    /// 1 to 32 letters, digits, `-` and `_`.
    name: String,

    /// The speed of each rail, in both directions: 1gbit,1gbit or 4x1gbit or 2.5gbit,100mbit,unlimited.
    #[arg(long, value_name = "RATES")]
    rails: String,

    /// How long a full queue at the end of a rail holds a packet, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = LabSpec::DEFAULT_QUEUE_MS,
          value_parser = value_parser!(u32).range(1..=1000))]
    queue_ms: u32,

    /// The largest IP packet, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = LabSpec::DEFAULT_MTU,
          value_parser = value_parser!(u32).range(1280..=65535))]
    mtu: u32,
}

#[derive(clap::Args)]
struct ExecArgs {
    /// The lab.
    name: String,

    /// a or b.
    side: String,

    /// The program and its arguments, after `--`.
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(group(ArgGroup::new("change").args(["rate", "down", "up"]).multiple(true).required(true)))]
struct SetArgs {
    /// The lab.
    name: String,

    /// The rail: rail0 or 0.
    rail: String,

    /// The new speed, in both directions.
    #[arg(long)]
    rate: Option<String>,

    /// Cut the rail: the end on side b is switched off, side a sees its carrier lost.
    #[arg(long, conflicts_with = "up")]
    down: bool,

    /// Which end `--down` switches off.
    #[arg(long, value_name = "a|b", requires = "down")]
    side: Option<String>,

    /// Mend the rail: both ends are switched on, with their addresses and routes.
    #[arg(long)]
    up: bool,
}

#[derive(clap::Args)]
#[command(group(ArgGroup::new("which").args(["names", "all"]).required(true)))]
struct DownArgs {
    /// The labs.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// All labs of this user.
    #[arg(long)]
    all: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> ExitCode {
    let result = match args.command {
        Command::Up(args) => up(&args),
        Command::Exec(args) => return exec(&args),
        Command::Set(args) => set(&args),
        Command::Ls { json } => Lab::list().map(|labs| show::list(&labs, json)),
        Command::Down(args) => return down(&args),
    };
    match result {
        Ok(text) => print(&text, exit::OK),
        Err(error) => refuse(&error),
    }
}

fn up(args: &UpArgs) -> Result<String, LabError> {
    let spec = LabSpec {
        name: args.name.clone(),
        rails: LabSpec::parse_rails(&args.rails)?,
        queue_ms: args.queue_ms,
        mtu: args.mtu,
    };
    let lab = Lab::up(&spec)?;
    if let Some(because) = lab.replaced() {
        tell!("polyrail: removed what was left of an earlier lab `{}`: {because}", lab.name());
    }
    if lab.rails().iter().any(|rail| rail.a.ipv6.is_none()) {
        tell!("polyrail: this kernel runs without IPv6, so the rails have IPv4 only");
    }
    tell!("{}", show::next_steps(&lab));
    Ok(show::table(lab.rails()))
}

fn exec(args: &ExecArgs) -> ExitCode {
    let lab = args.side.parse::<Side>().and_then(|side| Ok((Lab::open(&args.name)?, side)));
    let (lab, side) = match lab {
        Ok(found) => found,
        Err(error) => return refuse(&error),
    };
    // clap has made sure that there is a first word.
    let Some((program, rest)) = args.command.split_first() else {
        return ExitCode::from(exit::USAGE);
    };
    let error = lab.command(side, program).args(rest).exec();
    tell!("polyrail: {} could not be started: {error}", program.display());
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(127),
        io::ErrorKind::PermissionDenied => ExitCode::from(126),
        _ => ExitCode::from(exit::ENVIRONMENT),
    }
}

fn set(args: &SetArgs) -> Result<String, LabError> {
    let rate = args.rate.as_deref().map(str::parse::<Rate>).transpose()?;
    let side = args.side.as_deref().map_or(Ok(Side::B), str::parse::<Side>)?;
    let lab = Lab::open(&args.name)?;
    let rail = lab.rail(&args.rail)?;
    if let Some(rate) = rate {
        lab.set_rate(rail, rate)?;
    }
    if args.down {
        lab.cut_at(rail, side)?;
        tell!(
            "polyrail: rail{rail} is switched off on side {side}; side {} has lost its carrier",
            side.other()
        );
    }
    if args.up {
        lab.set_link(rail, true)?;
    }
    Ok(show::table(&lab.observe()?[rail..=rail]))
}

/// Goes on after a lab that cannot be removed, so that one bad lab does not keep the others.
fn down(args: &DownArgs) -> ExitCode {
    let names = match args.all {
        true => Lab::list().map(|labs| labs.into_iter().map(|lab: LabInfo| lab.name).collect()),
        false => Ok(args.names.clone()),
    };
    let names = match names {
        Ok(names) => names,
        Err(error) => return refuse(&error),
    };
    let mut worst = ExitCode::SUCCESS;
    for name in names {
        if let Err(error) = Lab::remove(&name) {
            worst = refuse(&error);
        }
    }
    worst
}

fn refuse(error: &LabError) -> ExitCode {
    let code = match error.blame() {
        Blame::Input => exit::USAGE,
        Blame::Environment => exit::ENVIRONMENT,
    };
    stdout::refuse(error, error.help(), code)
}
