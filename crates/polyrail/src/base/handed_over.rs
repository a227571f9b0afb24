//! Tells byte strings apart that engines hand to each other: programs mix them up easily.

use polyrail_proto::hello;

use crate::base::published::FILE_MAGIC;

/// What the description of a region begins with.
pub(crate) const REGION_MAGIC: [u8; 4] = *b"PLYM";
/// What every invitation begins with as a text.
pub(crate) const INVITATION_PREFIX: &str = "pr2-";

/// What these bytes are, if an engine made them, and where they belong.
pub(crate) fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] = [
        (&hello::MAGIC, "they are an engine's metadata: pass them to `add_peer`"),
        (&REGION_MAGIC, "they are the description of a region: pass them to `import`"),
        (&FILE_MAGIC, "they are a file that `publish` wrote: pass its path to `find_peer`"),
        (INVITATION_PREFIX.as_bytes(), "they are an invitation: pass it to `connect_by`"),
    ];
    known.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, what)| what)
}
