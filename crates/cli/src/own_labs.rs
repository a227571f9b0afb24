//! Temporary labs of single commands.

use polyrail_lab::{Lab, LabError, LabGuard, LabSpec, Rate};

use crate::stdout::tell;

/// Builds a lab that is removed when this process ends. The lab's name begins with the command's.
pub(crate) fn up(
    command: &str,
    nodes: Option<usize>,
    rates: Vec<Rate>,
) -> Result<LabGuard, LabError> {
    let mut spec = LabSpec::new(format!("{command}-{}", std::process::id()), rates);
    spec.nodes = nodes;
    spec.ends_with_process = true;
    let lab = Lab::up(&spec)?.guard();
    for name in lab.abandoned() {
        tell!("polyrail: removed lab `{name}`: the process that made it for itself has ended");
    }
    Ok(lab)
}

/// Removes the lab.
pub(crate) fn down(lab: LabGuard) -> Result<(), LabError> {
    match lab.down() {
        // The lab was removed during the run.
        Err(LabError::UnknownLab { .. }) => Ok(()),
        result => result,
    }
}
