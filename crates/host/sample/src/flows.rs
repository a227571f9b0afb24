//! The TCP connections of the followed processes.

use std::collections::{HashMap, HashSet};
use std::fs;

use polyrail_host::Sysroot;

use crate::diag::{Connection, SockDiag};

/// A connection, and the process that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) pid: u32,
    pub(crate) connection: Connection,
}

/// Finds the connections of followed processes without searching the tables of open files each
/// time.
#[derive(Debug)]
pub(crate) struct Flows {
    diag: SockDiag,
    /// The followed process that holds each connection, by the kernel's cookie; `None` for other
    /// processes' connections.
    owners: HashMap<u64, Option<u32>>,
}

impl Flows {
    pub(crate) fn open() -> std::io::Result<Self> {
        Ok(Self { diag: SockDiag::open()?, owners: HashMap::new() })
    }

    /// Returns the connections of `pids`, in a stable order.
    pub(crate) fn read(&mut self, root: &Sysroot, pids: &[u32]) -> std::io::Result<Vec<Flow>> {
        if pids.is_empty() {
            return Ok(Vec::new());
        }
        let mut connections = Vec::new();
        let mut all = HashSet::new();
        let owners = &self.owners;
        self.diag.connections(|connection| {
            all.insert(connection.cookie);
            // Drop connections of other processes at once, because there may be a hundred thousand.
            if owners.get(&connection.cookie) != Some(&None) {
                connections.push(connection);
            }
        })?;
        self.owners.retain(|cookie, _| all.contains(cookie));
        if connections.iter().any(|connection| !self.owners.contains_key(&connection.cookie)) {
            let sockets = sockets(root, pids);
            for connection in &connections {
                let owner = sockets.get(&connection.inode).copied();
                self.owners.insert(connection.cookie, owner);
            }
        }
        let mut flows: Vec<Flow> = connections
            .into_iter()
            .filter_map(|connection| {
                let pid = (*self.owners.get(&connection.cookie)?)?;
                Some(Flow { pid, connection })
            })
            .collect();
        flows
            .sort_unstable_by_key(|flow| (flow.pid, flow.connection.local, flow.connection.remote));
        Ok(flows)
    }
}

/// Maps the inode of each open socket to the process that holds it.
fn sockets(root: &Sysroot, pids: &[u32]) -> HashMap<u32, u32> {
    let mut sockets = HashMap::new();
    for &pid in pids {
        let folder = root.on_disk(format!("/proc/{pid}/fd"));
        let Ok(entries) = folder.and_then(fs::read_dir) else { continue };
        for entry in entries.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let inode = target.to_str().and_then(|text| {
                text.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u32>().ok()
            });
            if let Some(inode) = inode {
                sockets.insert(inode, pid);
            }
        }
    }
    sockets
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn own_connections_are_found_and_new_ones_join() {
        let root = Sysroot::live();
        let pids = [std::process::id()];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut flows = Flows::open().unwrap();
        let mut count = || {
            let flows = flows.read(&root, &pids).unwrap();
            let is_ours = |flow: &&Flow| {
                flow.connection.local.port() == port || flow.connection.remote.port() == port
            };
            flows.iter().filter(is_ours).count()
        };
        assert_eq!(count(), 0);
        let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap();
        assert_eq!(count(), 2, "both ends are ours");
        let _second = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _accepted = listener.accept().unwrap();
        assert_eq!(count(), 4);
        drop((first, accepted));
        assert_eq!(count(), 2);
    }
}
