//! Checks of `polyrail doctor` by their IDs, and the settings that fix their findings.

use polyrail_doctor::{CHECKS, Check, Context, DoctorError, Options, examine, plan_fix};
use polyrail_host::Sysroot;
use polyrail_tune::{Machine, Plan};

use crate::progress::Progress;
use crate::stdout::tell;
use crate::values::Refusal;

pub(crate) fn find(id: &str) -> Result<&'static Check, DoctorError> {
    let mut all = CHECKS.iter().copied().flatten();
    all.find(|check| check.id == id).ok_or_else(|| DoctorError::NoCheck { id: id.into() })
}

/// Reads the ID of a check.
///
/// # Errors
/// A refusal if there is no such check.
pub(crate) fn check_id(id: &str) -> Result<String, Refusal> {
    find(id).map(|check| check.id.to_owned()).map_err(|error| {
        let allowed = "the checks that `polyrail doctor --explain` lists";
        let refusal = Refusal::new("is no check", allowed);
        match error.help() {
            Some(help) => refusal.with_help(help),
            None => refusal,
        }
    })
}

/// Examines the machine, and plans a fix for the findings of this check.
///
/// # Errors
/// The errors of [`plan_fix`]. [`DoctorError::ByHand`] before the machine is examined if no fix of this check writes a
/// setting of the host: such a fix needs no root.
pub(super) fn plan(
    machine: &mut dyn Machine,
    id: &str,
    nic: &[String],
    root: &Sysroot,
) -> Result<Plan, DoctorError> {
    let check = find(id)?;
    if !check.needs_root {
        return Err(DoctorError::ByHand { id: id.to_owned(), how: check.remedy.to_owned() });
    }
    let options = Options { interfaces: nic.to_vec(), devmem: true, ..Options::default() };
    let _waiting = Progress::waiting("examining this host");
    let context = Context::read(root, options)?;
    for note in context.notes() {
        tell!("polyrail: {note}");
    }
    plan_fix(&examine(&context), id, root, machine)
}
