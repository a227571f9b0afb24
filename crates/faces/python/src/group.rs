//! Groups: engines that find each other at the place in the setting `rendezvous`.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use polyrail_rendezvous::{Event, Membership, NameError};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::engine::Engine;
use crate::errors;
use crate::peer::Peer;
use crate::waiting::{self, wait};

/// The membership of an engine in a group; `Engine.join` makes it. It leaves the group with `leave()`, at the
/// end of a `with` block, or when nobody refers to it any more.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Group {
    group: Arc<polyrail_rendezvous::Group>,
}

/// An engine in a group.
#[pyclass(frozen, eq, module = "polyrail")]
#[derive(Clone, PartialEq)]
pub(crate) struct Member {
    member: polyrail_rendezvous::Member,
}

/// Somebody has joined a group, or has left it or died.
#[pyclass(frozen, get_all, module = "polyrail")]
pub(crate) struct GroupEvent {
    /// Its name in the group.
    name: String,
    /// Who has joined; None: it has left.
    joined: Option<Member>,
}

fn wrong_name(field: &str, error: &NameError) -> PyErr {
    PyValueError::new_err(format!("{field} {error}"))
}

impl Group {
    /// Joins on a separate thread, so that Ctrl-C ends the wait. The thread then ends at the timeout.
    pub(crate) fn join(
        py: Python<'_>,
        engine: &Engine,
        group: &str,
        name: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let timeout = waiting::timeout(timeout)?.unwrap_or(Duration::MAX);
        engine.check_open("RendezvousError")?;
        let mut wanted = Membership::new(group).map_err(|error| wrong_name("group", &error))?;
        if let Some(name) = name {
            wanted = wanted.name(name).map_err(|error| wrong_name("name", &error))?;
        }
        let (wanted, own) = (wanted.timeout(timeout), engine.engine.clone());
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("pr-join".to_owned());
        thread.spawn(move || {
            // If the wait has ended, the group is not received, and is left again.
            let _ = sender.send(polyrail_rendezvous::join(&own, &wanted));
        })?;
        let receiver = std::sync::Mutex::new(receiver);
        let look = |slice| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match receiver.recv_timeout(slice) {
                Ok(joined) => Some(Some(joined)),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(None),
            }
        };
        match wait(py, None, look)?.flatten() {
            Some(Ok(group)) => {
                let group = Arc::new(group);
                engine.note_group(&group);
                if engine.closed() {
                    group.end();
                }
                Ok(Self { group })
            }
            Some(Err(error)) => Err(errors::rendezvous(&error)),
            None => Err(PyRuntimeError::new_err("the thread that joins has failed")),
        }
    }
}

fn members(found: Vec<polyrail_rendezvous::Member>) -> Vec<Member> {
    found.into_iter().map(|member| Member { member }).collect()
}

impl Drop for Group {
    fn drop(&mut self) {
        // Leaving notifies the others. Other Python threads run meanwhile.
        Python::try_attach(|py| py.detach(|| self.group.end()));
    }
}

#[pymethods]
impl Group {
    /// The name of this engine in the group.
    #[getter]
    fn name(&self) -> &str {
        self.group.name()
    }

    /// How many members the launcher of the ranks has started; None where nobody knows.
    #[getter]
    fn expected(&self) -> Option<usize> {
        self.group.expected()
    }

    /// The other members now, by name.
    fn members(&self) -> Vec<Member> {
        members(self.group.members())
    }

    /// The other members, once the group has `count` with this one; by default as many as the launcher of the
    /// ranks has started. Raises TimeoutError if there are fewer after so many seconds, or the group was left.
    #[pyo3(signature = (count = None, *, timeout = None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        count: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Member>> {
        let timeout = waiting::timeout(timeout)?;
        let Some(count) = count.or(self.group.expected()) else {
            let text = "count is None, and nobody knows how many there will be; allowed: a number";
            return Err(PyValueError::new_err(text));
        };
        let look = |slice| match self.group.wait_for(count, slice) {
            None if self.group.has_ended() => Some(None),
            found => found.map(Some),
        };
        wait(py, timeout, look)?.flatten().map(members).ok_or_else(|| {
            let there = self.group.members().len() + 1;
            let end = if self.group.has_ended() { "it was left" } else { "the time is over" };
            PyTimeoutError::new_err(format!("{there} of {count} members are there, and {end}"))
        })
    }

    /// A member, or the one of this name, as a peer of the engine. It is connected when it is first used.
    fn peer(&self, py: Python<'_>, member: &Bound<'_, PyAny>) -> PyResult<Peer> {
        let member = match (member.cast::<Member>(), member.extract::<String>()) {
            (Ok(member), _) => member.get().member.clone(),
            (_, Ok(name)) => {
                let mut all = self.group.members().into_iter();
                all.find(|known| known.name() == name).ok_or_else(|| {
                    PyValueError::new_err(format!(
                        "no other member of the group is called {name:?}"
                    ))
                })?
            }
            _ => {
                let given = member.get_type().name()?;
                let text = format!("member is a {given}; allowed: Member, or its name");
                return Err(PyTypeError::new_err(text));
            }
        };
        let peer = py.detach(|| self.group.peer(&member)).map_err(errors::peer)?;
        Ok(Peer { peer })
    }

    /// The next change; whoever was there before has joined first. None if there was none within the timeout, or
    /// the group was left.
    #[pyo3(signature = (timeout = None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<GroupEvent>> {
        let timeout = waiting::timeout(timeout)?;
        let look = |slice| match self.group.next_event(slice) {
            None if self.group.has_ended() => Some(None),
            found => found.map(Some),
        };
        let event = wait(py, timeout, look)?.flatten();
        Ok(event.and_then(|event| match event {
            Event::Joined(member) => {
                Some(GroupEvent { name: member.name().to_owned(), joined: Some(Member { member }) })
            }
            Event::Left { name } => Some(GroupEvent { name, joined: None }),
            _ => None,
        }))
    }

    /// Leaves the group, so that the others hear of it at once. Peers stay. Leaving twice is fine.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| self.group.end());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.leave(py);
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.group)
    }
}

#[pymethods]
impl Member {
    /// Its name in the group.
    #[getter]
    fn name(&self) -> &str {
        self.member.name()
    }

    /// Where it listens, an address for each rail, as it says itself.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        let card = self.member.card();
        card.into_iter().flat_map(|card| card.addresses).map(|at| at.to_string()).collect()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.member)
    }
}

#[pymethods]
impl GroupEvent {
    fn __repr__(&self) -> String {
        let what = if self.joined.is_some() { "joined" } else { "left" };
        format!("GroupEvent({} has {what})", self.name)
    }
}
