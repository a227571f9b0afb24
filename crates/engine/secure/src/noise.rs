//! Noise protocol of keys and handshakes.

use snow::Builder;
use snow::params::NoiseParams;

const PATTERN: &str = "Noise_XXpsk0_25519_ChaChaPoly_SHA256";

pub(crate) fn builder() -> Builder<'static> {
    // The pattern is a constant, and a test builds one.
    let params: NoiseParams = PATTERN.parse().expect("a pattern of the library");
    Builder::new(params)
}
