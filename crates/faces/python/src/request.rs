//! Requests made from regions, slices and lists of them.

use std::collections::HashSet;
use std::time::Duration;

use polyrail::operation::{OneSided, Operation, Read, Receive, Send, TwoSided, Write};
use polyrail::{RegionSlice, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::arguments;
use crate::peer::Peer;
use crate::region::{Region, RemoteRegion, RemoteSlice, Slice};
use crate::waiting;

/// Regions that a transfer uses. Keeping them prevents their end before the transfer's.
///
/// A tuple, which a prepared request and its transfers share, and whose content the cycle collector can see.
pub(crate) type Kept = Py<PyTuple>;

/// Parts of this engine's memory.
#[derive(Default)]
struct Locals {
    parts: Vec<RegionSlice>,
    kept: Vec<Py<Region>>,
    known: HashSet<usize>,
}

impl Locals {
    /// Reads local memory from an argument. `is_filled` is true if the transfer writes there.
    fn of(given: &Bound<'_, PyAny>, is_filled: bool) -> PyResult<Self> {
        let mut locals = Self::default();
        if !locals.push(given, is_filled)? {
            for one in items(given, "local", "Region, Slice")? {
                let one = one?;
                if !locals.push(&one, is_filled)? {
                    return Err(wrong_item(culprit(given, &one), "local", "Region, Slice"));
                }
            }
        }
        Ok(locals)
    }

    /// Adds a part. Returns false if the argument is not one, and so may be a list.
    fn push(&mut self, given: &Bound<'_, PyAny>, is_filled: bool) -> PyResult<bool> {
        let region = if let Ok(region) = given.cast::<Region>() {
            self.parts.push(region.get().all());
            region
        } else if let Ok(slice) = given.cast::<Slice>() {
            self.parts.push(slice.get().part.clone());
            slice.get().region.bind(given.py())
        } else {
            return Ok(false);
        };
        if is_filled {
            region.get().check_writable()?;
        }
        if self.known.insert(region.as_ptr() as usize) {
            self.kept.push(region.clone().unbind());
        }
        Ok(true)
    }
}

fn remotes(given: &Bound<'_, PyAny>) -> PyResult<Vec<polyrail::RemoteSlice>> {
    const ALLOWED: &str = "RemoteRegion, RemoteSlice";
    if let Some(one) = remote(given) {
        return Ok(vec![one]);
    }
    let part = |one: Bound<'_, PyAny>| {
        remote(&one).ok_or_else(|| wrong_item(culprit(given, &one), "remote", ALLOWED))
    };
    items(given, "remote", ALLOWED)?.map(|one| part(one?)).collect()
}

fn remote(given: &Bound<'_, PyAny>) -> Option<polyrail::RemoteSlice> {
    if let Ok(region) = given.cast::<RemoteRegion>() {
        return Some(region.get().remote.all());
    }
    given.cast::<RemoteSlice>().ok().map(|slice| slice.get().part)
}

fn items<'py>(
    given: &Bound<'py, PyAny>,
    field: &str,
    allowed: &str,
) -> PyResult<impl Iterator<Item = PyResult<Bound<'py, PyAny>>>> {
    given.try_iter().map_err(|_| wrong_item(given, field, allowed))
}

/// Chooses the value to blame in an error. A buffer is a sequence, too, and then the buffer is the mistake, not its
/// items.
fn culprit<'a, 'py>(
    given: &'a Bound<'py, PyAny>,
    item: &'a Bound<'py, PyAny>,
) -> &'a Bound<'py, PyAny> {
    let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
    if is_list { item } else { given }
}

fn wrong_item(given: &Bound<'_, PyAny>, field: &str, allowed: &str) -> PyErr {
    let allowed = format!("{allowed}, or a list of them (Engine.register makes regions)");
    arguments::wrong_type(field, given, &allowed)
}

/// Builds a write, with its notification.
pub(crate) fn write(
    peer: &Peer,
    memory: (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    notification: Option<&Bound<'_, PyAny>>,
    timeout: Option<f64>,
) -> PyResult<(Request<Write>, Kept)> {
    let request = Request::write(&peer.peer);
    let request = match notification {
        Some(given) => request.notification(arguments::bytes("notification", given)?),
        None => request,
    };
    one_sided(request, memory, false, timeout)
}

/// Builds a notification.
pub(crate) fn notify(
    peer: &Peer,
    data: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Request<Write>> {
    let request = Request::write(&peer.peer).notification(arguments::bytes("data", data)?);
    Ok(within(request, waiting::timeout(timeout)?))
}

pub(crate) fn read(
    peer: &Peer,
    memory: (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    timeout: Option<f64>,
) -> PyResult<(Request<Read>, Kept)> {
    one_sided(Request::read(&peer.peer), memory, true, timeout)
}

pub(crate) fn send(
    peer: &Peer,
    tag: u64,
    local: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<(Request<Send>, Kept)> {
    two_sided(Request::send(&peer.peer, tag), local, false, timeout)
}

pub(crate) fn receive(
    peer: &Peer,
    tag: u64,
    local: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<(Request<Receive>, Kept)> {
    two_sided(Request::receive(&peer.peer, tag), local, true, timeout)
}

fn one_sided<O: OneSided>(
    request: Request<O>,
    (local, remote): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    is_filled: bool,
    timeout: Option<f64>,
) -> PyResult<(Request<O>, Kept)> {
    let timeout = waiting::timeout(timeout)?;
    let locals = Locals::of(local, is_filled)?;
    let remotes = remotes(remote)?;
    let (here, there) = (locals.parts.len(), remotes.len());
    if here != there {
        return Err(PyValueError::new_err(format!(
            "local has {here} parts and remote has {there}; allowed: as many of each"
        )));
    }
    let request = request.segments(locals.parts.into_iter().zip(remotes));
    let kept = PyTuple::new(local.py(), locals.kept)?.unbind();
    Ok((within(request, timeout), kept))
}

fn two_sided<O: TwoSided>(
    request: Request<O>,
    local: &Bound<'_, PyAny>,
    is_filled: bool,
    timeout: Option<f64>,
) -> PyResult<(Request<O>, Kept)> {
    let timeout = waiting::timeout(timeout)?;
    let locals = Locals::of(local, is_filled)?;
    let kept = PyTuple::new(local.py(), locals.kept)?.unbind();
    Ok((within(request.locals(locals.parts), timeout), kept))
}

fn within<O: Operation>(request: Request<O>, timeout: Option<Duration>) -> Request<O> {
    match timeout {
        Some(timeout) => request.timeout(timeout),
        None => request,
    }
}
