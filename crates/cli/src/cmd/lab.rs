//! `polyrail lab`: a multi-rail cluster on one machine.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::{ArgGroup, Subcommand, value_parser};
use polyrail_lab::{Firewall, Lab, LabError, LabInfo, LabSpec, Network, Node, Rate};
use polyrail_report::exit;

use crate::fault::Fault;
use crate::signals;
use crate::stdout::{complain, excerpt, print, tell};
use crate::values::{Rates, Refusal, lab_name, rates};

mod show;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build a lab: namespaces a and b, joined by one shaped link per rail, or more nodes on a switch.
    ///
    /// Root makes namespaces that `ip netns` knows as polyrail-NAME-a and polyrail-NAME-b; other
    /// users need user namespaces to be allowed. The lab stays until `polyrail lab down NAME`.
    ///
    /// With --nodes the namespaces are polyrail-NAME-node0, polyrail-NAME-node1 and so on, and
    /// polyrail-NAME-switch with a bridge per rail. Each node has a port at each bridge, shaped in
    /// both directions: what many nodes send to one is limited by that one's port.
    ///
    /// With --network the rails get other addresses and routes than those of a subnet each:
    /// host-routes gives each NIC a /32 in a network of its own, and a route by device, as on GCP;
    /// routed puts a router between links of two addresses, as with BGP to the host;
    /// management does so with all rails but the first, which is one subnet, as for management;
    /// one-subnet puts all NICs on one Ethernet with the kernel's defaults, so that any NIC answers for all;
    /// pod gives each node a subnet of its own and a default route, as pods of two hosts have them.
    /// All but subnet and host-routes have a switch or router, and two nodes unless --nodes says more.
    Up(UpArgs),
    /// Run a program on one node of a lab.
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
    #[arg(value_parser = lab_name)]
    name: String,

    /// The speed of each rail, in both directions: 1gbit,1gbit or 4x1gbit or 2.5gbit,100mbit,unlimited.
    #[arg(long, value_name = "RATES", value_parser = rates)]
    rails: Rates,

    /// How many nodes hang on a switch. Without this there are two nodes and no switch.
    #[arg(long, value_name = "N",
          value_parser = value_parser!(u64).range(2..=LabSpec::MAX_NODES as u64))]
    nodes: Option<u64>,

    /// The rails' addresses and routes; `pod` takes one rate, like 100mbit, and `management` two or more.
    #[arg(long, value_name = "KIND", default_value_t = Network::Subnet, value_parser = network)]
    network: Network,

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
    #[arg(value_parser = lab_name)]
    name: String,

    /// a, b, or the number of a node: 0 is a, and 1 is b.
    #[arg(value_parser = node)]
    node: String,

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
#[command(group(ArgGroup::new("change").args(["rate", "link", "mtu", "firewall"]).multiple(true).required(true)))]
struct SetArgs {
    /// The lab.
    #[arg(value_parser = lab_name)]
    name: String,

    /// The rail: rail0 or 0.
    #[arg(value_parser = rail)]
    rail: String,

    /// The new speed, in both directions; with --side, of what that node sends.
    #[arg(long, value_parser = rate)]
    rate: Option<Rate>,

    /// `down` cuts the rail, `up` restores it.
    ///
    /// `down` switches the end on side b off, so side a loses its carrier. With a switch, the other nodes keep theirs.
    /// `up` switches all ends on, with their addresses and routes.
    #[arg(long, value_enum, value_name = "STATE")]
    link: Option<Link>,

    /// Which end --link down, --firewall or --rate is for [default: b, and all for --rate].
    #[arg(long, value_name = "NODE", value_parser = node)]
    side: Option<String>,

    /// The largest IP packet, in bytes, that the switch lets through on this rail. The nodes don't know, so that larger
    /// ones vanish: an MTU black hole. The MTU of the lab ends it.
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,

    /// What the end on side b does with new TCP connections that come in there: drop, reject, or off to let them in. The
    /// other direction stays open. Needs the program `nft`.
    #[arg(long, value_name = "ANSWER", value_parser = firewall)]
    firewall: Option<Firewall>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Link {
    Down,
    Up,
}

#[derive(clap::Args)]
#[command(group(ArgGroup::new("which").args(["names", "all"]).required(true)))]
struct DownArgs {
    /// The labs.
    #[arg(value_name = "NAME", value_parser = lab_name)]
    names: Vec<String>,

    /// All labs of this user.
    #[arg(long)]
    all: bool,
}

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
        Err(error) => Fault::from(error).refuse(),
    }
}

fn up(args: &UpArgs) -> Result<String, LabError> {
    let spec = LabSpec {
        name: args.name.clone(),
        rails: args.rails.0.clone(),
        // The option limits the number.
        nodes: args.nodes.map(|nodes| nodes as usize),
        network: args.network,
        queue_ms: args.queue_ms,
        mtu: args.mtu,
        ends_with_process: false,
    };
    let stopped = signals::caught()
        .map_err(|errno| LabError::System { step: "catching signals".into(), errno })?;
    let lab = Lab::up_unless(&spec, &|| stopped.load(Ordering::Relaxed))?;
    if let Some(because) = lab.replaced() {
        tell!("polyrail: removed what was left of an earlier lab `{}`: {because}", lab.name());
    }
    if lab.rails().iter().any(|rail| rail.ends[0].ipv6.is_none()) {
        tell!("polyrail: this kernel runs without IPv6, so the rails have IPv4 only");
    }
    tell!("{}", show::next_steps(&lab));
    Ok(show::table(lab.rails()))
}

fn exec(args: &ExecArgs) -> ExitCode {
    let found = open(&args.name, &args.node);
    let (lab, node) = match found {
        Ok(found) => found,
        Err(error) => return Fault::from(error).refuse(),
    };
    // clap requires at least one word.
    let Some((program, rest)) = args.command.split_first() else {
        return ExitCode::from(exit::USAGE);
    };
    let error = lab.command(node, program).args(rest).exec();
    let shown = excerpt(&program.to_string_lossy());
    let (code, allowed, help) = match error.kind() {
        io::ErrorKind::NotFound => {
            let help = "check its name, or give its path; what a shell has built in needs a shell: sh -c '…'";
            (127, "a program in a folder of PATH, or its path", help)
        }
        io::ErrorKind::PermissionDenied => (
            126,
            "a program that this user may run",
            "`ls -l` shows who may run it, `chmod +x` lets all",
        ),
        _ => (exit::ENVIRONMENT, "a program that runs outside the lab", "try it there first"),
    };
    complain(&format!("CMD `{shown}`: can't be started: {error}; allowed: {allowed}"), Some(help));
    ExitCode::from(code)
}

/// Opens a lab, and finds one of its nodes. If the lab can't be opened, reports a word that can't name a node first.
fn open(name: &str, node: &str) -> Result<(Lab, Node), LabError> {
    match Lab::open(name) {
        Ok(lab) => lab.node_named(node).map(|node| (lab, node)),
        Err(error) => Err(node.parse::<Node>().err().unwrap_or(error)),
    }
}

fn set(args: &SetArgs) -> Result<String, LabError> {
    let has_end = args.link == Some(Link::Down) || args.firewall.is_some() || args.rate.is_some();
    if let Some(side) = args.side.as_ref().filter(|_| !has_end) {
        let allowed = "with --link down, --firewall or --rate, whose end it names".to_owned();
        let value = side.clone();
        return Err(LabError::BadValue { field: "--side", value, allowed });
    }
    let (lab, at) = open(&args.name, args.side.as_deref().unwrap_or("b"))?;
    let rail = lab.rail(&args.rail)?;
    match args.rate {
        Some(rate) if args.side.is_some() => lab.set_rate_at(rail, at, rate)?,
        Some(rate) => lab.set_rate(rail, rate)?,
        None => {}
    }
    if let Some(mtu) = args.mtu {
        lab.set_mtu(rail, mtu)?;
    }
    if let Some(firewall) = args.firewall {
        lab.set_firewall(rail, at, firewall)?;
    }
    match args.link {
        None => {}
        Some(Link::Up) => lab.set_link(rail, true)?,
        Some(Link::Down) => {
            lab.cut_at(rail, at)?;
            tell!("polyrail: rail{rail} is switched off {}", show::cut(&lab, at));
        }
    }
    Ok(show::table(&lab.observe()?[rail..=rail]))
}

/// Continues after a lab that can't be removed, so that one bad lab does not block the others.
fn down(args: &DownArgs) -> ExitCode {
    let names = match args.all {
        true => Lab::list().map(|labs| labs.into_iter().map(|lab: LabInfo| lab.name).collect()),
        false => Ok(args.names.clone()),
    };
    let names = match names {
        Ok(names) => names,
        Err(error) => return Fault::from(error).refuse(),
    };
    let mut worst = ExitCode::SUCCESS;
    for name in names {
        if let Err(error) = Lab::remove(&name) {
            worst = Fault::from(error).refuse();
        }
    }
    worst
}

/// Checks that a word can name a node. The lab decides later whether it has this node.
fn node(text: &str) -> Result<String, Refusal> {
    let is_word =
        text.len() <= "node31".len() && text.chars().all(|one| one.is_ascii_alphanumeric());
    if text.is_empty() || !is_word {
        text.parse::<Node>()?;
    }
    Ok(text.to_owned())
}

fn network(text: &str) -> Result<Network, Refusal> {
    Ok(text.parse()?)
}

fn firewall(text: &str) -> Result<Firewall, Refusal> {
    Ok(text.parse()?)
}

fn rate(text: &str) -> Result<Rate, Refusal> {
    Ok(text.parse()?)
}

/// Checks that a word can name a rail. The lab decides later whether it has this rail.
fn rail(text: &str) -> Result<String, Refusal> {
    let digits = text.strip_prefix("rail").unwrap_or(text);
    match digits.parse::<usize>() {
        Ok(index) if index < LabSpec::MAX_RAILS && !digits.starts_with('+') => Ok(text.to_owned()),
        _ => {
            let last = LabSpec::MAX_RAILS - 1;
            let allowed = format!("rail0 to rail{last}, or 0 to {last}");
            Err(Refusal::new("is no rail", allowed)
                .with_help("`polyrail lab ls` shows the rails of each lab"))
        }
    }
}
