//! Building, finding and removing labs.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{During, LabError};
use crate::holder::{self, Holder, HolderId};
use crate::lab::{Lab, LabInfo, LabState};
use crate::named;
use crate::namespaces::{self, Identity, Namespaces};
use crate::netlink::Netlink;
use crate::network::Network;
use crate::node::Form;
use crate::privilege::Privilege;
use crate::processes::{self, ProcessId};
use crate::registry::{self, Entry, Lock, Record, Registry, SCHEMA_VERSION};
use crate::spec::{LabSpec, validate_name};
use crate::wiring::Wiring;

pub(crate) fn up(spec: &LabSpec, is_stopped: &dyn Fn() -> bool) -> Result<Lab, LabError> {
    spec.validate()?;
    let go_on = || match is_stopped() {
        true => Err(LabError::Interrupted { name: spec.name.clone() }),
        false => Ok(()),
    };
    let registry = Registry::current();
    let lock = registry.lock_while(&go_on)?;
    let replaced = match Remains::find(&registry, &spec.name)? {
        None => None,
        Some(remains) => match remains.state(false) {
            LabState::Elsewhere => return Err(in_use(&spec.name)),
            LabState::Broken { because } => {
                remains.remove(&registry, &lock)?;
                Some(because)
            }
            _ => return Err(LabError::AlreadyUp { name: spec.name.clone() }),
        },
    };
    let abandoned = match spec.ends_with_process {
        true => remove_abandoned(&registry, &lock, &go_on)?,
        false => Vec::new(),
    };
    match build(spec, &registry, &lock, &go_on) {
        Ok(lab) => Ok(Lab { replaced, abandoned, ..lab }),
        Err(error) => {
            if let Some(remains) = Remains::find(&registry, &spec.name)? {
                // Report the first failure. Only an interruption promises that nothing is left, so then a failed
                // removal is reported instead. `down` finds any remains again.
                let removed = remains.remove(&registry, &lock);
                if matches!(error, LabError::Interrupted { .. }) {
                    removed?;
                }
            }
            Err(error)
        }
    }
}

/// Removes every lab that was tied to a process that has ended. A failed removal does not stop the others: that lab
/// stays listed.
fn remove_abandoned(
    registry: &Registry,
    lock: &Lock<'_>,
    go_on: &dyn Fn() -> Result<(), LabError>,
) -> Result<Vec<String>, LabError> {
    let mut removed = Vec::new();
    for name in names(registry)? {
        go_on()?;
        if let Ok(Some(remains)) = Remains::find(registry, &name)
            && remains.ended_owner().is_some()
            && remains.remove(registry, lock).is_ok()
        {
            removed.push(name);
        }
    }
    Ok(removed)
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
        LabState::Elsewhere => return Err(in_use(name)),
    }
    let broken = |because: &str| LabError::Broken { name: name.into(), because: because.into() };
    let Some(Entry::Record(record)) = remains.entry else { return Err(broken("no record")) };
    let net = remains.net.into_iter().collect::<Option<Vec<_>>>();
    let Some(net) = net else { return Err(broken("a namespace is missing")) };
    let namespaces = Namespaces { user: remains.user, net };
    let wiring = Wiring::new(&namespaces, remains.form, record.network)?;
    finish(name, &record, namespaces, wiring)
}

pub(crate) fn list() -> Result<Vec<LabInfo>, LabError> {
    let registry = Registry::current();
    let locked = registry.is_locked();
    let mut labs = Vec::new();
    for name in names(&registry)? {
        // A lab may disappear while the list is made.
        if let Some(remains) = Remains::find(&registry, &name)? {
            labs.push(remains.info(locked));
        }
    }
    tidy(&registry);
    Ok(labs)
}

/// Removes leftovers of the last lab once no lab has a name any more.
fn tidy(registry: &Registry) {
    if let Some(lock) = registry.lock_if_free()
        && registry.privileged()
        && names(registry).is_ok_and(|names| names.is_empty())
    {
        // A crash, or a program that was reading the directory, prevented this earlier.
        let _ = named::release_directory(&lock.note_path());
    }
}

/// Removes a lab; `only` spares a lab of this name that has other namespaces.
pub(crate) fn remove(name: &str, only: Option<&Namespaces>) -> Result<(), LabError> {
    validate_name(name)?;
    let registry = Registry::current();
    if Remains::find(&registry, name)?.is_none() {
        tidy(&registry);
        return Err(unknown(name));
    }
    let lock = registry.lock()?;
    // The previous lock holder may have removed the lab, which is the wanted result.
    let Some(remains) = Remains::find(&registry, name)? else { return Ok(()) };
    let wanted = only.map(|namespaces| identities(&namespaces.net));
    if wanted.is_some_and(|wanted| !remains.identities().iter().all(|id| wanted.contains(id))) {
        return Err(unknown(name));
    }
    if remains.state(false) == LabState::Elsewhere {
        return Err(in_use(name));
    }
    remains.remove(&registry, &lock)
}

fn in_use(name: &str) -> LabError {
    LabError::InUse { name: name.into(), process: None }
}

/// Every existing part of a lab, complete or not.
struct Remains {
    name: String,
    privilege: Privilege,
    entry: Option<Entry>,
    holder: Option<HolderId>,
    form: Form,
    net: Vec<Option<OwnedFd>>,
    paths: Vec<PathBuf>,
    user: Option<OwnedFd>,
    /// Whether the process that the lab is tied to still runs.
    is_owned: bool,
}

impl Remains {
    /// Finds the parts of a lab; `None` if no part of a lab of this name exists.
    fn find(registry: &Registry, name: &str) -> Result<Option<Self>, LabError> {
        let entry = registry.read(name)?;
        let is_owned = registry.is_owned(name);
        if registry.privileged() {
            // A name may stand for any namespace, even the machine's own, and removing a lab ends
            // all processes inside. So only namespaces recorded as made for this lab are treated as
            // part of it.
            let recorded = match &entry {
                Some(Entry::Record(record)) => record.namespaces.clone(),
                _ => None,
            };
            let form = match &entry {
                Some(Entry::Record(record)) => Form::of(record.nodes),
                _ => named::form(name)?,
            };
            let ours = |net: &OwnedFd| {
                let found = namespaces::identity(net);
                recorded.iter().flatten().any(|identity| found == Ok(*identity))
            };
            let net = named::open(name, form)?.into_iter().map(|net| net.filter(ours)).collect();
            let paths = paths_of(name, form);
            let nothing = entry.is_none() && !paths.iter().any(|path| path.exists());
            let (name, privilege) = (name.to_owned(), Privilege::Root);
            let (holder, user) = (None, None);
            let found = Self { name, privilege, entry, holder, form, net, paths, user, is_owned };
            return Ok((!nothing).then_some(found));
        }
        let recorded = match &entry {
            Some(Entry::Record(record)) => record.holder.clone(),
            _ => None,
        };
        // A holder outlives its record where logout removes the session's directory.
        let holder = recorded.or_else(|| orphans().find(|(lab, _)| lab == name).map(|(_, id)| id));
        if entry.is_none() && holder.is_none() {
            return Ok(None);
        }
        let opened = holder.as_ref().map(HolderId::open).transpose()?.flatten();
        let recorded = match &entry {
            Some(Entry::Record(record)) => Some(Form::of(record.nodes)),
            _ => None,
        };
        let told = || holder.as_ref().and_then(HolderId::form);
        let form = recorded.or_else(told).unwrap_or(Form::Pair);
        let mut paths = holder.as_ref().map(HolderId::paths).unwrap_or_default();
        paths.resize(form.seats(), PathBuf::new());
        let (user, net) = opened.map_or((None, Vec::new()), |found| (found.user, found.net));
        let mut net = net.into_iter().map(Some).collect::<Vec<_>>();
        net.resize_with(form.seats(), || None);
        let (name, privilege) = (name.to_owned(), Privilege::UserNamespace);
        Ok(Some(Self { name, privilege, entry, holder, form, net, paths, user, is_owned }))
    }

    /// Returns the state; `locked` is set while a process is changing labs, maybe this one.
    fn state(&self, locked: bool) -> LabState {
        let broken = |because: &str| LabState::Broken { because: because.into() };
        let whole = self.net.iter().all(Option::is_some);
        match &self.entry {
            Some(Entry::Record(record)) if record.ready && whole => match self.ended_owner() {
                Some(pid) => broken(&format!("process {pid}, which made it for itself, has ended")),
                None => LabState::Ready,
            },
            _ if locked => LabState::Changing,
            _ if self.is_owned_elsewhere() => LabState::Elsewhere,
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

    /// The process that the lab was tied to, if that process has ended.
    fn ended_owner(&self) -> Option<i32> {
        self.unseen_owner().filter(|_| !self.is_owned)
    }

    /// Whether the lab's owner runs but is not visible from this process, for example in a container with its own PIDs.
    fn is_owned_elsewhere(&self) -> bool {
        self.is_owned && self.unseen_owner().is_some()
    }

    /// The process that the lab is tied to, if it is not visible from this process.
    fn unseen_owner(&self) -> Option<i32> {
        let Some(Entry::Record(record)) = &self.entry else { return None };
        let owner = record.owner.as_ref()?;
        owner.process().is_none().then_some(owner.pid)
    }

    fn info(self, locked: bool) -> LabInfo {
        let processes = self.processes().len();
        let mut state = self.state(locked);
        let record = match &self.entry {
            Some(Entry::Record(record)) => Some(record.clone()),
            _ => None,
        };
        let network = record.as_ref().map_or_else(Network::default, |record| record.network);
        let there = |(net, path): (&Option<OwnedFd>, PathBuf)| net.as_ref().map(|_| path);
        let mut namespaces = self.net.iter().zip(self.paths).map(there).collect::<Vec<_>>();
        let switch = self.form.switch().and_then(|_| namespaces.pop()).flatten();
        let rails = match self.net.into_iter().collect::<Option<Vec<_>>>() {
            Some(net) => {
                let namespaces = Namespaces { user: self.user, net };
                Wiring::new(&namespaces, self.form, network).and_then(|wiring| wiring.observe())
            }
            None => Ok(Vec::new()),
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
            is_switched: self.form.switch().is_some(),
            switch,
            network,
            rails,
            queue_ms: record.as_ref().map(|record| record.queue_ms),
            mtu: record.as_ref().map(|record| record.mtu),
            processes,
        }
    }

    /// Removes everything; continues after a failure and reports the first.
    fn remove(mut self, registry: &Registry, lock: &Lock<'_>) -> Result<(), LabError> {
        let mut first = processes::end_inside(&self.name, &self.identities(), self.holder_pid());
        let mut note = |result: Result<(), LabError>| {
            if first.is_ok() {
                first = result;
            }
        };
        // Remove links explicitly, not with their namespace: a process that does not end, or an
        // open socket, keeps a namespace alive.
        for socket in self.sockets() {
            note(socket.and_then(|socket| Wiring::remove_rails(&socket)));
        }
        self.net.clear();
        if let Some(holder) = &self.holder {
            note(holder.end());
        }
        if self.privilege == Privilege::Root {
            for seat in 0..self.form.seats() {
                note(named::remove(&self.name, self.form, seat));
            }
        }
        // The record goes last: until then, a later attempt after a crash can find the remains.
        match names(registry) {
            Ok(names) if names.iter().all(|name| *name == self.name) => {
                note(named::release_directory(&lock.note_path()));
            }
            result => note(result.map(drop)),
        }
        note(lock.remove(&self.name));
        first
    }

    /// Opens one socket per remaining namespace.
    fn sockets(&mut self) -> Vec<Result<Netlink, LabError>> {
        let net = self.net.iter_mut().filter_map(Option::take).collect::<Vec<_>>();
        let namespaces = Namespaces { user: self.user.take(), net };
        (0..namespaces.net.len()).map(|seat| namespaces.netlink(seat)).collect()
    }

    fn processes(&self) -> Vec<i32> {
        let found = processes::inside(&self.identities());
        let pids = found.into_iter().map(|pid| pid.as_raw_pid());
        pids.filter(|pid| *pid != self.holder_pid()).collect()
    }

    fn identities(&self) -> Vec<Identity> {
        identities(self.net.iter().flatten())
    }

    /// Returns the holder's id, or 0, which no process has.
    fn holder_pid(&self) -> i32 {
        self.holder.as_ref().map_or(0, HolderId::pid)
    }
}

fn build(
    spec: &LabSpec,
    registry: &Registry,
    lock: &Lock<'_>,
    go_on: &dyn Fn() -> Result<(), LabError>,
) -> Result<Lab, LabError> {
    let form = Form::of(spec.switched_nodes());
    let mut record = Record {
        schema_version: SCHEMA_VERSION,
        boot_id: registry::boot_id()?,
        ready: false,
        rails: spec.rails.len(),
        nodes: spec.switched_nodes(),
        network: spec.network,
        queue_ms: spec.queue_ms,
        mtu: spec.mtu,
        owner: spec.ends_with_process.then(ProcessId::own).flatten(),
        holder: None,
        namespaces: None,
    };
    let mut file = lock.create(&spec.name, &record)?;
    let owned = spec.ends_with_process.then(|| registry.own(&spec.name)).transpose()?;
    let namespaces = if registry.privileged() {
        named::prepare_directory(&lock.note_path())?;
        let namespaces = named::create(&spec.name, form)?;
        let identity = |seat| {
            let step = || format!("looking at the namespace of {}", form.title(seat));
            namespaces::identity(namespaces.net(seat)).during(step)
        };
        record.namespaces = Some((0..form.seats()).map(identity).collect::<Result<_, _>>()?);
        lock.write(&mut file, &spec.name, &record)?;
        namespaces
    } else {
        hold(&spec.name, &mut record, &mut file, lock)?
    };
    go_on()?;
    let wiring = Wiring::new(&namespaces, form, spec.network)?;
    wiring.build(spec, &namespaces, go_on)?;
    record.ready = true;
    lock.write(&mut file, &spec.name, &record)?;
    let lab = finish(&spec.name, &record, namespaces, wiring)?;
    Ok(Lab { _owned: owned, ..lab })
}

fn hold(
    name: &str,
    record: &mut Record,
    file: &mut File,
    lock: &Lock<'_>,
) -> Result<Namespaces, LabError> {
    let holder = Holder::spawn(file.as_fd(), Form::of(record.nodes))?;
    let id = holder.id().clone();
    record.holder = Some(id.clone());
    lock.write(file, name, record)?;
    // Only a recorded holder may outlive this process.
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
        Some(holder) => (Privilege::UserNamespace, holder.paths()),
        None => (Privilege::Root, paths_of(name, Form::of(record.nodes))),
    };
    Ok(Lab {
        name: name.into(),
        privilege,
        queue_ms: record.queue_ms,
        mtu: record.mtu,
        network: record.network,
        form: Form::of(record.nodes),
        namespaces: Arc::new(namespaces),
        paths,
        wiring,
        rails,
        replaced: None,
        abandoned: Vec::new(),
        _owned: None,
        used: Mutex::default(),
    })
}

fn paths_of(name: &str, form: Form) -> Vec<PathBuf> {
    (0..form.seats()).map(|seat| named::path(name, form, seat)).collect()
}

fn missing_rails(found: usize, built: usize) -> Option<String> {
    (found != built).then(|| format!("{found} of its {built} rails are there"))
}

/// Returns every lab name with any remains, sorted.
fn names(registry: &Registry) -> Result<Vec<String>, LabError> {
    let mut names = registry.labs()?;
    if registry.privileged() {
        names.extend(named::labs()?);
    } else {
        names.extend(orphans().map(|(lab, _)| lab));
    }
    names.sort_unstable();
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
