//! How labs come, are found, and go.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{During, LabError};
use crate::holder::{self, Holder, HolderId};
use crate::lab::{Lab, LabInfo, LabState};
use crate::named;
use crate::namespaces::{self, Identity, Namespaces};
use crate::netlink::Netlink;
use crate::privilege::Privilege;
use crate::processes;
use crate::registry::{self, Entry, Lock, Record, Registry, SCHEMA_VERSION};
use crate::spec::{LabSpec, Side, validate_name};
use crate::wiring::Wiring;

pub(crate) fn up(spec: &LabSpec) -> Result<Lab, LabError> {
    spec.validate()?;
    let registry = Registry::current();
    let lock = registry.lock()?;
    let replaced = match Remains::find(&registry, &spec.name)? {
        None => None,
        Some(remains) => match remains.state(false) {
            LabState::Broken { because } => {
                remains.remove(&lock)?;
                Some(because)
            }
            _ => return Err(LabError::AlreadyUp { name: spec.name.clone() }),
        },
    };
    match build(spec, &registry, &lock) {
        Ok(lab) => Ok(Lab { replaced, ..lab }),
        Err(error) => {
            if let Some(remains) = Remains::find(&registry, &spec.name)? {
                // The first failure is the one to report; what this leaves, `down` finds again.
                let _ = remains.remove(&lock);
            }
            Err(error)
        }
    }
}

pub(crate) fn open(name: &str) -> Result<Lab, LabError> {
    validate_name(name)?;
    let registry = Registry::current();
    let Some(remains) = Remains::find(&registry, name)? else { return Err(unknown(name)) };
    match remains.state(registry.is_locked()) {
        LabState::Ready => {}
        LabState::Changing => {
            let because = "another process is building or removing it right now".into();
            return Err(LabError::Broken { name: name.into(), because });
        }
        LabState::Broken { because } => {
            return Err(LabError::Broken { name: name.into(), because });
        }
    }
    let broken = |because: &str| LabError::Broken { name: name.into(), because: because.into() };
    let Some(Entry::Record(record)) = remains.entry else { return Err(broken("no record")) };
    let [Some(a), Some(b)] = remains.net else { return Err(broken("a namespace is missing")) };
    let namespaces = Namespaces { user: remains.user, net: [a, b] };
    let wiring = Wiring::new(&namespaces)?;
    finish(name, &record, namespaces, wiring)
}

pub(crate) fn list() -> Result<Vec<LabInfo>, LabError> {
    let registry = Registry::current();
    let locked = registry.is_locked();
    let mut labs = Vec::new();
    for name in names(&registry)? {
        // A lab may go while the list is made.
        if let Some(remains) = Remains::find(&registry, &name)? {
            labs.push(remains.info(locked));
        }
    }
    registry.tidy();
    Ok(labs)
}

/// `only` spares a lab of this name that has other namespaces.
pub(crate) fn remove(name: &str, only: Option<&Namespaces>) -> Result<(), LabError> {
    validate_name(name)?;
    let registry = Registry::current();
    if Remains::find(&registry, name)?.is_none() {
        registry.tidy();
        return Err(unknown(name));
    }
    let lock = registry.lock()?;
    // Whoever had the lock may have removed it, which is what was wanted.
    let Some(remains) = Remains::find(&registry, name)? else { return Ok(()) };
    let wanted = only.map(|namespaces| identities(&namespaces.net));
    if wanted.is_some_and(|wanted| !remains.identities().iter().all(|id| wanted.contains(id))) {
        return Err(unknown(name));
    }
    remains.remove(&lock)
}

/// Everything there is of a lab, whole or not.
struct Remains {
    name: String,
    privilege: Privilege,
    entry: Option<Entry>,
    /// Alive or not.
    holder: Option<HolderId>,
    net: [Option<OwnedFd>; 2],
    paths: [PathBuf; 2],
    user: Option<OwnedFd>,
}

impl Remains {
    /// `None` if no part of a lab of this name exists.
    fn find(registry: &Registry, name: &str) -> Result<Option<Self>, LabError> {
        let entry = registry.read(name)?;
        if registry.privileged() {
            // A name may stand for any namespace, even the machine's own, and removing a lab ends
            // all processes inside: only what was recorded as made for this lab counts as its.
            let recorded = match &entry {
                Some(Entry::Record(record)) => record.namespaces,
                _ => None,
            };
            let ours = |net: &OwnedFd| {
                let found = namespaces::identity(net);
                recorded.iter().flatten().any(|identity| found == Ok(*identity))
            };
            let net = named::open(name)?.map(|net| net.filter(ours));
            let paths = Side::BOTH.map(|side| named::path(name, side));
            let nothing = entry.is_none() && !paths.iter().any(|path| path.exists());
            let (name, privilege) = (name.to_owned(), Privilege::Root);
            let found = Self { name, privilege, entry, holder: None, net, paths, user: None };
            return Ok((!nothing).then_some(found));
        }
        let recorded = match &entry {
            Some(Entry::Record(record)) => record.holder.clone(),
            _ => None,
        };
        // A holder outlives its record where a session's directory is removed at logout.
        let holder = recorded.or_else(|| orphans().find(|(lab, _)| lab == name).map(|(_, id)| id));
        if entry.is_none() && holder.is_none() {
            return Ok(None);
        }
        let opened = holder.as_ref().map(HolderId::open).transpose()?.flatten();
        let path = |side| holder.as_ref().map(|holder| holder.path(side)).unwrap_or_default();
        let paths = Side::BOTH.map(path);
        let (user, net) = match opened {
            Some(Namespaces { user, net: [a, b] }) => (user, [Some(a), Some(b)]),
            None => (None, [None, None]),
        };
        let (name, privilege) = (name.to_owned(), Privilege::UserNamespace);
        Ok(Some(Self { name, privilege, entry, holder, net, paths, user }))
    }

    /// `locked` says that some process is changing labs, maybe this one.
    fn state(&self, locked: bool) -> LabState {
        let broken = |because: &str| LabState::Broken { because: because.into() };
        let whole = self.net.iter().all(Option::is_some);
        match &self.entry {
            Some(Entry::Record(record)) if record.ready && whole => LabState::Ready,
            _ if locked => LabState::Changing,
            None => broken("its record is missing"),
            Some(Entry::Unreadable) => broken("its record cannot be read"),
            Some(Entry::Record(record)) => {
                let same_boot = registry::boot_id().is_ok_and(|boot| boot == record.boot_id);
                match (same_boot, record.ready, &self.holder) {
                    (false, _, _) => broken("the machine was booted since"),
                    (_, false, _) => broken("building it was interrupted"),
                    (_, _, Some(_)) => broken("the process that held it has ended"),
                    (_, _, None) => broken("a namespace is missing"),
                }
            }
        }
    }

    fn info(self, locked: bool) -> LabInfo {
        let processes = self.processes().len();
        let mut state = self.state(locked);
        let record = match &self.entry {
            Some(Entry::Record(record)) => Some(record.clone()),
            _ => None,
        };
        let [path_a, path_b] = self.paths;
        let [net_a, net_b] = self.net;
        let namespaces =
            [net_a.as_ref().map(|_| path_a.clone()), net_b.as_ref().map(|_| path_b.clone())];
        let rails = match (net_a, net_b) {
            (Some(a), Some(b)) => {
                let namespaces = Namespaces { user: self.user, net: [a, b] };
                Wiring::new(&namespaces).and_then(|wiring| wiring.observe())
            }
            _ => Ok(Vec::new()),
        };
        if let (LabState::Ready, Some(record)) = (&state, &record) {
            let because = match &rails {
                Ok(rails) => missing_rails(rails.len(), record.rails),
                Err(error) => Some(error.to_string()),
            };
            state = because.map_or(LabState::Ready, |because| LabState::Broken { because });
        }
        let rails = rails.unwrap_or_default();
        LabInfo {
            name: self.name,
            state,
            privilege: self.privilege,
            namespaces,
            rails,
            queue_ms: record.as_ref().map(|record| record.queue_ms),
            mtu: record.as_ref().map(|record| record.mtu),
            processes,
        }
    }

    /// Removes everything; goes on after a failure and reports the first.
    fn remove(mut self, lock: &Lock<'_>) -> Result<(), LabError> {
        let mut first = processes::end_inside(&self.name, &self.identities(), self.holder_pid());
        let mut note = |result: Result<(), LabError>| {
            if first.is_ok() {
                first = result;
            }
        };
        // Links go by hand, not with their namespace: a process that would not end, or a socket
        // that somebody still holds, keeps a namespace alive.
        for socket in self.sockets() {
            note(socket.and_then(|socket| Wiring::remove_rails(&socket)));
        }
        self.net = [None, None];
        if let Some(holder) = &self.holder {
            note(holder.end());
        }
        if self.privilege == Privilege::Root {
            for side in Side::BOTH {
                note(named::remove(&self.name, side));
            }
        }
        // The record goes last: until then, a crash leaves something to start again from.
        match lock.is_last(&self.name) {
            Ok(true) => note(named::release_directory(&lock.note_path())),
            result => note(result.map(drop)),
        }
        note(lock.remove(&self.name));
        first
    }

    /// One socket per namespace that is left.
    fn sockets(&mut self) -> Vec<Result<Netlink, LabError>> {
        match self.net.each_mut().map(Option::take) {
            [Some(a), Some(b)] => {
                let namespaces = Namespaces { user: self.user.take(), net: [a, b] };
                Side::BOTH.map(|side| namespaces.netlink(side)).into()
            }
            [one, other] => {
                let left = one.or(other).and_then(|net| Some((net.try_clone().ok()?, net)));
                let alone = left.map(|(a, b)| Namespaces { user: None, net: [a, b] });
                alone.map(|namespaces| namespaces.netlink(Side::A)).into_iter().collect()
            }
        }
    }

    fn processes(&self) -> Vec<i32> {
        let found = processes::inside(&self.identities());
        let pids = found.into_iter().map(|pid| pid.as_raw_pid());
        pids.filter(|pid| *pid != self.holder_pid()).collect()
    }

    fn identities(&self) -> Vec<Identity> {
        identities(self.net.iter().flatten())
    }

    /// 0 is nobody's.
    fn holder_pid(&self) -> i32 {
        self.holder.as_ref().map_or(0, HolderId::pid)
    }
}

fn build(spec: &LabSpec, registry: &Registry, lock: &Lock<'_>) -> Result<Lab, LabError> {
    let mut record = Record {
        schema_version: SCHEMA_VERSION,
        boot_id: registry::boot_id()?,
        ready: false,
        rails: spec.rails.len(),
        queue_ms: spec.queue_ms,
        mtu: spec.mtu,
        holder: None,
        namespaces: None,
    };
    let mut file = lock.create(&spec.name, &record)?;
    let namespaces = if registry.privileged() {
        named::prepare_directory(&lock.note_path())?;
        let namespaces = named::create(&spec.name)?;
        let identity = |side| {
            let step = || format!("looking at the namespace of side {side}");
            namespaces::identity(namespaces.net(side)).during(step)
        };
        record.namespaces = Some([identity(Side::A)?, identity(Side::B)?]);
        lock.write(&mut file, &spec.name, &record)?;
        namespaces
    } else {
        hold(&spec.name, &mut record, &mut file, lock)?
    };
    let wiring = Wiring::new(&namespaces)?;
    wiring.build(spec, &namespaces)?;
    record.ready = true;
    lock.write(&mut file, &spec.name, &record)?;
    finish(&spec.name, &record, namespaces, wiring)
}

fn hold(
    name: &str,
    record: &mut Record,
    file: &mut File,
    lock: &Lock<'_>,
) -> Result<Namespaces, LabError> {
    let holder = Holder::spawn(file.as_fd())?;
    let id = holder.id().clone();
    record.holder = Some(id.clone());
    lock.write(file, name, record)?;
    // Only a holder that is on record may outlive this process.
    holder.keep()?;
    let gone = rustix::io::Errno::SRCH;
    id.open()?.ok_or(gone).during(|| "opening the holder's namespaces".into())
}

fn finish(
    name: &str,
    record: &Record,
    namespaces: Namespaces,
    wiring: Wiring,
) -> Result<Lab, LabError> {
    let rails = wiring.observe()?;
    if let Some(because) = missing_rails(rails.len(), record.rails) {
        return Err(LabError::Broken { name: name.into(), because });
    }
    let (privilege, paths) = match &record.holder {
        Some(holder) => (Privilege::UserNamespace, Side::BOTH.map(|side| holder.path(side))),
        None => (Privilege::Root, Side::BOTH.map(|side| named::path(name, side))),
    };
    Ok(Lab {
        name: name.into(),
        privilege,
        queue_ms: record.queue_ms,
        mtu: record.mtu,
        namespaces: Arc::new(namespaces),
        paths,
        wiring,
        rails,
        replaced: None,
    })
}

fn missing_rails(found: usize, built: usize) -> Option<String> {
    (found != built).then(|| format!("{found} of its {built} rails are there"))
}

/// Every name that something is left of, in order.
fn names(registry: &Registry) -> Result<Vec<String>, LabError> {
    let mut names = registry.labs()?;
    if registry.privileged() {
        names.extend(named::labs()?);
    } else {
        names.extend(orphans().map(|(lab, _)| lab));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn orphans() -> impl Iterator<Item = (String, HolderId)> {
    let named = |(id, record): (HolderId, PathBuf)| Some((registry::lab_of(&record)?, id));
    holder::running().into_iter().filter_map(named)
}

fn identities<'a>(namespaces: impl IntoIterator<Item = &'a OwnedFd>) -> Vec<Identity> {
    namespaces.into_iter().filter_map(|net| namespaces::identity(net).ok()).collect()
}

fn unknown(name: &str) -> LabError {
    let known = names(&Registry::current()).unwrap_or_default();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    LabError::UnknownLab { name: name.into(), known }
}
