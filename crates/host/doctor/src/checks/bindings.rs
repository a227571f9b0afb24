//! CPUs that the settings choose for the engine's threads.

use polyrail_host::bindings::{Facts, check};

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "bindings",
    group: Group::Cpu,
    title: "the settings tx_bindings and rx_bindings choose CPUs on which threads can't run",
    cost: Cost::Breaks,
    why: "A thread that is bound to CPUs that this machine or this process lacks runs elsewhere. CPUs that are only \
          slower, such as those of another node, are no finding: the evidence names them.",
    remedy: "Take the bindings that `polyrail host plan bindings` prints.",
    needs_root: false,
    reversible: true,
    reads: &["tx_bindings", "rx_bindings", "/proc/irq/*/effective_affinity_list"],
    run: bindings,
}];

fn bindings(cx: &Context) -> Result<Outcome, Unknown> {
    let [tx, rx] = cx.options().bindings.as_ref().map_err(|why| Unknown(why.clone()))?;
    if tx.is_empty() && rx.is_empty() {
        return Ok(Outcome::not_applicable("the settings bind no threads"));
    }
    let facts = Facts::read(cx.root())?;
    let mut outcome = Outcome::default();
    for (setting, bindings) in [("tx_bindings", tx), ("rx_bindings", rx)] {
        if !bindings.is_empty() {
            outcome.saw(setting, bindings);
        }
    }
    let (errors, warnings): (Vec<_>, Vec<_>) =
        check(&facts, tx, rx).into_iter().partition(|fault| fault.is_error);
    for warning in warnings {
        outcome.saw(warning.interface, warning.message);
    }
    for error in errors {
        let evidence = outcome.seen.clone();
        let subject = Some(error.interface);
        outcome.found(Finding { subject, evidence, ..Finding::new(error.message) });
    }
    Ok(outcome)
}
