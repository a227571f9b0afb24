//! Description of a region, which gives peers access to it.

use super::{REGION_MAGIC, recognise};
use crate::codec::{DecodeError, Reader};
use crate::id::{InstanceId, RegionKey};

const VERSION: u8 = 1;
const BYTES: usize = 46;

/// Description of a region or a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// Engine that it is registered with.
    pub instance: InstanceId,
    /// Key of the region.
    pub key: RegionKey,
    /// Size in bytes.
    pub len: u64,
    /// Peers may read it.
    pub may_read: bool,
    /// Peers may write it.
    pub may_write: bool,
    /// The region is in a device's memory, such as a GPU's.
    pub is_on_device: bool,
}

impl RegionDescription {
    /// Returns the description as bytes, to be passed on.
    pub fn encode(&self) -> Vec<u8> {
        let flags = [self.may_read, self.may_write, self.is_on_device];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&REGION_MAGIC);
        out.extend_from_slice(&[VERSION, flags]);
        out.extend_from_slice(&self.instance.0.to_le_bytes());
        out.extend_from_slice(&self.key.slot.to_le_bytes());
        out.extend_from_slice(&self.key.generation.to_le_bytes());
        out.extend_from_slice(&self.key.nonce.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads the output of [`Self::encode`].
    ///
    /// # Errors
    /// Description of the fault in the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if let Some(what) = recognise(bytes).filter(|_| !bytes.starts_with(&REGION_MAGIC)) {
            return Err(what);
        }
        match read(bytes) {
            Err(_) => Err("they must be the 46 bytes that `describe()` returned"),
            Ok((magic, ..)) if magic != REGION_MAGIC => Err("they do not begin like one"),
            Ok((_, version, _)) if version != VERSION => Err("they were made by another version"),
            Ok((.., region)) => Ok(region),
        }
    }
}

fn read(bytes: &[u8]) -> Result<([u8; 4], u8, RegionDescription), DecodeError> {
    let mut from = Reader::new("region", bytes);
    let (magic, version, flags) = (from.bytes("magic")?, from.u8("version")?, from.u8("flags")?);
    let (instance, key) = (InstanceId(from.u128("instance")?), RegionKey::read(&mut from)?);
    let len = from.u64("len")?;
    from.end()?;
    let [may_read, may_write, is_on_device] = [1, 2, 4].map(|bit| flags & bit != 0);
    let region = RegionDescription { instance, key, len, may_read, may_write, is_on_device };
    Ok((magic, version, region))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_region_tells_is_read_and_other_bytes_are_refused_by_what_they_are() {
        let key = RegionKey { slot: 1, generation: 2, nonce: u64::MAX - 3 };
        for flags in 0..8 {
            let [may_read, may_write, is_on_device] = [1, 2, 4].map(|bit| flags & bit != 0);
            let (instance, len) = (InstanceId(u128::MAX - 7), 1 << 40);
            let told = RegionDescription { instance, key, len, may_read, may_write, is_on_device };
            let bytes = told.encode();
            assert_eq!((bytes.len(), bytes[5]), (BYTES, flags));
            assert_eq!(RegionDescription::decode(&bytes), Ok(told));
        }
        let told = |bytes: &[u8]| RegionDescription::decode(bytes).unwrap_err();
        let mut bytes = [0; BYTES];
        assert_eq!(told(&bytes), "they do not begin like one");
        bytes[..5].copy_from_slice(b"PLYM\x02");
        assert_eq!(told(&bytes), "they were made by another version");
        for other in [&bytes[1..], &bytes[..45], &[&bytes[..], b"x"].concat(), b""] {
            assert_eq!(told(other), "they must be the 46 bytes that `describe()` returned");
        }
        assert!(told(b"PLYF").contains("`find_peer`"));
    }
}
