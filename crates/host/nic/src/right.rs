//! Checks the right of this process to change interfaces.

use polyrail_netlink::{Message, Protocol};

use crate::error::NicError;
use crate::generic;

const RTM_SETLINK: u16 = 19;
const IFINFOMSG_BYTES: usize = 16;

/// Checks that this process may change interfaces of this network namespace; changes nothing.
///
/// The kernel checks the right before it looks up the interface, so the request names one that does not exist.
///
/// # Errors
/// An error for which [`NicError::is_permission`] holds if the right is missing, and an error if no netlink socket can
/// be opened. Any other refusal of the request does not deny the right: the change itself will give a better error.
pub fn require_right_to_change() -> Result<(), NicError> {
    let mut header = [0; IFINFOMSG_BYTES];
    header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
    let mut socket = generic::open(Protocol::Route)?;
    let answer = socket.request(Message::new(RTM_SETLINK, &header), 0);
    match answer.map_err(NicError::of("the right to change interfaces")) {
        Err(error) if error.is_permission() => Err(error),
        _ => Ok(()),
    }
}
