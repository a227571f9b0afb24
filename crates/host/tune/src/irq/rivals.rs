//! Programs that move interrupts on their own.

use polyrail_host::{Sysroot, system_program};

use crate::balancer::{self, RUNNING, STOPPED};
use crate::plan::Plan;
use crate::target::Target;

/// The programs' names as the kernel lists them.
const RIVALS: &[&str] = &["irqbalance", "tuned", "irqd", "numad", "google_set_mult"];

/// Lists running programs that may move interrupts on their own: process and name.
pub fn rivals_running(root: &Sysroot) -> Vec<(u32, String)> {
    let processes = root.list_optional("/proc").unwrap_or_default();
    let numbers = processes.iter().filter_map(|name| name.parse::<u32>().ok());
    // A process that ends meanwhile no longer matters.
    let named = numbers.filter_map(|pid| Some((pid, system_program(root, pid)?)));
    named.filter(|(_, name)| RIVALS.contains(&name.as_str())).collect()
}

/// Makes the plan stop irqbalance first, so that undoing the plan starts it again last. Adds a
/// warning to the plan if irqbalance does not run.
pub fn stop_irqbalance(root: &Sysroot, mut plan: Plan) -> Plan {
    let planned: Vec<Target> = plan.wanted().map(|(target, ..)| target.clone()).collect();
    let found = balancer::find(root);
    if found.is_empty() && !planned.iter().any(Target::is_balancer) {
        plan.warnings.push("irqbalance does not run, so there is nothing to stop".to_owned());
    }
    for target in found.into_iter().filter(|target| !planned.contains(target)) {
        // A process that ends meanwhile needs no stopping.
        let Some(old) = balancer::read(root, &target) else { continue };
        let reason = match (&target, old.as_str()) {
            (_, STOPPED) => "it is stopped already",
            (Target::IrqbalanceService, _) => {
                "it would move interrupts back; `systemctl stop` until the reset"
            }
            _ => "it would move interrupts back; paused (SIGSTOP) until the reset",
        };
        plan.want(target, "irqbalance", old, STOPPED, reason);
    }
    plan.seal()
}

impl Plan {
    /// Adds a warning for each program that may move interrupts back once the plan is carried out.
    pub fn warn_of_rivals(&mut self, root: &Sysroot) {
        let keeps_irqbalance = keeps_irqbalance(root, self);
        for (pid, name) in rivals_running(root) {
            if name != "irqbalance" {
                self.warnings.push(format!(
                    "{name} (process {pid}) runs and may move interrupts back; `polyrail host \
                     watch` shows what it does"
                ));
            } else if keeps_irqbalance {
                self.warnings.push(format!(
                    "irqbalance (process {pid}) runs and will move interrupts back; --irqbalance \
                     stop stops it until the reset, its own --banmod=DRIVER makes it leave them \
                     alone, and `polyrail host watch` shows what it does"
                ));
            }
        }
    }
}

/// Whether an irqbalance that runs now keeps running under the plan.
fn keeps_irqbalance(root: &Sysroot, plan: &Plan) -> bool {
    let wanted: Vec<&Target> = plan.wanted().map(|(target, ..)| target).collect();
    let found = balancer::find(root);
    // Copies of machines hold only the names of programs.
    found.is_empty()
        || found.iter().any(|target| {
            let is_running = balancer::read(root, target).as_deref() == Some(RUNNING);
            is_running && !wanted.contains(&target)
        })
}
