//! Host memory near a device: on a machine with several memory nodes, pinned memory on the wrong one halves the rate of
//! the bus.

use std::fs;
use std::io;
use std::marker::PhantomData;

use crate::device::PciAddress;

/// `MPOL_PREFERRED`: this node, or another one if it is full.
const PREFERRED: libc::c_int = 1;
/// Bits of a node mask: as many as Linux can be built for.
const NODES_MAX: usize = 1024;

type Mask = [libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];

/// Makes this thread's allocations prefer a node as long as this value lives; then restores the previous policy.
pub(super) struct Preferring {
    before: libc::c_int,
    nodes: Mask,
    /// The policy belongs to the thread, so this must not move to another one.
    _of_this_thread: PhantomData<*mut ()>,
}

/// Returns the memory node that a device is attached to; `None` if the machine has only one, or doesn't report it.
pub(super) fn node_of(pci: PciAddress) -> Option<usize> {
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/numa_node")).ok()?;
    // The kernel writes -1 where there are no nodes.
    text.trim().parse().ok().filter(|node| *node < NODES_MAX)
}

impl Preferring {
    /// Sets the policy. Containers may forbid that; memory then comes from any node.
    pub(super) fn node(node: usize) -> io::Result<Self> {
        let (mut before, mut nodes) = (0, Mask::default());
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: both places are valid, the mask for as many nodes as it says.
        let code = unsafe {
            let (mode, mask) = (&raw mut before, nodes.as_mut_ptr());
            libc::syscall(libc::SYS_get_mempolicy, mode, mask, NODES_MAX, none, 0)
        };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        let bits = libc::c_ulong::BITS as usize;
        let mut wanted = Mask::default();
        let word = wanted.get_mut(node / bits).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % bits);
        set(PREFERRED, &wanted)?;
        Ok(Self { before, nodes, _of_this_thread: PhantomData })
    }
}

impl Drop for Preferring {
    fn drop(&mut self) {
        // This policy was in force before, so the system accepts it again.
        let _ = set(self.before, &self.nodes);
    }
}

fn set(mode: libc::c_int, nodes: &Mask) -> io::Result<()> {
    // A mode without nodes takes no mask.
    let mask = if nodes.iter().all(|word| *word == 0) { std::ptr::null() } else { nodes.as_ptr() };
    // The kernel expects a count one above the number of bits that it reads.
    let count = if mask.is_null() { 0 } else { NODES_MAX + 1 };
    // SAFETY: the mask is valid for that many nodes. Changes only where this thread's memory comes from.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, count) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> io::Result<(libc::c_int, Mask)> {
        // Dropped at once: this only checks whether the system allows it.
        let asked = Preferring::node(0)?;
        Ok((asked.before, asked.nodes))
    }

    #[test]
    fn the_thread_is_as_before_afterwards() {
        let before = match policy() {
            Ok(before) => before,
            // A sandbox may forbid it, or the kernel may not support nodes; then nothing is changed.
            Err(error) => {
                let code = error.raw_os_error();
                assert!(matches!(code, Some(libc::EPERM | libc::ENOSYS)), "{error}");
                return polyrail_skip::skip(error, "sudo -E cargo test -p polyrail-gpu");
            }
        };
        let preferring = Preferring::node(0).unwrap();
        let (mode, nodes) = policy().unwrap();
        assert_eq!((mode, nodes[0]), (PREFERRED, 1));
        drop(preferring);
        assert_eq!(policy().unwrap(), before);
        Preferring::node(NODES_MAX).map(|_| ()).unwrap_err();
        assert_eq!(policy().unwrap(), before);
    }

    #[test]
    fn a_device_that_is_not_there_has_no_node() {
        assert_eq!(node_of(PciAddress { domain: 0xffff, bus: 0, device: 31, function: 7 }), None);
    }
}
