//! `polyrail nic`: queues, rings, coalescing, RSS and counters of an interface.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Subcommand;
use polyrail_host::Sysroot;
use polyrail_nic::{
    Ethtool, Group, Netdev, NicError, QueueKind, Rss, SETTINGS, driver_info, driver_stats,
    ntuple_rules, rss_table,
};
use polyrail_report::{Align, Table, exit};
use polyrail_tune::TuneError;
use polyrail_tune::nic::Spread;
use serde::Serialize;

use super::changes::{self, Doing, Undoing, Where};
use crate::stdout::{fitted, refuse, tell};
use crate::values::{Refusal, interface};

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show or set how many queues an interface has: `polyrail nic channels eth1 combined=8`.
    Channels(SettingArgs),
    /// Show or set how many packets each queue holds: `polyrail nic rings eth1 rx=2048`.
    Rings(SettingArgs),
    /// Show or set how long an interrupt waits for more packets: `polyrail nic coalesce eth1 rx-usecs=20`.
    Coalesce(SettingArgs),
    /// Show or set how received packets are spread over the queues (RSS): `polyrail nic rss eth1 equal=8`.
    ///
    /// The hash and its key are left alone. Queues that get no packets this way are free for flow
    /// rules.
    Rss(RssArgs),
    /// Show the counters of each queue, and those of the driver.
    Stats {
        /// The interface.
        #[arg(value_parser = interface)]
        nic: String,
        /// Also those that are zero.
        #[arg(long)]
        all: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put the values back that `channels`, `rings`, `coalesce` and `rss` have replaced.
    Reset {
        #[command(flatten)]
        undoing: Undoing,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Where,
    },
}

#[derive(clap::Args)]
struct SettingArgs {
    /// The interface.
    #[arg(value_parser = interface)]
    nic: String,

    /// New values, as NAME=NUMBER; without any, the present ones are shown.
    #[arg(value_name = "NAME=NUMBER", value_parser = assignment)]
    values: Vec<(String, u32)>,

    #[command(flatten)]
    doing: Doing,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
struct RssArgs {
    /// The interface.
    #[arg(value_parser = interface)]
    nic: String,

    /// `equal=N` deals packets out to queues 0 to N−1 evenly, `weights=W0,W1,…` in proportion to the
    /// weights of queue 0, 1 and so on, of which 0 leaves a queue out. Without it the present spread
    /// is shown.
    #[arg(value_name = "SPREAD", value_parser = spread)]
    spread: Option<Spread>,

    #[command(flatten)]
    doing: Doing,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Where,
}

/// A setting as it is shown.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    now: Option<u32>,
    max: Option<u32>,
}

/// The counters of an interface.
#[derive(Serialize)]
struct Counters {
    driver: Option<polyrail_nic::DriverInfo>,
    queues: Vec<polyrail_nic::QueueStats>,
    named: BTreeMap<String, u64>,
    flow_rules: Option<u32>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let nic = match &args.command {
        Command::Channels(args) | Command::Rings(args) | Command::Coalesce(args) => &args.nic,
        Command::Rss(args) => &args.nic,
        Command::Stats { nic, .. } => nic,
        Command::Reset { .. } => "",
    };
    let result = match &args.command {
        Command::Channels(args) => settings(args, Group::Channels),
        Command::Rings(args) => settings(args, Group::Rings),
        Command::Coalesce(args) => settings(args, Group::Coalesce),
        Command::Rss(args) => rss(args),
        Command::Stats { nic, all, json } => stats(nic, *all, *json),
        Command::Reset { undoing, json, place } => {
            return changes::undo(place, "nic", undoing, *json)
                .unwrap_or_else(|error| changes::refuse(&error));
        }
    };
    result.unwrap_or_else(|error| match error.is_absent() {
        true => changes::refuse(&TuneError::absent_interface(nic, &Sysroot::live())),
        false => refuse(&error, error.help(), exit::ENVIRONMENT),
    })
}

fn assignment(text: &str) -> Result<(String, u32), Refusal> {
    let allowed = "NAME=NUMBER, the number from 0 to 4294967295";
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| Refusal::new("is not NAME=NUMBER", allowed).with_help("as in rx=2048"))?;
    let is_good = |one: char| one.is_ascii_alphanumeric() || one == '-' || one == '_';
    if name.is_empty() || !name.chars().all(is_good) {
        return Err(Refusal::new("has no name of a setting before `=`", allowed));
    }
    Ok((name.to_owned(), number(value, allowed)?))
}

fn number(text: &str, allowed: &str) -> Result<u32, Refusal> {
    text.parse().map_err(|_| Refusal::new(format!("`{text}` is not such a number"), allowed))
}

fn spread(text: &str) -> Result<Spread, Refusal> {
    let allowed = "equal=NUMBER or weights=NUMBER,NUMBER,…, numbers from 0 to 4294967295";
    let unknown = || Refusal::new("is neither equal=NUMBER nor weights=NUMBER,NUMBER,…", allowed);
    let (name, value) = text.split_once('=').ok_or_else(unknown)?;
    let number = |value: &str| number(value, allowed);
    match name {
        "equal" => Ok(Spread::Equal(number(value)?)),
        "weights" => value.split(',').map(number).collect::<Result<_, _>>().map(Spread::Weights),
        _ => Err(unknown()),
    }
}

fn settings(args: &SettingArgs, group: Group) -> Result<ExitCode, NicError> {
    if args.values.is_empty() {
        return show(args, group);
    }
    let plan = polyrail_tune::nic::plan(&mut args.place.machine(), &args.nic, group, &args.values);
    let done = plan.and_then(|plan| changes::carry_out(&args.place, &plan, &args.doing, args.json));
    Ok(done.unwrap_or_else(|error| changes::refuse(&error)))
}

fn show(args: &SettingArgs, group: Group) -> Result<ExitCode, NicError> {
    if let Some(refused) = refuse_copy(&args.place, group.name()) {
        return Ok(refused);
    }
    let mut ethtool = Ethtool::open()?;
    let mut shown = Vec::new();
    for setting in SETTINGS.iter().filter(|setting| setting.group == group) {
        let limits = ethtool.value(&args.nic, setting)?;
        if limits.now.is_some() {
            shown.push(Shown { name: setting.name, now: limits.now, max: limits.max });
        }
    }
    if args.json {
        return Ok(changes::print_list("settings", &shown));
    }
    let mut table = Table::default()
        .column("setting", Align::Left)
        .column("now", Align::Right)
        .column("max", Align::Right);
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    for one in shown {
        table.row([one.name.to_owned(), number(one.now), number(one.max)]);
    }
    let nothing = format!("the driver of {} does not tell its {}", args.nic, group.name());
    Ok(changes::print_table(&table, &nothing))
}

/// The answer of this machine's drivers would be taken for that of the machine in the copy.
fn refuse_copy(place: &Where, field: &'static str) -> Option<ExitCode> {
    let refuse = || {
        let fault = "only a running machine's drivers tell this, and a copy has none";
        changes::refuse(&TuneError::argument(field, "", fault, "without --sysroot"))
    };
    (!place.root().is_live()).then(refuse)
}

fn rss(args: &RssArgs) -> Result<ExitCode, NicError> {
    let nic = &args.nic;
    if let Some(spread) = &args.spread {
        let plan = polyrail_tune::nic::plan_rss(&mut args.place.machine(), nic, spread);
        let done =
            plan.and_then(|plan| changes::carry_out(&args.place, &plan, &args.doing, args.json));
        return Ok(done.unwrap_or_else(|error| changes::refuse(&error)));
    }
    if let Some(refused) = refuse_copy(&args.place, "RSS") {
        return Ok(refused);
    }
    let rss = match Ethtool::open().and_then(|mut ethtool| ethtool.rss(nic)) {
        // Kernels before 6.2 tell in the old way only.
        Err(error) if error.is_unsupported() => {
            Rss { indirection: rss_table(nic)?.buckets().to_vec(), ..Rss::default() }
        }
        asked => asked?,
    };
    if args.json {
        return Ok(changes::print_json(&rss));
    }
    if rss.indirection.is_empty() {
        tell!("polyrail: the driver of {nic} does not tell its table of buckets");
        return Ok(ExitCode::SUCCESS);
    }
    let mut buckets: BTreeMap<u32, usize> = BTreeMap::new();
    for queue in &rss.indirection {
        *buckets.entry(*queue).or_default() += 1;
    }
    let mut table = Table::default().column("queue", Align::Right).column("buckets", Align::Right);
    for (queue, count) in buckets {
        table.row([queue.to_string(), count.to_string()]);
    }
    Ok(changes::print(&fitted(&table)))
}

fn stats(nic: &str, all: bool, as_json: bool) -> Result<ExitCode, NicError> {
    let named = driver_stats(nic)?;
    let counters = Counters {
        driver: driver_info(nic).ok(),
        queues: queue_stats(nic),
        named: named.into_iter().collect(),
        flow_rules: ntuple_rules(nic).ok(),
    };
    if as_json {
        return Ok(changes::print_json(&counters));
    }
    let mut table = Table::default().column("counter", Align::Left).column("value", Align::Right);
    for queue in &counters.queues {
        let kind = match queue.kind {
            Some(QueueKind::Rx) => "rx",
            Some(QueueKind::Tx) => "tx",
            None => "",
        };
        let id = queue.id.map_or_else(String::new, |id| id.to_string());
        for (name, value) in queue.counters.iter().filter(|(_, value)| all || **value > 0) {
            table.row([format!("queue {kind} {id}: {name}"), value.to_string()]);
        }
    }
    for (name, value) in counters.named.iter().filter(|(_, value)| all || **value > 0) {
        table.row([name.clone(), value.to_string()]);
    }
    let nothing = match all {
        true => format!("the driver of {nic} has no counters"),
        false => format!("every counter of {nic} is zero, or its driver has none"),
    };
    Ok(changes::print_table(&table, &nothing))
}

/// Counters per queue, where kernel and driver have them; the driver's own say most of it, too.
fn queue_stats(nic: &str) -> Vec<polyrail_nic::QueueStats> {
    let path = format!("/sys/class/net/{nic}/ifindex");
    let index = Sysroot::live().read_parsed::<u32>(path).ok().flatten();
    let stats = index.and_then(|index| Netdev::open().ok()?.queue_stats(index).ok());
    stats.unwrap_or_default()
}
