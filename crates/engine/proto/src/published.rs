//! File by which engines find each other:
//!
//! ```text
//! 0  "PLYF"   4 version u16   6 process u32 (0: unknown)   10 its PID namespace u64   18 its start u64
//! 26 metadata_len u32   30 extra_len u32   34 the metadata, the extra bytes
//! ```

mod region;

use crate::hello;
use crate::invitation::PREFIX;

pub use region::RegionDescription;

/// Magic bytes at the start of such a file.
const FILE_MAGIC: [u8; 4] = *b"PLYF";
/// Maximum extra bytes next to the metadata.
pub const EXTRA_MAX: usize = 16 << 20;
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 34;

/// Magic bytes at the start of a region's description.
const REGION_MAGIC: [u8; 4] = *b"PLYM";

/// A process, as the kernel identifies it: its number, its PID namespace, its start.
pub type ProcessNumbers = (u32, u64, u64);

/// Content of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Process that wrote it, if that is known.
    pub process: Option<ProcessNumbers>,
    /// Metadata of the engine.
    pub metadata: Vec<u8>,
    /// Bytes that the user has added.
    pub extra: Vec<u8>,
}

impl Published {
    /// Returns the file. The caller has checked the length of the extra bytes, and metadata is short.
    pub fn encode(&self) -> Vec<u8> {
        let (metadata, extra) = (&self.metadata, &self.extra);
        let mut out = Vec::with_capacity(HEAD_BYTES + metadata.len() + extra.len());
        let (number, namespace, started) = self.process.unwrap_or_default();
        out.extend_from_slice(&FILE_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&namespace.to_le_bytes());
        out.extend_from_slice(&started.to_le_bytes());
        out.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
        out.extend_from_slice(&(extra.len() as u32).to_le_bytes());
        out.extend_from_slice(metadata);
        out.extend_from_slice(extra);
        out
    }

    /// Reads the output of [`Self::encode`], or bare metadata.
    ///
    /// # Errors
    /// Description of the fault.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, String> {
        if bytes.starts_with(&hello::MAGIC) {
            return Ok(Self { process: None, metadata: bytes, extra: Vec::new() });
        }
        if !bytes.starts_with(&FILE_MAGIC) {
            return Err("it is not what `publish` writes".to_owned());
        }
        let mut rest = &bytes[FILE_MAGIC.len()..];
        let version = u16::from_le_bytes(take(&mut rest)?);
        if version != VERSION {
            return Err(format!("it has version {version}, this engine reads {VERSION}"));
        }
        let number = u32::from_le_bytes(take(&mut rest)?);
        let (namespace, started) =
            (u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?));
        let process = (number > 0).then_some((number, namespace, started));
        let metadata_len = u32::from_le_bytes(take(&mut rest)?) as usize;
        let extra_len = u32::from_le_bytes(take(&mut rest)?) as usize;
        let Some((metadata, extra)) =
            rest.split_at_checked(metadata_len).filter(|(_, extra)| extra.len() == extra_len)
        else {
            let (got, want) = (rest.len(), metadata_len as u64 + extra_len as u64);
            return Err(format!("it has {got} bytes behind its head, which says {want}"));
        };
        Ok(Self { process, metadata: metadata.to_vec(), extra: extra.to_vec() })
    }
}

/// Returns the kind of the bytes that engines hand to each other, and where they belong: programs mix them up easily.
pub fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] = [
        (&hello::MAGIC, "they are an engine's metadata: pass them to `add_peer`"),
        (&REGION_MAGIC, "they are the description of a region: pass them to `import`"),
        (&FILE_MAGIC, "they are a file that `publish` wrote: pass its path to `find_peer`"),
        (PREFIX.as_bytes(), "they are an invitation: pass it to `connect_by`"),
    ];
    known.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, what)| what)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (first, behind) = rest.split_first_chunk().ok_or("its head is cut off")?;
    *rest = behind;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_or_longer_is_refused() {
        let process = Some((7, 1 << 40, 9));
        let whole = Published { process, metadata: b"card".to_vec(), extra: b"regions".to_vec() };
        let bytes = whole.encode();
        assert_eq!(Published::decode(bytes.clone()), Ok(whole.clone()));
        let none = Published { process: None, extra: Vec::new(), ..whole };
        assert_eq!(Published::decode(none.encode()), Ok(none));
        for len in 0..bytes.len() {
            let error = Published::decode(bytes[..len].to_vec()).unwrap_err();
            assert!(error.starts_with("it"), "{error}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(Published::decode(longer).unwrap_err().contains("12 bytes behind its head"));
        let mut newer = bytes;
        newer[4] = 9;
        assert!(Published::decode(newer).unwrap_err().contains("version 9"));
    }

    #[test]
    fn bare_metadata_is_read_as_well() {
        let bare = [&hello::MAGIC[..], b"..."].concat();
        assert_eq!(Published::decode(bare.clone()).unwrap().metadata, bare);
    }
}
