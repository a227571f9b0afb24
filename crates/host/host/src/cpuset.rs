//! Sets of CPUs, as lists (`8-21,112-125`) and as hexadecimal masks of the kernel.

use std::fmt;
use std::str::FromStr;

pub use polyrail_config::LAST_CPU;
use polyrail_config::{CpuListError, parse_cpu_ranges};
use serde::{Serialize, Serializer};

use crate::sysroot::short;

/// A set of CPU numbers from 0 to [`LAST_CPU`]. Its behaviour does not change at 32, 64 or 1024 CPUs.
///
/// Displays as the kernel's list, which parses back to the same set.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64`. The last word is never zero, so equal sets have equal words.
    words: Vec<u64>,
}

/// A text that is neither a list nor a mask of CPUs, and the place of the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (column {column})")]
pub struct CpuSetError {
    /// First wrong character, counted from 1.
    pub column: usize,
    /// The fault at this character.
    pub fault: CpuSetFault,
}

/// A fault in a list or a mask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuSetFault {
    /// An item of a list is invalid.
    #[error(transparent)]
    List(CpuListError),
    /// A group of a mask is not 1 to 8 hexadecimal digits.
    #[error(
        "has the group `{0}`; a mask is groups of 1 to 8 hexadecimal digits with commas between"
    )]
    NotAGroup(String),
}

impl CpuSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the CPUs from `first` to `last`, both included; empty if `first` is above `last`. Numbers above
    /// [`LAST_CPU`] are left out.
    pub fn range(first: u32, last: u32) -> Self {
        (first..=last.min(LAST_CPU)).collect()
    }

    /// Parses the kernel's list: `8-21,112-125`. An empty text is the empty set. Spaces around items are ignored.
    ///
    /// # Errors
    /// [`CpuSetError`] with the column.
    pub fn parse_list(text: &str) -> Result<Self, CpuSetError> {
        let ranges = parse_cpu_ranges(text).map_err(|(before, error)| CpuSetError {
            column: before + 1,
            fault: CpuSetFault::List(error),
        })?;
        Ok(ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
    }

    /// Parses the kernel's mask: `ffff,00000000,0000ff00`, with the lowest CPUs last and 32 CPUs to a group.
    ///
    /// # Errors
    /// [`CpuSetError`] with the column. Like the kernel, this refuses more than 8 digits without a comma; it also
    /// refuses `0x` and empty groups.
    pub fn parse_mask(text: &str) -> Result<Self, CpuSetError> {
        let text = text.trim_end();
        let mut set = Self::new();
        let groups: Vec<&str> = text.split(',').collect();
        let mut column = 1;
        for (at, group) in groups.iter().enumerate() {
            let bits = (1..=8)
                .contains(&group.len())
                .then(|| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .filter(|is_hex| *is_hex)
                .and_then(|_| u32::from_str_radix(group, 16).ok())
                .ok_or_else(|| CpuSetError {
                    column,
                    fault: CpuSetFault::NotAGroup(short(group)),
                })?;
            let first_cpu = 32 * (groups.len() - 1 - at) as u64;
            for bit in (0..32).filter(|bit| bits & (1 << bit) != 0) {
                let cpu = first_cpu + bit;
                match u32::try_from(cpu) {
                    Ok(cpu) if cpu <= LAST_CPU => set.insert(cpu),
                    _ => {
                        let fault = CpuSetFault::List(CpuListError::TooHigh(cpu.to_string()));
                        return Err(CpuSetError { column, fault });
                    }
                };
            }
            column += group.chars().count() + 1;
        }
        Ok(set)
    }

    /// Returns the mask as the kernel writes it on a machine whose CPU numbers end below `cpu_ids`: groups of 8 digits,
    /// the first as short as the number of CPUs allows. The mask is wider if the set is.
    pub fn to_mask(&self, cpu_ids: u32) -> String {
        let bits = cpu_ids.max(self.last().map_or(1, |last| last + 1)).max(1);
        let groups = bits.div_ceil(32);
        let mut text = String::new();
        for group in (0..groups).rev() {
            let word = self.words.get(group as usize / 2).copied().unwrap_or(0);
            let value = (word >> (32 * (group % 2))) as u32;
            if group + 1 == groups {
                let digits = (bits - 32 * group).div_ceil(4) as usize;
                text.push_str(&format!("{value:0digits$x}"));
            } else {
                text.push_str(&format!(",{value:08x}"));
            }
        }
        text
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// Adds a CPU; returns `false` if it was there, or is above [`LAST_CPU`].
    pub fn insert(&mut self, cpu: u32) -> bool {
        if cpu > LAST_CPU || self.contains(cpu) {
            return false;
        }
        let word = cpu as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
        true
    }

    /// Removes a CPU; returns `false` if it was not there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        if !self.contains(cpu) {
            return false;
        }
        self.words[cpu as usize / 64] &= !(1 << (cpu % 64));
        self.trim();
        true
    }

    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    pub fn last(&self) -> Option<u32> {
        let word = self.words.last()?;
        Some(64 * (self.words.len() as u32 - 1) + 63 - word.leading_zeros())
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let cpus = |(at, word): (usize, &u64)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(64 * at as u32 + bit)
            })
        };
        self.words.iter().enumerate().flat_map(cpus)
    }

    /// Returns the runs of neighbouring CPUs, as first and last CPU of each, in ascending order.
    pub fn ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        ranges
    }

    /// Returns the CPUs in this set, in `other`, or in both.
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a | b)
    }

    /// Returns the CPUs in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & b)
    }

    /// Returns the CPUs in this set that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the sets have a CPU in common.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }

    fn combine(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let word = |set: &Self, at: usize| set.words.get(at).copied().unwrap_or(0);
        let length = self.words.len().max(other.words.len());
        let words = (0..length).map(|at| of(word(self, at), word(other, at))).collect();
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |at| at + 1);
        self.words.truncate(used);
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Parses a list like [`CpuSet::parse_list`].
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        Self::parse_list(text)
    }
}

impl FromIterator<u32> for CpuSet {
    /// Leaves out numbers above [`LAST_CPU`].
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

/// Writes the kernel's list, `8-21,112`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges().into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
#[path = "cpuset/tests.rs"]
mod tests;
