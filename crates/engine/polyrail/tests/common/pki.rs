//! A certificate authority for engines, and the files that it makes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use polyrail::{Config, Engine};
use polyrail_secure::{Certified, Files, Identity, Policy, UnixSeconds};
pub(crate) use polyrail_testkit::pki::Usage;
use polyrail_testkit::pki::{Issuer, Key, Kind, Params};
use tempfile::TempDir;

use super::{builder, config};

pub(crate) const DAY: u64 = 86_400;

pub(crate) struct Ca {
    issuer: Issuer,
    pub(crate) pem: String,
}

/// Parameters of a certificate. By default it has both usages, and is valid for an hour before and after now.
pub(crate) struct Wanted<'a> {
    pub(crate) names: &'a [&'a str],
    /// Validity as seconds since 1970.
    pub(crate) valid: (u64, u64),
    pub(crate) usages: &'a [Usage],
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) chain: String,
    pub(crate) key: String,
}

/// The files of an engine.
pub(crate) struct Place {
    folder: TempDir,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) const BOTH: &[Usage] = &[Usage::ClientAuth, Usage::ServerAuth];

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let valid = (now() - 30 * DAY, now() + 30 * DAY);
        let (issuer, pem) = Issuer::root(&Params::of_ca(name, valid));
        Self { issuer, pem }
    }

    pub(crate) fn makes(&self, wanted: Wanted<'_>) -> Leaf {
        let params = Params::of_engine(wanted.names, wanted.valid, wanted.usages);
        let key = Key::new(Kind::P256);
        Leaf { chain: self.issuer.certificate(&key, &params), key: key.pem() }
    }

    pub(crate) fn leaf(&self, name: &str) -> Leaf {
        let valid = (now() - 3600, now() + 3600);
        self.makes(Wanted { names: &[name], valid, usages: BOTH })
    }

    /// Makes the files of an engine of that name.
    pub(crate) fn place(&self, name: &str) -> Place {
        Place::with(&self.leaf(name), &self.pem)
    }

    /// Makes an engine of that name that accepts any other.
    pub(crate) fn engine(&self, name: &str) -> Engine {
        self.place(name).engine("*")
    }
}

impl Place {
    pub(crate) fn with(leaf: &Leaf, trust: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.put(leaf, trust);
        place
    }

    /// Replaces the files.
    pub(crate) fn put(&self, leaf: &Leaf, trust: &str) {
        self.write("cert.pem", &leaf.chain);
        self.write("key.pem", &leaf.key);
        self.write("ca.pem", trust);
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the settings of an engine with these files and a single rail.
    pub(crate) fn config(&self, allowed: &str, more: &[(&str, &str)]) -> Config {
        config_of(&["cert.pem", "key.pem", "ca.pem"].map(|name| self.path(name)), allowed, more)
    }

    pub(crate) fn engine(&self, allowed: &str) -> Engine {
        builder().config(self.config(allowed, &[])).build().unwrap()
    }
}

/// Returns the settings of an engine with these files: chain, key and CAs.
pub(crate) fn config_of(files: &[PathBuf; 3], allowed: &str, more: &[(&str, &str)]) -> Config {
    let [chain, key, trust] = files.each_ref().map(|path| Path::to_str(path).unwrap());
    let own = [
        ("rails", "127.0.0.1"),
        ("certificate_file", chain),
        ("certificate_key_file", key),
        ("trust_file", trust),
        ("allowed_names", allowed),
    ];
    config(&[&own, more].concat())
}

/// A policy whose clock is wrong by this many seconds, and that allows every name.
struct Liar(i64);

impl Policy for Liar {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(now().saturating_add_signed(self.0))
    }

    fn allows(&self, _: &str) -> bool {
        true
    }
}

impl Leaf {
    /// Loads it for an engine whose clock is wrong by `clock` seconds.
    pub(crate) fn certified(&self, key: &Identity, trust: &str, clock: i64) -> Arc<Certified> {
        let (chain, private) = (self.chain.as_bytes(), self.key.as_bytes());
        let files = Files { chain, key: private, trust: trust.as_bytes() };
        Arc::new(Certified::new(&files, key.public(), Arc::new(Liar(clock))).unwrap())
    }
}
