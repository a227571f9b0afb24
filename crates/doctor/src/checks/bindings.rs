//! CPUs that the settings choose for the engine's threads.

use polyrail_host::bindings::{Facts, check};

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "bindings",
    group: Group::Cpu,
    title: "the settings tx_bindings and rx_bindings choose CPUs that are wrong here",
    cost: Cost::Large,
    why: "A thread that sends or receives on a CPU of another node, or on one that serves interrupts, is slower. One that \
          is bound to CPUs that this machine lacks runs elsewhere.",
    remedy: "Take the bindings that `polyrail host plan bindings` prints.",
    needs_root: false,
    reversible: true,
    reads: &["tx_bindings", "rx_bindings", "/proc/irq/*/effective_affinity_list"],
    run: bindings,
}];

fn bindings(cx: &Context) -> Result<Outcome, Unknown> {
    let [tx, rx] = &cx.options().bindings;
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
    for fault in check(&facts, tx, rx) {
        let evidence = outcome.seen.clone();
        let subject = Some(fault.interface);
        outcome.found(Finding { subject, evidence, ..Finding::new(fault.message) });
    }
    Ok(outcome)
}
