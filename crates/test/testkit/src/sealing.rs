//! Keys of simulated connections. There is no handshake: each connection has its own keys by its
//! number, and each direction another one.

use polyrail_secure::{Keys, Sealer};

use crate::network::ConnectionId;
use crate::rng::Rng;

/// What one end of a connection seals and opens with; `connects`: the end that connected.
pub fn keys(id: ConnectionId, connects: bool) -> Keys {
    let key = |direction: u64| {
        let mut bytes = [0; 32];
        Rng::new(u64::from(id.0) << 1 | direction).fill(&mut bytes);
        bytes
    };
    let (data, acks) = (key(0), key(1));
    if connects { Keys::new(data, acks) } else { Keys::new(acks, data) }
}

/// Appends a record of `plain`, which `raw` bytes will follow as they are.
pub fn seal(sealer: &mut Sealer, plain: &[u8], raw: u32, out: &mut Vec<u8>) {
    let begin = sealer.begin(out);
    out.extend_from_slice(plain);
    sealer.seal(out, begin, raw);
}
