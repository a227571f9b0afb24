//! Input of the NCCL plugin from other processes: messages of connections, and handles.

use polyrail_nccl_abi::HANDLE_BYTES;

use crate::wire::{Body, EXPRESS_BYTES, Handle, Message, note, set_note};

/// Accepted messages encode to the same bytes, and hold no more than a message may.
pub(crate) fn nccl(data: &[u8]) {
    if let Ok(message) = Message::decode(data) {
        assert_eq!(message.encode(), data);
        if let Body::Told { bytes, .. } = message.body {
            assert!(bytes.len() <= EXPRESS_BYTES);
        }
    }
    let mut handle = [0; HANDLE_BYTES];
    let len = data.len().min(HANDLE_BYTES);
    handle[..len].copy_from_slice(&data[..len]);
    let before = Handle::decode(&handle);
    if let Ok(decoded) = &before {
        assert!(!decoded.addresses.is_empty());
        let again = Handle::decode(&decoded.encode());
        assert_eq!(again.as_ref(), Ok(decoded));
    }
    // A note of the connecting side changes nothing else in the handle.
    let noted = note(&handle) ^ u64::MAX;
    set_note(&mut handle, noted);
    assert_eq!(note(&handle), noted);
    assert_eq!(Handle::decode(&handle), before);
}
