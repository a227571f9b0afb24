//! Remote engines and their notifications.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A remote engine, as one engine knows it.
#[pyclass(frozen, eq, hash, module = "polyrail")]
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) peer: polyrail::Peer,
}

/// What a peer told: after the bytes of the write that it came with, if it came with one.
#[pyclass(frozen, module = "polyrail", get_all)]
pub(crate) struct Notification {
    /// Who told it.
    peer: Py<Peer>,
    /// What it told.
    data: Py<PyBytes>,
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.peer == other.peer
    }
}

impl std::hash::Hash for Peer {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.peer.instance().hash(state);
    }
}

#[pymethods]
impl Peer {
    /// What the peer calls itself.
    #[getter]
    fn name(&self) -> &str {
        self.peer.name()
    }

    /// The number of this run of the peer's engine, which no other has.
    #[getter]
    fn instance(&self) -> u128 {
        self.peer.instance().0
    }

    /// Whether it runs on this host.
    #[getter]
    fn is_same_host(&self) -> bool {
        self.peer.is_same_host()
    }

    /// The names that its certificate proves.
    #[getter]
    fn proven_names(&self) -> Vec<String> {
        self.peer.proven_names()
    }

    /// How many connections are up, and how many there are to be.
    #[getter]
    fn flows(&self) -> (usize, usize) {
        let flows = self.peer.flows();
        (flows.up, flows.total)
    }

    /// Why it is gone; None while it is there.
    #[getter]
    fn lost(&self) -> Option<String> {
        self.peer.lost().map(|why| why.to_string())
    }

    fn __repr__(&self) -> String {
        format!("Peer({})", self.peer.name())
    }
}

impl Notification {
    pub(crate) fn new(py: Python<'_>, taken: polyrail::Notification) -> PyResult<Self> {
        let data = PyBytes::new(py, &taken.data).unbind();
        Ok(Self { peer: Py::new(py, Peer { peer: taken.peer })?, data })
    }
}

#[pymethods]
impl Notification {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (peer, data) = (self.peer.get(), self.data.bind(py).repr()?);
        Ok(format!("Notification({}, {data})", peer.peer.name()))
    }
}
