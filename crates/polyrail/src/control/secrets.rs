//! By which secrets others may connect to an engine, and it to others.

mod host;

use std::io;
use std::path::Path;

use polyrail_config::{Auth, Config};
use polyrail_secure::{Capability, Identity, Keyring};

use self::host::host_secret;
use crate::base::error::EngineError;
use crate::base::secret_file::read_file;
use crate::engine::credentials::Credentials;

/// Fresh credentials, with the secrets of the settings and of this user on this host.
pub(crate) fn credentials(config: &Config) -> Result<Credentials, EngineError> {
    let random = |source: io::Error| EngineError::System { what: "random bits", source };
    let identity = Identity::fresh().map_err(random)?;
    let capability = Capability::fresh().map_err(random)?;
    let shared = match config.secret_file.as_str() {
        "" => Vec::new(),
        path => read_file(Path::new(path)).map_err(EngineError::Secrets)?,
    };
    // Without it one way to connect is missing, and whoever tries that is told so.
    let host = host_secret()
        .inspect_err(|error| {
            tracing::debug!(target: "polyrail::peer", %error, "no secret of this user");
        })
        .ok();
    let open = config.auth == Auth::None;
    if open {
        tracing::warn!(target: "polyrail::peer",
            "auth=none: whoever reaches the port may join");
    }
    let keyring = Keyring { capability: capability.secret(), shared, host, open };
    Ok(Credentials { identity, capability, keyring })
}
