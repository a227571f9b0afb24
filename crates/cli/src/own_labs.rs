//! Labs that commands make for themselves.

use polyrail_lab::{Lab, LabError, LabGuard, LabSpec};

use crate::stdout::tell;
use crate::values::RunLab;

/// Makes a lab for a run of this command. It ends with the guard, or with this process.
pub(crate) fn make(command: &str, wanted: &RunLab) -> Result<(Lab, LabGuard), LabError> {
    let name = format!("{command}-{}", std::process::id());
    let mut spec = LabSpec::new(name, wanted.rates.clone());
    spec.nodes = Some(wanted.nodes);
    spec.ends_with_process = true;
    let guard = Lab::up(&spec)?.guard();
    tell_of_abandoned(&guard);
    Ok((Lab::open(&spec.name)?, guard))
}

/// Tells which labs went before one that a command has made for itself.
pub(crate) fn tell_of_abandoned(lab: &Lab) {
    for name in lab.abandoned() {
        tell!("polyrail: removed lab `{name}`: the process that made it for itself has ended");
    }
}
