//! Queues, rings and coalescing of one interface, as a plan like any other.

use polyrail_nic::{Group, SETTINGS, Setting};

use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::profile;
use crate::target::Target;

/// Plans new values for settings of `nic`, each as its name in `group` and a number.
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
            return Err(TuneError::Argument {
                field: "setting",
                value: name.clone(),
                fault: format!("is not known; allowed: {}", known.join(", ")),
            });
        };
        let target = Target::Ethtool { nic: nic.to_owned(), setting: full_name };
        let Some(old) = machine.read(&target)? else {
            return Err(TuneError::Argument {
                field: "setting",
                value: name.clone(),
                fault: format!("{nic} has no such setting, or is not there"),
            });
        };
        if let Some(max) = maximum(machine, nic, &target).filter(|max| value > max) {
            return Err(TuneError::Argument {
                field: "setting",
                value: format!("{name}={value}"),
                fault: format!("{nic} allows at most {max}"),
            });
        }
        let command = setting.command(nic, &value.to_string());
        plan.want(target, nic, old, value.to_string(), format!("the same as `{command}`"));
    }
    Ok(plan.seal())
}

/// What the driver of the running machine allows, if it tells.
fn maximum(machine: &dyn Machine, nic: &str, target: &Target) -> Option<u32> {
    if !machine.root().is_live() {
        return None;
    }
    profile::maximum(nic, target)
}
