//! Element types, the ranks' initial values, and the expected results.

use serde::{Deserialize, Serialize};

use crate::plan::{Operation, Shape};

/// Type of the elements in a rank's memory; the names are those of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 32-bit floating point.
    Float,
    /// 32-bit signed integer.
    Int32,
    /// Byte; sums wrap around.
    Uint8,
}

impl Element {
    pub const ALL: [Self; 3] = [Self::Float, Self::Int32, Self::Uint8];

    /// Size of an element, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float | Self::Int32 => 4,
            Self::Uint8 => 1,
        }
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int32 => "int32",
            Self::Uint8 => "uint8",
        }
    }

    /// Writes the sums of `one` and `other` to `sum`; all three have the same length.
    pub(crate) fn add(self, sum: &mut [u8], one: &[u8], other: &[u8]) {
        match self {
            Self::Float => zip(sum, one, other, |a, b| {
                (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Self::Int32 => zip(sum, one, other, |a, b| {
                i32::from_ne_bytes(a).wrapping_add(i32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Self::Uint8 => zip(sum, one, other, |[a], [b]| [a.wrapping_add(b)]),
        }
    }

    /// Fills memory with the rank's initial values.
    pub(crate) fn fill(self, memory: &mut [u8], rank: usize, seed: u64) {
        self.write(memory, |index| value(rank, index, seed));
    }

    /// Counts the wrong elements of `result`, the part of the rank's output that the operation produces.
    pub(crate) fn wrong(
        self,
        result: &[u8],
        operation: Operation,
        shape: Shape,
        rank: usize,
        seed: u64,
    ) -> u64 {
        let ranks = shape.ranks;
        let per_rank = shape.count.max(1);
        let sum = |index| (0..ranks).map(|one| value(one, index, seed)).fold(0, u64::wrapping_add);
        let expected = |index: usize| match operation {
            Operation::AllReduce => sum(index),
            Operation::ReduceScatter => sum(rank * per_rank + index),
            Operation::AllGather => value(index / per_rank, index % per_rank, seed),
            Operation::AllToAll => {
                value(index / per_rank, rank * per_rank + index % per_rank, seed)
            }
            Operation::Broadcast => value(0, index, seed),
            Operation::SendRecv => value((rank + ranks - 1) % ranks, index, seed),
        };
        match self {
            Self::Float => count(result, |index| (expected(index) as f32).to_ne_bytes()),
            Self::Int32 => count(result, |index| (expected(index) as i32).to_ne_bytes()),
            Self::Uint8 => count(result, |index| [expected(index) as u8]),
        }
    }

    fn write(self, memory: &mut [u8], value: impl Fn(usize) -> u64) {
        match self {
            Self::Float => put(memory, |index| (value(index) as f32).to_ne_bytes()),
            Self::Int32 => put(memory, |index| (value(index) as i32).to_ne_bytes()),
            Self::Uint8 => put(memory, |index| [value(index) as u8]),
        }
    }
}

/// Initial value of an element; differs by rank, index and seed. Below 2^16, so that floats hold sums of 256 ranks
/// exactly.
fn value(rank: usize, index: usize, seed: u64) -> u64 {
    let place = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let who = (rank as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let when = seed.wrapping_mul(0x94d0_49bb_1331_11eb);
    place.wrapping_add(who).wrapping_add(when) >> 48
}

fn zip<const N: usize>(
    sum: &mut [u8],
    one: &[u8],
    other: &[u8],
    add: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (one, other) = (one.as_chunks::<N>().0, other.as_chunks::<N>().0);
    for (sum, (one, other)) in sum.as_chunks_mut::<N>().0.iter_mut().zip(one.iter().zip(other)) {
        *sum = add(*one, *other);
    }
}

fn put<const N: usize>(memory: &mut [u8], value: impl Fn(usize) -> [u8; N]) {
    for (index, element) in memory.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *element = value(index);
    }
}

fn count<const N: usize>(memory: &[u8], expected: impl Fn(usize) -> [u8; N]) -> u64 {
    let elements = memory.as_chunks::<N>().0.iter().enumerate();
    elements.filter(|(index, element)| **element != expected(*index)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_what_ranks_begin_with_are_exact_in_each_type() {
        let shape = Shape { ranks: 256, count: 101 };
        for element in Element::ALL {
            let bytes = shape.count * element.bytes();
            let mut sum = vec![0; bytes];
            for rank in 0..shape.ranks {
                let mut input = vec![0; bytes];
                element.fill(&mut input, rank, 7);
                let so_far = sum.clone();
                element.add(&mut sum, &so_far, &input);
            }
            let wrong =
                |result: &[u8], seed| element.wrong(result, Operation::AllReduce, shape, 3, seed);
            assert_eq!(wrong(&sum, 7), 0, "{element:?}");
            assert!(wrong(&sum, 8) > 90, "{element:?}: another seed has other values");
            sum[bytes / 2] ^= 1;
            assert_eq!(wrong(&sum, 7), 1, "{element:?}: one wrong bit is one wrong element");
        }
    }
}
