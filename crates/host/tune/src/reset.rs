//! Restores the values that sessions changed, from their journals alone.

use std::collections::HashMap;

use serde::Serialize;

use crate::apply::{require_rights, require_taken, same, write};
use crate::error::TuneError;
use crate::host_id::HostId;
use crate::journal::{Disk, Entry, Session, StateDir};
use crate::lock::HostLock;
use crate::machine::{Machine, Meaning};
use crate::target::Target;

/// The sessions to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The last session that still holds, with earlier ones that carried out the same plan, as `watch --enforce` does.
    Latest,
    /// The session of this name.
    Id(String),
    /// All sessions since the machine was booted: every value returns to what it was before the
    /// first.
    Pristine,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    pub target: Target,
    pub place: String,
    pub found: String,
    /// The value from before the session. Unless `failure` is set, it is the current one.
    pub value: String,
    /// The reason why it was not restored.
    pub failure: Option<String>,
    /// Whether another program has set the value since, so that it was left alone; `failure` says
    /// so.
    #[serde(skip)]
    pub is_of_others: bool,
}

/// Undoes the sessions that match `name` (see [`Session::is_of`]); an empty name matches all.
///
/// Sessions of earlier boots are left alone, because a reboot discards their changes, and so are values that another
/// program has set since. `force` undoes these, too, and uses the readable lines of damaged journals.
///
/// Returns the restored values; empty if there was nothing to do.
///
/// # Errors
/// [`TuneError`] before any change. A later failure is in [`Restored::failure`]; the session then
/// stays open, so a reset can be tried again. A value that another program has set does not keep it
/// open.
pub fn reset(
    machine: &mut dyn Machine,
    disk: &mut dyn Disk,
    state: &StateDir,
    name: &str,
    which: &Which,
    force: bool,
) -> Result<Vec<Restored>, TuneError> {
    let here = HostId::read(machine.root())?;
    let sessions = state.sessions()?;
    let chosen = choose(state, &sessions, name, which, &here, force)?;
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let targets = chosen.iter().flat_map(|session| &session.old).map(|(target, _)| target);
    require_rights(machine, targets)?;
    let _lock = HostLock::take(machine.root().is_live(), state)?;
    // The previous lock holder may have added to the journals.
    let sessions = state.sessions()?;
    let chosen = choose(state, &sessions, name, which, &here, force)?;
    let old: Vec<_> = chosen.iter().flat_map(|session| session.old.iter().cloned()).collect();
    let of_others = if force { Vec::new() } else { changed_since(machine, &chosen) };
    let old: Vec<_> = old
        .into_iter()
        .filter(|(target, _)| of_others.iter().all(|one| one.target != *target))
        .collect();
    let mut restored = put_back(machine, &old);
    restored.extend(of_others);
    for session in chosen.into_iter().filter(|session| session.is_open()) {
        let mut journal = session.reopen(disk)?;
        for one in restored.iter().filter(|one| one.failure.is_none() && one.found != one.value) {
            let (target, value) = (one.target.clone(), one.value.clone());
            journal.add(&Entry::Restored { target, value })?;
        }
        if restored.iter().all(|one| one.failure.is_none() || one.is_of_others) {
            journal.add(&Entry::Reset)?;
        }
    }
    Ok(restored)
}

/// Returns the sessions to undo, oldest first.
fn choose<'a>(
    state: &StateDir,
    sessions: &'a [Session],
    name: &str,
    which: &Which,
    here: &HostId,
    force: bool,
) -> Result<Vec<&'a Session>, TuneError> {
    let of_name = |session: &&Session| session.is_of(name);
    let of_boot = |session: &&Session| {
        let host = &session.host;
        host.is_same_boot(here) || force && host.is_same_place(here)
    };
    let chosen: Vec<&Session> = match which {
        Which::Latest => latest(sessions.iter().filter(of_boot), name),
        Which::Id(id) => {
            let Some(session) = sessions.iter().find(|session| session.id == *id) else {
                let known_ids = sessions.iter().map(|session| session.id.clone()).collect();
                return Err(TuneError::NoSession { id: id.clone(), known_ids });
            };
            if !of_boot(&session) {
                let for_what = format!("on {} before this boot", session.host.hostname);
                return Err(TuneError::OtherHost { for_what });
            }
            vec![session]
        }
        Which::Pristine => sessions.iter().filter(of_name).filter(of_boot).collect(),
    };
    let damaged = chosen.iter().find_map(|session| Some((session, session.damaged.first()?)));
    if let Some((session, (line, fault))) = damaged
        && !force
    {
        let path = state.path().join(&session.id).join("journal.jsonl");
        return Err(TuneError::BadJournal { path, line: *line, fault: fault.clone() });
    }
    Ok(chosen)
}

/// Returns the last open session of this name and earlier ones with the same plan, oldest first. A session of another
/// plan that changed one of the same values in between ends the list.
fn latest<'a>(
    sessions: impl DoubleEndedIterator<Item = &'a Session>,
    name: &str,
) -> Vec<&'a Session> {
    let mut chosen: Vec<&Session> = Vec::new();
    for session in sessions.rev().filter(|session| session.is_open()) {
        match chosen.first() {
            None if session.is_of(name) => chosen.push(session),
            None => {}
            Some(last) if session.plan == last.plan => chosen.push(session),
            Some(last) => {
                let is_of_last = |target| last.old.iter().any(|(of_last, _)| of_last == target);
                if session.old.iter().any(|(target, _)| is_of_last(target)) {
                    break;
                }
            }
        }
    }
    chosen.reverse();
    chosen
}

/// Returns the targets whose current value none of these sessions has found or set. A target with an unfinished write
/// in a journal may have any value, so it is not included.
fn changed_since(machine: &mut dyn Machine, sessions: &[&Session]) -> Vec<Restored> {
    let mut found: Vec<Restored> = Vec::new();
    for (target, old) in sessions.iter().flat_map(|session| &session.old) {
        let of_target = |values: &&(Target, String)| values.0 == *target;
        let set: Vec<_> =
            sessions.iter().flat_map(|session| &session.set).filter(of_target).collect();
        let Some((_, last)) = set.last() else { continue };
        let Ok(Some(now)) = machine.read(target) else { continue };
        let olds = sessions.iter().flat_map(|session| &session.old).filter(of_target);
        let is_ours = olds.chain(set.iter().copied()).any(|(_, value)| same(target, &now, value));
        if is_ours || found.iter().any(|one| one.target == *target) {
            continue;
        }
        found.push(Restored {
            target: target.clone(),
            place: machine.place(target),
            failure: Some(format!(
                "something else has set it to {now} since it was set to {last} here; it stays so (it was {old} before)"
            )),
            found: now,
            value: old.clone(),
            is_of_others: true,
        });
    }
    found
}

/// Restores the first value of each target: first the targets whose change makes drivers forget
/// others, last the programs that would interfere. Continues after a failure and restores as much
/// as possible.
pub(crate) fn put_back(machine: &mut dyn Machine, old: &[(Target, String)]) -> Vec<Restored> {
    let mut first: Vec<(&Target, &str)> = Vec::new();
    let mut seen: HashMap<&Target, ()> = HashMap::new();
    for (target, value) in old {
        if seen.insert(target, ()).is_none() {
            first.push((target, value));
        }
    }
    first.sort_by_key(|(target, _)| target.undo_rank());
    first.into_iter().map(|(target, value)| put_one_back(machine, target, value)).collect()
}

fn put_one_back(machine: &mut dyn Machine, target: &Target, value: &str) -> Restored {
    let mut restored = Restored {
        target: target.clone(),
        place: machine.place(target),
        found: String::new(),
        value: value.to_owned(),
        failure: None,
        is_of_others: false,
    };
    let mut try_it = || -> Result<(), TuneError> {
        let Some(found) = machine.read(target)? else {
            return Err(TuneError::NotTaken {
                what: target.to_string(),
                wanted: value.to_owned(),
                found: "nothing: it is not there any more".to_owned(),
            });
        };
        restored.found.clone_from(&found);
        if found == value {
            return Ok(());
        }
        match write(machine, target, value) {
            // The kernel moved the interrupt, and forbids other changes.
            Err(TuneError::Fault(fault)) if fault.meaning(target) == Meaning::Managed => {
                return Ok(());
            }
            result => result?,
        }
        require_taken(machine, target, value)
    };
    restored.failure = try_it().err().map(|error| error.to_string());
    restored
}
