//! Labs that commands make for themselves.

use polyrail_lab::Lab;

use crate::stdout::tell;

/// Tells which labs went before one that a command has made for itself.
pub(crate) fn tell_of_abandoned(lab: &Lab) {
    for name in lab.abandoned() {
        tell!("polyrail: removed lab `{name}`: the process that made it for itself has ended");
    }
}
