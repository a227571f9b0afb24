//! Plans for queues, rings, coalescing and RSS of one interface.

use polyrail_nic::{BadRssTable, Group, RssTable, SETTINGS, Setting, rx_queues};

use crate::error::{TuneError, interfaces};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::profile;
use crate::target::Target;

/// Plans new values for settings of `nic`, each given as its name in `group` and a number.
///
/// # Errors
/// [`TuneError::Argument`] for settings that are not known or that this interface lacks, and for
/// values above what its driver allows.
pub fn plan(
    machine: &mut dyn Machine,
    nic: &str,
    group: Group,
    values: &[(String, u32)],
) -> Result<Plan, TuneError> {
    let mut plan = Plan::begin("nic", machine.root())?;
    for (name, value) in values {
        let full_name = format!("{}.{name}", group.name());
        let Some(setting) = Setting::parse(&full_name) else {
            let known = SETTINGS.iter().filter(|setting| setting.group == group);
            let known: Vec<&str> = known.map(|setting| setting.name).collect();
            return Err(TuneError::argument("setting", name, "is not known", known.join(", ")));
        };
        let target = Target::Ethtool { nic: nic.to_owned(), setting: full_name };
        let Some(old) = machine.read(&target)? else {
            require(machine, nic)?;
            let fault = format!("{nic} has no such setting");
            let allowed = format!("what `polyrail host show {} {nic}` shows", group.name());
            return Err(TuneError::argument("setting", name, fault, allowed));
        };
        let max = maximum(machine, nic, &target);
        // With 0, nothing could be received or sent any more.
        if group == Group::Rings && *value == 0 && ["rx", "tx"].contains(&name.as_str()) {
            let most = max.map_or_else(|| "or more".to_owned(), |max| format!("to {max} on {nic}"));
            let (given, allowed) = (format!("{name}=0"), format!("1 {most}"));
            return Err(TuneError::argument(
                "setting",
                given,
                "leaves no room for packets",
                allowed,
            ));
        }
        if let Some(max) = max.filter(|max| value > max) {
            let (given, allowed) = (format!("{name}={value}"), format!("{max} on {nic}, or less"));
            return Err(TuneError::argument("setting", given, "is too large", allowed));
        }
        let command = setting.command(nic, &value.to_string());
        plan.want(target, nic, old, value.to_string(), format!("the same as `{command}`"));
    }
    Ok(plan.seal())
}

/// Distribution of received packets over queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly over the queues 0 to this number − 1.
    Equal(u32),
    /// By weights of queue 0, 1 and so on; 0 leaves a queue out.
    Weights(Vec<u32>),
}

impl Spread {
    /// Returns the highest queue number that gets packets, plus one.
    fn queues(&self) -> usize {
        match self {
            Self::Equal(queues) => *queues as usize,
            Self::Weights(weights) => {
                weights.iter().rposition(|weight| *weight > 0).map_or(0, |last| last + 1)
            }
        }
    }

    fn table(&self, size: usize) -> Result<RssTable, BadRssTable> {
        match self {
            Self::Equal(queues) => RssTable::equal(size, *queues),
            Self::Weights(weights) => RssTable::weighted(size, weights),
        }
    }

    /// Returns the word that `polyrail host apply rss` reads.
    fn word(&self) -> String {
        match self {
            Self::Equal(queues) => format!("equal={queues}"),
            Self::Weights(weights) => {
                let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
                format!("weights={}", weights.join(","))
            }
        }
    }

    fn command(&self, nic: &str) -> String {
        match self {
            Self::Equal(queues) => format!("ethtool -X {nic} equal {queues}"),
            Self::Weights(weights) => {
                let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
                format!("ethtool -X {nic} weight {}", weights.join(" "))
            }
        }
    }
}

/// Plans a new RSS table of `nic`. Hash function and key stay as they are.
///
/// # Errors
/// [`TuneError::Argument`] if the interface has no table, too few queues, or fewer buckets than
/// queues to share them.
pub fn plan_rss(machine: &mut dyn Machine, nic: &str, spread: &Spread) -> Result<Plan, TuneError> {
    let mut plan = Plan::begin("nic", machine.root())?;
    let target = Target::Rss { nic: nic.to_owned() };
    let Some(old) = machine.read(&target)? else {
        require(machine, nic)?;
        let fault = "its driver reports no RSS table";
        return Err(TuneError::argument("interface", nic, fault, "one with several queues"));
    };
    let size = old.parse::<RssTable>().map(|table| table.buckets().len());
    let command = spread.command(nic);
    let table = size.and_then(|size| spread.table(size));
    let table = match table {
        Ok(table) => table,
        Err(BadRssTable { fault, allowed }) => {
            return Err(TuneError::argument("spread", spread.word(), fault, allowed));
        }
    };
    // The kernel would refuse it, too, but without reporting the number of queues.
    let there = if machine.root().is_live() { rx_queues(nic).ok() } else { None };
    if let Some(there) = there.filter(|there| spread.queues() > *there as usize) {
        let fault = format!("needs {} queues, and {nic} has {there}", spread.queues());
        let allowed = format!("1 to {there} queues");
        return Err(TuneError::argument("spread", spread.word(), fault, allowed));
    }
    plan.want(target, nic, old, table.to_string(), format!("the same as `{command}`"));
    Ok(plan.seal())
}

/// Returns an error if the interface does not exist, as opposed to lacking a feature.
fn require(machine: &dyn Machine, nic: &str) -> Result<(), TuneError> {
    match interfaces(machine.root()).iter().any(|name| name == nic) {
        true => Ok(()),
        false => Err(TuneError::absent_interface(nic, machine.root())),
    }
}

/// Returns the maximum that the running machine's driver reports, if any.
fn maximum(machine: &dyn Machine, nic: &str, target: &Target) -> Option<u32> {
    if !machine.root().is_live() {
        return None;
    }
    profile::maximum(nic, target)
}
