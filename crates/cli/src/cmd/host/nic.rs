//! Queues, rings, coalescing, RSS and counters of an interface.

use std::collections::BTreeMap;
use std::process::ExitCode;

use polyrail_host::Sysroot;
use polyrail_nic::{
    Ethtool, Group, Netdev, NicError, QueueKind, Rss, SETTINGS, driver_info, driver_stats,
    ntuple_rules, rss_table,
};
use polyrail_report::{Align, Table, exit};
use polyrail_tune::TuneError;
use serde::Serialize;

use super::output::{print, print_json, print_list, print_table};
use super::place::Where;
use crate::fault::Fault;
use crate::stdout::{fitted, tell};

/// Facts that a driver reports.
pub(super) enum Asked {
    Settings(Group),
    Rss,
    /// `true` includes counters that are zero.
    Counters(bool),
}

/// A setting in the output.
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

/// Shows facts that the driver of an interface reports.
pub(super) fn show(asked: &Asked, nic: &str, place: &Where) -> Result<ExitCode, Fault> {
    let field = match asked {
        Asked::Settings(group) => group.name(),
        Asked::Rss => "RSS",
        Asked::Counters(_) => "counters",
    };
    // Drivers answer for this machine, and the user asked about the machine in the copy.
    if !place.root().is_live() {
        let fault = "only a running machine's drivers tell this, and a copy has none";
        return Err(TuneError::argument(field, "", fault, "without --sysroot").into());
    }
    let shown = match asked {
        Asked::Settings(group) => settings(nic, *group, place.json),
        Asked::Rss => rss(nic, place.json),
        Asked::Counters(all) => counters(nic, *all, place.json),
    };
    shown.map_err(|error| match error.is_absent() {
        true => TuneError::absent_interface(nic, &Sysroot::live()).into(),
        false => {
            let fault = Fault::new(exit::ENVIRONMENT, error.to_string());
            let none =
                format!("the driver of {nic} has none; `polyrail host show` lists the interfaces");
            let none = error.is_unsupported().then_some(none);
            Fault { help: error.help().or(none), ..fault }
        }
    })
}

fn settings(nic: &str, group: Group, as_json: bool) -> Result<ExitCode, NicError> {
    let mut ethtool = Ethtool::open()?;
    let mut shown = Vec::new();
    for setting in SETTINGS.iter().filter(|setting| setting.group == group) {
        let limits = ethtool.value(nic, setting)?;
        if limits.now.is_some() {
            shown.push(Shown { name: setting.name, now: limits.now, max: limits.max });
        }
    }
    if as_json {
        return Ok(print_list("settings", &shown));
    }
    let mut table = Table::default()
        .column("setting", Align::Left)
        .column("now", Align::Right)
        .column("max", Align::Right);
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    for one in shown {
        table.row([one.name.to_owned(), number(one.now), number(one.max)]);
    }
    let nothing = format!("the driver of {} does not tell its {}", nic, group.name());
    Ok(print_table(&table, &nothing))
}

fn rss(nic: &str, as_json: bool) -> Result<ExitCode, NicError> {
    let rss = match Ethtool::open().and_then(|mut ethtool| ethtool.rss(nic)) {
        // Kernels before 6.2 have only the ioctl.
        Err(error) if error.is_unsupported() => {
            Rss { indirection: rss_table(nic)?.buckets().to_vec(), ..Rss::default() }
        }
        asked => asked?,
    };
    if as_json {
        return Ok(print_json(&rss));
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
    Ok(print(&fitted(&table)))
}

fn counters(nic: &str, all: bool, as_json: bool) -> Result<ExitCode, NicError> {
    let named = driver_stats(nic)?;
    let counters = Counters {
        driver: driver_info(nic).ok(),
        queues: queue_stats(nic),
        named: named.into_iter().collect(),
        flow_rules: ntuple_rules(nic).ok(),
    };
    if as_json {
        return Ok(print_json(&counters));
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
    Ok(print_table(&table, &nothing))
}

/// Counters per queue, if kernel and driver have them. Most of them are also among the driver's own counters.
fn queue_stats(nic: &str) -> Vec<polyrail_nic::QueueStats> {
    let path = format!("/sys/class/net/{nic}/ifindex");
    let index = Sysroot::live().read_parsed::<u32>(path).ok().flatten();
    let stats = index.and_then(|index| Netdev::open().ok()?.queue_stats(index).ok());
    stats.unwrap_or_default()
}
