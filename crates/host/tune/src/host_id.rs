//! Identity of a machine and its current boot.

use polyrail_host::{ReadError, Sysroot};
use serde::{Deserialize, Serialize};

use crate::hash::fnv1a;

/// One boot of one machine. Plans and journals are valid for that boot only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostId {
    /// The kernel's random name for this boot.
    pub boot_id: String,
    /// The machine's name, for messages.
    pub hostname: String,
    /// The kernel's release, for messages.
    pub kernel: String,
    /// A hash of the machine's identity, which does not reveal it.
    pub machine: String,
    /// A hash of the folder of a copy of a machine; empty for the machine itself. A copy may hold the machine's own
    /// names, and changes in a copy are never undone on the machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub copy: String,
}

/// The value of fields that a copy lacks.
const NOT_TOLD: &str = "unknown";

impl HostId {
    /// Reads the identity below the root. Snapshots leave out the machine's name and boot on
    /// purpose.
    ///
    /// # Errors
    /// [`ReadError`] if `/proc` of the running machine is missing.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        let told = |name: Result<String, ReadError>| match name {
            Err(_) if !root.is_live() => Ok(NOT_TOLD.to_owned()),
            name => name,
        };
        let hostname = told(root.hostname())?;
        let machine = match root.read_optional("/etc/machine-id").ok().flatten() {
            Some(id) if !id.is_empty() => id,
            // Images without a machine id differ by their host name.
            _ => hostname.clone(),
        };
        Ok(Self {
            boot_id: told(root.boot_id())?,
            kernel: told(root.kernel())?,
            machine: format!("{:016x}", fnv1a(machine.as_bytes())),
            hostname,
            copy: match root.is_live() {
                true => String::new(),
                false => {
                    let folder = root.root();
                    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
                    format!("{:016x}", fnv1a(folder.as_os_str().as_encoded_bytes()))
                }
            },
        })
    }

    /// Whether `other` is the same machine since the same boot.
    pub fn is_same_boot(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id && self.machine == other.machine && self.is_same_place(other)
    }

    /// Whether both are the machine itself, or the same copy of one.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.copy == other.copy
    }
}
