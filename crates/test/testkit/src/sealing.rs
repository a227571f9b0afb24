//! Keys of simulated connections. There is no handshake: the keys of each connection derive from its number, and each
//! direction has another one.

use polyrail_secure::{Keys, Sealer};

use crate::network::ConnectionId;
use crate::rng::Rng;

/// Keys of one end of a connection. `connects` is true for the end that connected.
pub fn keys(id: ConnectionId, connects: bool) -> Keys {
    let key = |direction: u64| {
        let mut bytes = [0; 32];
        Rng::new(u64::from(id.0) << 1 | direction).fill(&mut bytes);
        bytes
    };
    let (data, acks) = (key(0), key(1));
    if connects { Keys::new(data, acks) } else { Keys::new(acks, data) }
}

/// Appends a record of `plain`, which will be followed by `raw` unsealed bytes.
pub fn seal(sealer: &mut Sealer, plain: &[u8], raw: u32, out: &mut Vec<u8>) {
    let begin = sealer.begin(out);
    out.extend_from_slice(plain);
    sealer.seal(out, begin, raw);
}
