//! Registered memory, here and at peers, and parts of it.

use std::sync::Arc;

use polyrail::{Access, InstanceId, Registrable};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCFunction, PyDict, PySlice, PyTuple, PyWeakrefReference};

use crate::arguments;
use crate::engine::Engine;
use crate::errors;
use crate::foreign::{Foreign, Keeper, Place};
use crate::peer::Peer;

/// Memory that an engine may send from and receive into; `Engine.register` makes it. It keeps the
/// object that owns the memory, until `close()`, the end of a `with` block, or its own end.
///
/// `region[a:b]` is a part of it, in bytes.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Region {
    region: polyrail::Region,
    keeper: Arc<Keeper>,
    is_read_only: bool,
    /// Regions end with their engine, so a region keeps it.
    engine: Py<Engine>,
    /// Weak reference to this region, whose callback ends it.
    ///
    /// The cycle collector clears objects in any order, so it may free the memory before it clears the region. Before
    /// it clears anything it runs the callbacks of weak references from outside of the cycle. This reference counts as
    /// one of those, because `__traverse__` does not show it.
    ending: PyOnceLock<Py<PyAny>>,
}

/// A part of a `Region`, for transfers. It keeps the region.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Slice {
    pub(crate) region: Py<Region>,
    pub(crate) part: polyrail::RegionSlice,
    offset: u64,
}

/// Memory of a peer, as its `Region.describe()` tells of it; `Engine.import_region` makes it.
///
/// `remote[a:b]` is a part of it, in bytes.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct RemoteRegion {
    pub(crate) remote: polyrail::RemoteRegion,
}

/// A part of a `RemoteRegion`, for transfers.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct RemoteSlice {
    remote: polyrail::RemoteRegion,
    pub(crate) part: polyrail::RemoteSlice,
    offset: u64,
}

/// Parses the name of peers' access to a region.
fn access(name: &str) -> PyResult<Access> {
    match name {
        "all" => Ok(Access::ALL),
        "read" => Ok(Access::READ),
        "write" => Ok(Access::WRITE),
        "local" => Ok(Access::LOCAL),
        _ => Err(PyValueError::new_err(format!(
            "access is {name:?}; allowed: \"all\", \"read\", \"write\", \"local\""
        ))),
    }
}

/// Reads peers, or instance numbers of engines.
fn instances(peers: &Bound<'_, PyAny>) -> PyResult<Vec<InstanceId>> {
    let wrong = |given: &Bound<'_, PyAny>| {
        let allowed = "Peers or the instances of peers, in a list";
        arguments::wrong_type("granted_to", given, allowed)
    };
    let instance = |peer: Bound<'_, PyAny>| match peer.cast::<Peer>() {
        Ok(peer) => Ok(peer.get().peer.instance()),
        Err(_) => peer.extract().map(InstanceId).map_err(|_| wrong(&peer)),
    };
    peers.try_iter().map_err(|_| wrong(peers))?.map(|peer| instance(peer?)).collect()
}

impl Region {
    /// Registers memory for these peers, or for all.
    pub(crate) fn register(
        engine: &Bound<'_, Engine>,
        foreign: Foreign,
        access_name: &str,
        granted_to: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Self>> {
        let py = engine.py();
        engine.get().check_open("RegionError")?;
        let access = access(access_name)?;
        let is_read_only = foreign.is_read_only;
        if is_read_only && access.remote_write {
            return Err(PyValueError::new_err(format!(
                "the memory is read-only, so access can't be {access_name:?}; allowed: \"read\", \"local\"; \
                 or register memory that may be written, such as a bytearray"
            )));
        }
        let granted = granted_to.map(instances).transpose()?;
        let (place, keeper) = foreign.into_memory()?;
        let memory = match place {
            Place::Host(memory) => memory.with_access(access),
            Place::Device(memory) => memory.with_access(access),
        };
        let memory = match granted {
            Some(granted) => memory.granted_to(granted),
            None => memory,
        };
        let own = &engine.get().engine;
        let region = py.detach(|| own.register(memory)).map_err(errors::region)?;
        let to_end = region.clone();
        let ending = PyOnceLock::new();
        let made = Self { region, keeper, is_read_only, engine: engine.clone().unbind(), ending };
        let made = Bound::new(py, made)?;
        let end = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            arguments.py().detach(|| to_end.end());
        };
        let end = PyCFunction::new_closure(py, None, None, end)?;
        let ending = PyWeakrefReference::new_with(&made, end)?.into_any().unbind();
        made.get().ending.get_or_init(py, || ending);
        Ok(made.unbind())
    }

    /// The whole region, as the source of a transfer.
    pub(crate) fn all(&self) -> polyrail::RegionSlice {
        self.region.all()
    }

    /// Refuses read-only memory that the engine would write.
    pub(crate) fn check_writable(&self) -> PyResult<()> {
        match self.is_read_only {
            false => Ok(()),
            true => Err(PyValueError::new_err(
                "the region's memory is read-only: a read or a receive can't fill it",
            )),
        }
    }

    /// Refuses a region that no transfer can use any more.
    fn check_open(&self) -> PyResult<()> {
        match self.keeper.is_released() {
            false => self.engine.get().check_open("RegionError"),
            true => Err(errors::closed("region", "register the memory again", "RegionError")),
        }
    }

    fn cut(slf: &Bound<'_, Self>, offset: u64, len: u64) -> PyResult<Slice> {
        slf.get().check_open()?;
        let part = slf.get().region.slice(offset, len).map_err(errors::region)?;
        Ok(Slice { region: slf.clone().unbind(), part, offset })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Ending a device's region may wait for peers. Other Python threads run meanwhile. During interpreter shutdown
        // there is no lock to release.
        let ended = Python::try_attach(|py| py.detach(|| self.region.end()));
        if ended.is_none() {
            self.region.end();
        }
        self.keeper.release();
    }
}

#[pymethods]
impl Region {
    /// What a peer needs to reach it: give it to `Engine.import_region` there. Whoever has these
    /// bytes and a connection may use the region as its access allows.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_open()?;
        Ok(PyBytes::new(py, &self.region.describe()))
    }

    /// Ends it. When this returns nothing touches the memory any more, and the object that owns it
    /// is let go of. Transfers that need it fail with reason "region_dropped". Closing twice is fine.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.region.end());
        self.keeper.release();
    }

    /// The object that owns the memory may refer back to the region.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.keeper.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.close(py);
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.region.len()
    }

    /// Whether its memory may only be read.
    #[getter]
    fn readonly(&self) -> bool {
        self.is_read_only
    }

    fn __len__(&self) -> usize {
        self.region.len() as usize
    }

    fn __getitem__(slf: &Bound<'_, Self>, index: &Bound<'_, PyAny>) -> PyResult<Slice> {
        let (offset, len) = range(index, slf.get().region.len())?;
        Self::cut(slf, offset, len)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.keeper.is_released() {
            false => format!("Region({} bytes)", self.region.len()),
            true => format!("<closed Region({} bytes)>", self.region.len()),
        }
    }
}

#[pymethods]
impl Slice {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.region)
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.part.len()
    }

    fn __len__(&self) -> usize {
        self.part.len() as usize
    }

    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (offset, len) = range(index, self.part.len())?;
        Region::cut(self.region.bind(py), self.offset + offset, len)
    }

    fn __repr__(&self) -> String {
        format!("Slice({} bytes from {})", self.part.len(), self.offset)
    }
}

#[pymethods]
impl RemoteRegion {
    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.remote.len()
    }

    /// What may be done with it: "all", "read", "write" or "local".
    #[getter]
    fn access(&self) -> &'static str {
        match (self.remote.access().remote_read, self.remote.access().remote_write) {
            (true, true) => "all",
            (true, false) => "read",
            (false, true) => "write",
            (false, false) => "local",
        }
    }

    /// Whether it is in a device's memory.
    #[getter]
    fn is_on_device(&self) -> bool {
        self.remote.is_on_device()
    }

    fn __len__(&self) -> usize {
        self.remote.len() as usize
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<RemoteSlice> {
        let (offset, len) = range(index, self.remote.len())?;
        RemoteSlice::cut(self.remote, offset, len)
    }

    fn __repr__(&self) -> String {
        format!("RemoteRegion({} bytes, access {:?})", self.remote.len(), self.access())
    }
}

impl RemoteSlice {
    fn cut(remote: polyrail::RemoteRegion, offset: u64, len: u64) -> PyResult<Self> {
        let part = remote.slice(offset, len).map_err(errors::region)?;
        Ok(Self { remote, part, offset })
    }
}

#[pymethods]
impl RemoteSlice {
    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.part.len()
    }

    fn __len__(&self) -> usize {
        self.part.len() as usize
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (offset, len) = range(index, self.part.len())?;
        Self::cut(self.remote, self.offset + offset, len)
    }

    fn __repr__(&self) -> String {
        format!("RemoteSlice({} bytes from {})", self.part.len(), self.offset)
    }
}

/// Offset and length of `[start:stop]` in `size` bytes. Python's own slices are cut at the end. Here that would shorten
/// a transfer unexpectedly, so it is refused.
fn range(index: &Bound<'_, PyAny>, size: u64) -> PyResult<(u64, u64)> {
    let Ok(slice) = index.cast::<PySlice>() else {
        let text =
            format!("the index is {}; allowed: a slice of bytes, [start:stop]", index.repr()?);
        return Err(PyTypeError::new_err(text));
    };
    let number = |name: &str| slice.getattr(name)?.extract::<Option<i128>>();
    let (start, stop, step) = (number("start")?, number("stop")?, number("step")?);
    if step.is_some_and(|step| step != 1) {
        let text = format!("the slice has the step {}; allowed: 1", step.unwrap_or(1));
        return Err(PyValueError::new_err(text));
    }
    let from_end = |at: i128| if at < 0 { at + i128::from(size) } else { at };
    let (from, to) = (start.map_or(0, from_end), stop.map_or(i128::from(size), from_end));
    match (u64::try_from(from), u64::try_from(to)) {
        (Ok(from), Ok(to)) if from <= to && to <= size => Ok((from, to - from)),
        _ => {
            let show = |at: Option<i128>| at.map(|at| at.to_string()).unwrap_or_default();
            Err(PyIndexError::new_err(format!(
                "slice [{}:{}] is outside of {size} bytes; allowed: 0 <= start <= stop <= {size}",
                show(start),
                show(stop)
            )))
        }
    }
}
