//! Fragments of messages, and copying them to their places.
//!
//! A NIC that writes into a GPU's memory leaves a message in pieces in a bounce buffer, and reports the place of each.
//! [`Queue::gather`] has a device copy them; [`gather`] does it for a buffer in host memory. Both check every place
//! first, because the report of a NIC's driver may be wrong.

use polyrail_sys::{Memory, OutOfRange};
use thiserror::Error;

use crate::error::GpuError;
use crate::queue::{CopyPlace, Queue, Ticket};
use crate::raw_queue::RawCopy;

/// A piece of a message in a bounce buffer: a `loadMeta` of NCCL (`src/device/network/unpack/unpack_defs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fragment {
    /// Offset of its first byte in the bounce buffer.
    pub from: u32,
    /// Length in bytes.
    pub len: u32,
    /// Offset in the message at which it belongs.
    pub to: u64,
}

/// Reason why fragments can't be gathered. Nothing was copied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GatherError {
    /// A fragment begins or ends outside of the bounce buffer.
    #[error("fragment {index} does not lie in the bounce buffer: {range}")]
    Source {
        /// Index of the fragment.
        index: usize,
        /// The range that it would have.
        range: OutOfRange,
    },
    /// A fragment belongs to a place outside of the message's memory.
    #[error("fragment {index} does not belong into the message: {range}")]
    Target {
        /// Index of the fragment.
        index: usize,
        /// The range that it would have.
        range: OutOfRange,
    },
    /// The fragments don't make up the message.
    #[error("the fragments are no message of {bytes} bytes: {what} at {at}")]
    NoMessage {
        /// Size of the message.
        bytes: u64,
        /// Kind of the mismatch.
        what: &'static str,
        /// Offset in the message.
        at: u64,
    },
    /// Error of the device.
    #[error(transparent)]
    Device(#[from] GpuError),
}

impl Fragment {
    /// Decodes the 16 bytes of a `loadMeta`.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let [f0, f1, f2, f3, l0, l1, l2, l3, to @ ..] = bytes;
        Self {
            from: u32::from_ne_bytes([f0, f1, f2, f3]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            to: u64::from_ne_bytes(to),
        }
    }

    /// Checks that fragments make up a message of `bytes` bytes: each byte once, none outside. Costs nanoseconds per
    /// fragment if they are in order; otherwise a copy is sorted.
    ///
    /// # Errors
    /// [`GatherError::NoMessage`] if they are not.
    pub fn check(fragments: &[Self], bytes: u64) -> Result<(), GatherError> {
        if fragments.is_sorted_by_key(|fragment| fragment.to) {
            return Self::check_sorted(fragments, bytes);
        }
        let mut sorted = fragments.to_vec();
        sorted.sort_unstable_by_key(|fragment| fragment.to);
        Self::check_sorted(&sorted, bytes)
    }

    fn check_sorted(fragments: &[Self], bytes: u64) -> Result<(), GatherError> {
        let mut at = 0;
        for fragment in fragments.iter().filter(|fragment| fragment.len > 0) {
            let end = fragment.to.checked_add(fragment.len.into()).filter(|end| *end <= bytes);
            let what = match end {
                _ if fragment.to > at => "a gap",
                _ if fragment.to < at => "bytes that come twice",
                None => "bytes behind its end",
                Some(end) => {
                    at = end;
                    continue;
                }
            };
            return Err(GatherError::NoMessage { bytes, what, at: at.min(fragment.to) });
        }
        match at == bytes {
            true => Ok(()),
            false => Err(GatherError::NoMessage { bytes, what: "a gap", at }),
        }
    }
}

impl Queue {
    /// Starts to copy fragments of a message from a bounce buffer to memory from `to` on, as one batch with the copies
    /// pushed before. Both memories are kept until it is done.
    ///
    /// Queues of [`crate::Device::open_gather_queue`] are made for this.
    ///
    /// # Errors
    /// If a fragment lies outside of one of the memories, or the device refuses. Nothing is copied then.
    pub fn gather(
        &mut self,
        to: CopyPlace<'_>,
        bounce: CopyPlace<'_>,
        fragments: &[Fragment],
    ) -> Result<Ticket, GatherError> {
        let open = self.open_copies();
        for (index, fragment) in fragments.iter().enumerate() {
            let len = fragment.len.into();
            let checked = bounce
                .plus(fragment.from.into())
                .address(len)
                .map_err(|range| GatherError::Source { index, range })
                .and_then(|from| {
                    let target = to.plus(fragment.to).address(len);
                    let to = target.map_err(|range| GatherError::Target { index, range })?;
                    Ok(RawCopy { to, from, len })
                });
            match checked {
                // The driver refuses empty copies.
                Ok(copy) if len > 0 => self.push_raw(copy),
                Ok(_) => {}
                Err(error) => {
                    self.take_back(open);
                    return Err(error);
                }
            }
        }
        self.keep(&[to, bounce]);
        Ok(self.begin()?)
    }
}

/// Copies fragments of a message from a bounce buffer of the host to memory from `to` on.
///
/// # Errors
/// If a fragment lies outside of one of the memories. Nothing is copied then.
pub fn gather(
    (memory, to): (&Memory, u64),
    bounce: &Memory,
    fragments: &[Fragment],
) -> Result<(), GatherError> {
    let target = |fragment: &Fragment| to.saturating_add(fragment.to);
    for (index, fragment) in fragments.iter().enumerate() {
        let (from, len) = (fragment.from.into(), fragment.len.into());
        let source = bounce.address(from, len);
        source.map_err(|range| GatherError::Source { index, range })?;
        let target = memory.address(target(fragment), len);
        target.map_err(|range| GatherError::Target { index, range })?;
    }
    for (index, fragment) in fragments.iter().enumerate() {
        let (from, len) = (fragment.from.into(), fragment.len.into());
        let copied = bounce.copy_to(from, (memory, target(fragment)), len);
        copied.map_err(|range| GatherError::Target { index, range })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::device::Device;
    use crate::fake::FakeDevice;

    const BOUNCE: u64 = 1 << 16;

    /// Makes a message of fragments of these lengths, at random places that don't overlap, in random order.
    fn scattered(lens: &[u32], seed: u64) -> Vec<Fragment> {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut fragments = Vec::new();
        let (mut from, mut to) = (0, 0);
        for len in lens {
            from += random(64) as u32;
            fragments.push(Fragment { from, len: *len, to });
            from += len;
            to += u64::from(*len);
        }
        // Places in another order than in the message.
        for index in (1..fragments.len()).rev() {
            fragments.swap(index, random(index as u64 + 1) as usize);
        }
        fragments
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_byte_comes_where_it_belongs(
            lens in prop::collection::vec(0_u32..600, 0..60),
            seed: u64,
            shift in 0_u64..40,
        ) {
            let fragments = scattered(&lens, seed);
            let total: u64 = lens.iter().copied().map(u64::from).sum();
            prop_assert_eq!(Fragment::check(&fragments, total), Ok(()));
            let source: Vec<u8> = (0..BOUNCE).map(|at| (at ^ at >> 8 ^ seed) as u8).collect();
            let size = (total + shift) as usize;
            let mut expected = vec![0; size];
            for Fragment { from, len, to } in &fragments {
                for byte in 0..*len {
                    expected[(shift + to) as usize + byte as usize] = source[(from + byte) as usize];
                }
            }

            let fake = FakeDevice::new(0, Duration::ZERO, 1);
            let (bounce, target) = (fake.memory(&source), fake.memory(&vec![0; size]));
            let device: Arc<dyn Device> = fake;
            let mut queue = Queue::from(device.open_gather_queue().unwrap());
            let (to, from) = (CopyPlace::Device(&target, shift), CopyPlace::Device(&bounce, 0));
            let ticket = queue.gather(to, from, &fragments).unwrap();
            prop_assert!(ticket.wait(Duration::from_secs(10)).unwrap());
            prop_assert_eq!(&FakeDevice::contents(&target), &expected);

            let (bounce, target) = (Memory::from(source), Memory::from(vec![0; size]));
            gather((&target, shift), &bounce, &fragments).unwrap();
            let mut found = vec![0; size];
            target.read_at(0, &mut found).unwrap();
            prop_assert_eq!(&found, &expected);
        }
    }

    #[test]
    fn a_fragment_outside_is_named_and_nothing_is_copied() {
        let fake = FakeDevice::new(0, Duration::ZERO, 1);
        let (bounce, target) = (fake.memory(&[7; 64]), fake.memory(&[0; 32]));
        let device: Arc<dyn Device> = fake;
        let mut queue = Queue::from(device.open_gather_queue().unwrap());
        let (on_host, to_host) = (Memory::from(vec![7; 64]), Memory::from(vec![0; 32]));
        let good = Fragment { from: 0, len: 8, to: 0 };
        let outside = |offset, len, size| OutOfRange { offset, len, size };
        for (bad, expected) in [
            (
                Fragment { from: 60, len: 5, to: 8 },
                GatherError::Source { index: 1, range: outside(60, 5, 64) },
            ),
            (
                Fragment { from: 0, len: 8, to: 25 },
                GatherError::Target { index: 1, range: outside(25, 8, 32) },
            ),
            (
                Fragment { from: 0, len: 8, to: u64::MAX },
                GatherError::Target { index: 1, range: outside(u64::MAX, 8, 32) },
            ),
        ] {
            let (to, from) = (CopyPlace::Device(&target, 0), CopyPlace::Device(&bounce, 0));
            assert_eq!(queue.gather(to, from, &[good, bad]).unwrap_err(), expected);
            assert_eq!(gather((&to_host, 0), &on_host, &[good, bad]), Err(expected));
        }
        queue.begin().unwrap().wait(Duration::from_secs(10)).unwrap();
        assert_eq!(FakeDevice::contents(&target), [0; 32]);
        let mut found = [1; 32];
        to_host.read_at(0, &mut found).unwrap();
        assert_eq!(found, [0; 32]);
    }

    #[test]
    fn fragments_that_are_no_message_are_named() {
        let fragment = |len, to| Fragment { from: 0, len, to };
        let whole = [fragment(5, 10), fragment(10, 0), fragment(0, 3), fragment(1, 15)];
        assert_eq!(Fragment::check(&whole, 16), Ok(()));
        assert_eq!(Fragment::check(&[], 0), Ok(()));
        for (fragments, bytes, what, at) in [
            (&whole[..], 17, "a gap", 16),
            (&whole[..], 15, "bytes behind its end", 15),
            (&whole[1..], 16, "a gap", 10),
            (&[fragment(10, 0), fragment(10, 0)][..], 20, "bytes that come twice", 0),
            (&[fragment(10, 0), fragment(10, 9)][..], 20, "bytes that come twice", 9),
            (&[fragment(10, u64::MAX)][..], 10, "a gap", 0),
            (&[][..], 1, "a gap", 0),
        ] {
            let expected = Err(GatherError::NoMessage { bytes, what, at });
            assert_eq!(Fragment::check(fragments, bytes), expected, "{fragments:?}");
        }
    }

    #[test]
    fn fragments_are_what_nccl_writes() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&0x1234_u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&4097_u32.to_ne_bytes());
        bytes[8..].copy_from_slice(&(1_u64 << 33).to_ne_bytes());
        let expected = Fragment { from: 0x1234, len: 4097, to: 1 << 33 };
        assert_eq!((Fragment::from_bytes(bytes), size_of::<Fragment>()), (expected, 16));
    }
}
