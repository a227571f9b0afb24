//! Secrets by which other engines may connect to this one, and this one to them.

mod host;

use std::io;
use std::path::Path;

use parking_lot::RwLock;
use polyrail_config::{Auth, Config};
use polyrail_secure::{Capability, Identity, Keyring};

use self::host::host_secret;
use crate::base::certificate_files::CertificateFiles;
use crate::base::error::EngineError;
use crate::base::secret_file::read_file;
use crate::engine::credentials::Credentials;

/// Creates fresh credentials, with the secrets and the certificate of the settings, and the secret of this user on this
/// host. `host`: its name.
pub(crate) fn credentials(config: &Config, host: &str) -> Result<Credentials, EngineError> {
    let random = |source: io::Error| EngineError::System { what: "random bits", source };
    let identity = Identity::fresh().map_err(random)?;
    let capability = Capability::fresh().map_err(random)?;
    let shared = match config.secret_file.as_str() {
        "" => Vec::new(),
        path => read_file(Path::new(path)).map_err(EngineError::Secrets)?,
    };
    let certificates = CertificateFiles::open(config, identity.public(), host)
        .map_err(EngineError::Certificates)?;
    let (certificates, certified) = certificates.unzip();
    // Without it one way to connect is missing, and clients that try it get an error that says so.
    let of_host = host_secret()
        .inspect_err(|error| {
            tracing::warn!(target: "polyrail::peer", %error,
                "no secret of this user on this host: its other processes need another way in");
        })
        .ok();
    let open = config.auth == Auth::None;
    if open {
        tracing::warn!(target: "polyrail::peer",
            "auth=none: whoever reaches the port may join");
    }
    let keyring =
        Keyring { capability: capability.secret(), shared, host: of_host, certified, open };
    Ok(Credentials { identity, capability, keyring: RwLock::new(keyring), certificates })
}
