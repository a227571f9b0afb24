//! The fix for a finding, as a plan that can be applied and undone.

use polyrail_host::Sysroot;
use polyrail_tune::{Machine, Plan};

use crate::error::DoctorError;
use crate::report::{CheckReport, Report, Status};

/// Plans all changes that fix the findings of a check. The plan's name is `doctor ID`; undo finds the plan by this
/// name.
///
/// # Errors
/// [`DoctorError`]: no such check, a check without findings, findings that no setting fixes, or a value that can't be
/// read.
pub fn plan_fix(
    report: &Report,
    id: &str,
    root: &Sysroot,
    machine: &mut dyn Machine,
) -> Result<Plan, DoctorError> {
    let check = report.checks.iter().find(|check| check.id == id);
    let check = check.ok_or_else(|| DoctorError::NoCheck { id: id.into() })?;
    if check.status != Status::Finding {
        return Err(DoctorError::NothingToFix { id: id.into(), said: said(check) });
    }
    let mut plan = Plan::begin(format!("doctor {id}"), root)?;
    for finding in &check.findings {
        if finding.changes.is_empty() {
            let subject =
                finding.subject.as_ref().map_or(String::new(), |name| format!("{name}: "));
            let commands = finding.commands.join("; ");
            let by_hand = if commands.is_empty() { check.remedy.clone() } else { commands };
            plan.warnings.push(format!("{subject}{}: fix this by hand: {by_hand}", finding.what));
        }
        for change in &finding.changes {
            let subject = finding.subject.clone().unwrap_or_else(|| check.group.name().into());
            // The value may have changed since the check read it; plan from the current one.
            match machine.read(&change.target)? {
                Some(now) => {
                    plan.want(change.target.clone(), subject, now, &change.to, &finding.what)
                }
                None => plan.warnings.push(format!("{} does not exist any more", change.target)),
            }
        }
    }
    if plan.changes.is_empty() && plan.unchanged.is_empty() {
        return Err(DoctorError::ByHand { id: id.into(), how: plan.warnings.join("; ") });
    }
    Ok(plan.seal())
}

fn said(check: &CheckReport) -> String {
    match check.status {
        Status::Clean => "all is well".into(),
        Status::NotApplicable => check.not_applicable.clone().unwrap_or_default(),
        Status::Finding | Status::Unknown => format!("not known: {}", check.unknown.join("; ")),
    }
}
