//! Installed net plugins of NCCL, and the daemon that GPUDirect-TCPX needs.
//!
//! This module only reads libraries. Loading one runs its code; `polyrail nccl try` does that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Folders where cloud images and packages install plugins.
const FOLDERS: &[&str] = &[
    "/opt/amazon/ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/fastrak/lib64",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/tcpx/lib64",
    "/var/lib/tcpx/lib64",
];
/// Start of the file names that NCCL looks for.
const FILE: &str = "libnccl-net";
/// Start of the names of the tables that a plugin exports; the table's version follows.
const TABLE: &[u8] = b"ncclNetPlugin_v";
/// The name that GPUDirect-TCPX uses for itself in its messages (`src/macro.h` of its sources).
const TCPX: &[u8] = b"GPUDirectTCPX";
/// Largest file to read, in bytes. The largest known plugin has a tenth of that.
const LARGEST_BYTES: u64 = 256 << 20;

/// A net plugin of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginProbe {
    pub path: PathBuf,
    /// Versions of the tables that the plugin exports.
    pub tables: Vec<u32>,
    /// Whether this plugin is GPUDirect-TCPX.
    pub is_tcpx: bool,
}

/// Returns the plugins in the usual folders and in those of `library_path`, each once.
pub(crate) fn find(library_path: Option<&str>) -> Vec<PluginProbe> {
    let named = library_path.unwrap_or_default().split(':').filter(|folder| !folder.is_empty());
    in_folders(named.chain(FOLDERS.iter().copied()).map(Path::new))
}

fn in_folders<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<PluginProbe> {
    let mut known = BTreeSet::new();
    let mut plugins = Vec::new();
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort_unstable();
        for path in files {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(FILE) || !name.contains(".so") {
                continue;
            }
            // A library has several names, which are links.
            let is_new = fs::canonicalize(&path).is_ok_and(|real| known.insert(real));
            let is_sane =
                fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= LARGEST_BYTES);
            if !is_new || !is_sane {
                continue;
            }
            let Ok(bytes) = fs::read(&path) else { continue };
            let is_tcpx = bytes.windows(TCPX.len()).any(|text| text == TCPX);
            plugins.push(PluginProbe { tables: tables_of(&bytes), is_tcpx, path });
        }
    }
    plugins
}

/// Returns the versions of the tables in a library, from its symbol names, which end with a zero byte.
fn tables_of(bytes: &[u8]) -> Vec<u32> {
    let version = |text: &[u8]| str::from_utf8(text.strip_prefix(TABLE)?).ok()?.parse().ok();
    let versions: BTreeSet<u32> = bytes.split(|byte| *byte == 0).filter_map(version).collect();
    versions.into_iter().collect()
}

/// Returns the file names of the sockets in `/proc/net/unix` on which the daemon of GPUDirect-TCPX (`tcpgpudmarxd`)
/// listens. The daemon steers flows and gives out its memory of each GPU.
pub(crate) fn daemon_sockets(unix: &str) -> Vec<String> {
    /// Flag in the fourth column: the socket listens.
    const LISTENS: u32 = 1 << 16;
    let listening = |line: &str| {
        let mut words = line.split_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let (_, name) = words.nth(3)?.rsplit_once('/')?;
        let is_its = name == RULES || GPU_MEMORY.iter().any(|prefix| name.starts_with(prefix));
        (is_its && flags & LISTENS != 0).then(|| name.to_owned())
    };
    let names: BTreeSet<String> = unix.lines().filter_map(listening).collect();
    names.into_iter().collect()
}

/// Socket where the daemon takes rules for flows.
pub(crate) const RULES: &str = "rx_rule_manager";
/// Start of socket names; the PCI address of a GPU follows.
const GPU_MEMORY: [&str; 2] = ["get_gpu_fd_", "get_gpu_metadata_"];

/// Whether the daemon gives out memory of the GPU with this PCI address on this socket.
pub(crate) fn is_of_gpu(socket: &str, address: &str) -> bool {
    let is_its = |prefix: &str| {
        socket.strip_prefix(prefix).is_some_and(|of| of.eq_ignore_ascii_case(address))
    };
    GPU_MEMORY.iter().any(|prefix| is_its(prefix))
}

impl PluginProbe {
    /// Returns a copy without the folder, unless the folder is one of the usual ones: a path may contain user names.
    pub(crate) fn redacted(&self) -> Self {
        let folder = self.path.parent().and_then(Path::to_str).unwrap_or_default();
        let path = match (FOLDERS.contains(&folder), self.path.file_name()) {
            (false, Some(name)) => Path::new("LD_LIBRARY_PATH").join(name),
            _ => self.path.clone(),
        };
        Self { path, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_found_once_and_known_by_what_they_export() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let tcpx = b"\x7fELF\0ncclNetPlugin_v7\0NET/GPUDirectTCPX : listens\0ncclNetPlugin_vX\0";
        put("libnccl-net.so.3", tcpx);
        std::os::unix::fs::symlink("libnccl-net.so.3", folder.path().join("libnccl-net.so"))
            .unwrap();
        put("libnccl-net-ofi.so", b"\0ncclNetPlugin_v10\0ncclNetPlugin_v6\0ncclNetPlugin_v10\0");
        put("libnccl.so", tcpx);
        put("libnccl-net.txt", tcpx);
        let found = in_folders([folder.path(), folder.path()].into_iter());
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.path.file_name().unwrap().to_str().unwrap(), &*it.tables, it.is_tcpx))
            .collect();
        let expected: [(&str, &[u32], bool); 2] =
            [("libnccl-net-ofi.so", &[6, 10], false), ("libnccl-net.so", &[7], true)];
        assert_eq!(told, expected);
        assert_eq!(found[1].redacted().path, Path::new("LD_LIBRARY_PATH/libnccl-net.so"));
        let usual =
            PluginProbe { path: "/usr/local/lib/libnccl-net.so".into(), ..found[1].clone() };
        assert_eq!(usual.redacted(), usual);
    }

    #[test]
    fn the_daemon_is_known_by_the_sockets_on_which_it_listens() {
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31 /run/tcpx/rx_rule_manager\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 32 /run/tcpx/rx_rule_manager\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 33 /run/tcpx/get_gpu_fd_0000:04:00.0\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 34 /run/tcpx/get_gpu_fd_0000:05:00.0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 35 /run/user/1000/bus\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 36\n";
        let sockets = daemon_sockets(unix);
        assert_eq!(sockets, ["get_gpu_fd_0000:04:00.0", RULES]);
        assert!(
            is_of_gpu(&sockets[0], "0000:04:00.0")
                && is_of_gpu("get_gpu_fd_0000:C4:00.0", "0000:c4:00.0")
        );
        assert!(!is_of_gpu(&sockets[0], "0000:05:00.0") && !is_of_gpu(RULES, "0000:04:00.0"));
    }
}
