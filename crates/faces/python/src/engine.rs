//! The engine.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use polyrail::Invitation;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyModule, PyTuple};

use crate::arguments;
use crate::errors;
use crate::events::Events;
use crate::foreign::{self, Foreign};
use crate::group::Group;
use crate::peer::{Notification, Peer};
use crate::region::{Region, RemoteRegion};
use crate::request;
use crate::settings;
use crate::transfer::{Prepared, Transfer};
use crate::waiting::{self, wait};

/// Polyrail in this process: it listens on every rail, and moves memory to and from its peers.
///
/// Settings are keyword arguments or a dictionary, by the names that `polyrail config` shows:
/// `Engine(rails="eth0,eth1", chunk_bytes="1MiB")`. What is not given comes from the environment
/// (POLYRAIL_*) unless `env=False`, or is the default. `name` is what peers call it.
///
/// As a context manager it closes at the end of the block.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Engine {
    pub(crate) engine: polyrail::Engine,
    is_closed: AtomicBool,
    /// Groups to leave when it closes.
    groups: Mutex<Vec<Weak<polyrail_rendezvous::Group>>>,
}

/// The part of the package that handles asyncio.
pub(crate) fn asyncio(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let import = || PyModule::import(py, "polyrail._aio").map(Bound::unbind);
    Ok(MODULE.get_or_try_init(py, import)?.bind(py))
}

/// Converts a serializable value to Python's own types.
fn json<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(|e| PyValueError::new_err(e.to_string()))?;
    PyModule::import(py, "json")?.call_method1("loads", (text,))
}

/// Maximum number of addresses tried per name.
const PER_NAME: usize = 16;

/// Parses `HOST:PORT`, optionally followed by `/INVITATION`, and resolves the addresses.
fn place(text: &str) -> PyResult<(Vec<SocketAddr>, Option<Invitation>)> {
    let wrong = |why: &dyn std::fmt::Display| {
        PyValueError::new_err(format!(
            "address is {text:?}: {why}; allowed: \"HOST:PORT\" or \"HOST:PORT/INVITATION\""
        ))
    };
    let (address, invitation) = match text.split_once('/') {
        Some((address, invitation)) => {
            (address, Some(invitation.parse::<Invitation>().map_err(|error| wrong(&error))?))
        }
        None => (text, None),
    };
    let found = address.to_socket_addrs().map_err(|error| wrong(&error))?;
    let addresses: Vec<_> = found.take(PER_NAME).collect();
    if addresses.is_empty() {
        return Err(wrong(&"the host has no address"));
    }
    Ok((addresses, invitation))
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Closing sends goodbyes, which takes a moment. Other Python threads run meanwhile.
        if !*self.is_closed.get_mut() {
            Python::try_attach(|py| py.detach(|| self.end()));
        }
    }
}

impl Engine {
    /// Records that the engine has joined a group, which it leaves when it closes.
    pub(crate) fn note_group(&self, group: &Arc<polyrail_rendezvous::Group>) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    /// Raises this exception class if the engine is closed.
    pub(crate) fn check_open(&self, class: &str) -> PyResult<()> {
        match self.closed() {
            false => Ok(()),
            true => Err(errors::closed("engine", "make another Engine", class)),
        }
    }

    fn end(&self) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = std::mem::take(&mut *groups);
        groups.iter().filter_map(Weak::upgrade).for_each(|group| group.end());
        self.engine.close();
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (settings = None, *, name = None, env = true, **more))]
    fn new(
        py: Python<'_>,
        settings: Option<&Bound<'_, PyDict>>,
        name: Option<&str>,
        env: bool,
        more: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let config = settings::read(&[settings, more], env)?;
        let mut builder = polyrail::Engine::builder().config(config);
        if let Some(name) = name {
            builder = builder.name(name);
        }
        let engine = py.detach(|| builder.build()).map_err(errors::engine)?;
        Ok(Self { engine, is_closed: AtomicBool::new(false), groups: Mutex::default() })
    }

    /// What a peer needs to connect to this engine: give it to `add_peer` there. Keep it as private
    /// as a password.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_open("EngineError")?;
        Ok(PyBytes::new(py, &self.engine.metadata()))
    }

    /// What lets somebody connect who gets the address by other means: `connect("HOST:PORT/INVITATION")`.
    fn invitation(&self) -> PyResult<String> {
        self.check_open("EngineError")?;
        Ok(self.engine.invitation().to_string())
    }

    /// Where this engine listens, an address for each rail.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.engine.addresses().iter().map(SocketAddr::to_string).collect()
    }

    /// The number of this run of the engine, which no other has.
    #[getter]
    fn instance(&self) -> u128 {
        self.engine.instance().0
    }

    /// Every setting, and its value.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = PyDict::new(py);
        for (name, row) in json(py, self.engine.config())?.cast::<PyDict>()? {
            values.set_item(name, row.get_item("value")?)?;
        }
        Ok(values)
    }

    /// Whether `close` was called.
    #[getter]
    pub(crate) fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Adds a peer by its metadata. Connections are made in the background; transfers may be posted
    /// at once.
    fn add_peer(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>) -> PyResult<Peer> {
        let metadata = arguments::bytes("metadata", metadata)?;
        let peer = py.detach(|| self.engine.add_peer(&metadata)).map_err(errors::peer)?;
        Ok(Peer { peer })
    }

    /// Adds the peer that listens on `HOST:PORT`, any of its rails, once it has answered. Of several
    /// addresses of the host, the first that answers counts. An address proves nothing: both ends need
    /// the same `secret_file`, or be of one user on one host, or the address ends with the peer's
    /// invitation, `HOST:PORT/INVITATION`.
    #[pyo3(signature = (address, *, timeout = None))]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Peer> {
        let timeout = waiting::timeout(timeout)?;
        let (addresses, invitation) = py.detach(|| place(address))?;
        let connecting = self.engine.connect_any(&addresses, invitation.as_ref());
        let late = || PyTimeoutError::new_err(format!("{address} has not answered"));
        let peer = wait(py, timeout, |slice| connecting.wait(slice))?.ok_or_else(late)?;
        Ok(Peer { peer: peer.map_err(errors::peer)? })
    }

    /// The next peer that came to this engine by itself; None if none came within the timeout.
    #[pyo3(signature = (timeout = None))]
    fn accept_peer(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Peer>> {
        let timeout = waiting::timeout(timeout)?;
        let look = |slice| match self.engine.accept_peer(slice) {
            None if self.closed() => Some(None),
            found => found.map(Some),
        };
        Ok(wait(py, timeout, look)?.flatten().map(|peer| Peer { peer }))
    }

    /// Every peer that is known now.
    fn peers(&self) -> Vec<Peer> {
        self.engine.peers().into_iter().map(|peer| Peer { peer }).collect()
    }

    /// Ends all transfers with a peer and forgets it; it is told so.
    fn remove_peer(&self, py: Python<'_>, peer: &Peer) {
        py.detach(|| self.engine.remove_peer(&peer.peer));
    }

    /// Writes the metadata to a file, for `find_peer`; with bytes of your own, if you like.
    #[pyo3(signature = (path, data = None))]
    fn publish(
        &self,
        py: Python<'_>,
        path: PathBuf,
        data: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let data = data.map(|given| arguments::bytes("data", given)).transpose()?;
        let data = data.unwrap_or_default();
        self.check_open("EngineError")?;
        let written = py.detach(|| self.engine.publish_with(&path, &data));
        // Python adds a file name to such an error only if it gets one.
        Ok(written.map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?)
    }

    /// Adds the peer that has published its metadata in this file, and waits for the file. Returns
    /// the peer and the bytes that it published; raises TimeoutError if there is no file in time.
    #[pyo3(signature = (path, *, timeout = None))]
    fn find_peer<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        timeout: Option<f64>,
    ) -> PyResult<(Peer, Bound<'py, PyBytes>)> {
        let timeout = waiting::timeout(timeout)?;
        let found = wait(py, timeout, |slice| self.engine.find_peer_with(&path, slice))?;
        let late = || PyTimeoutError::new_err(format!("{}: nobody has published", path.display()));
        let (peer, data) = found.ok_or_else(late)?.map_err(errors::peer)?;
        Ok((Peer { peer }, PyBytes::new(py, &data)))
    }

    /// Joins a group of engines at the place that the setting `rendezvous` names, such as
    /// "dir:///shared/folder", "etcd://HOST:PORT", "torchrun://", "slurm://". Without a name of its own a member is
    /// called `rank-3` among ranks, and else by its instance. Waits until others can find this engine: for rank 0, or
    /// for the lease of a dead engine that had the name; raises RendezvousError after so many seconds.
    #[pyo3(signature = (group, *, name = None, timeout = 60.0))]
    fn join(
        &self,
        py: Python<'_>,
        group: &str,
        name: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Group> {
        Group::join(py, self, group, name, timeout)
    }

    /// Registers memory for transfers: what has the buffer protocol (bytearray, mmap, numpy), a
    /// torch.Tensor, `__cuda_array_interface__` or `__dlpack__`; it must be contiguous. A list or a
    /// tuple of such gives a list of regions.
    ///
    /// `access` is what peers may do: "all", "read", "write" or "local" (nothing). `granted_to` has
    /// the peers that may, by Peer or by instance; all if None.
    ///
    /// The region keeps the object. What a device was given to do with the memory must be done
    /// before a transfer is posted: the engine's copies wait for no stream.
    #[pyo3(signature = (memory, *, access = "all", granted_to = None))]
    fn register<'py>(
        slf: &Bound<'py, Self>,
        memory: &Bound<'py, PyAny>,
        access: &str,
        granted_to: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let register =
            |one: &Bound<'py, PyAny>| Region::register(slf, Foreign::of(one)?, access, granted_to);
        if !memory.is_instance_of::<PyList>() && !memory.is_instance_of::<PyTuple>() {
            return Ok(register(memory)?.into_bound(py).into_any());
        }
        let regions =
            memory.try_iter()?.map(|one| register(&one?)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, regions)?.into_any())
    }

    /// Registers `nbytes` of memory by its address, of the host or, with `cuda=True`, of a GPU. `keep` is an
    /// object that the region keeps, the owner of the memory. Host memory has to allow what `access` grants;
    /// memory that goes while it is registered crashes the process.
    #[pyo3(signature = (address, nbytes, *, cuda = false, keep = None, access = "all", granted_to = None))]
    fn register_address(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = arguments::address)] address: u64,
        #[pyo3(from_py_with = arguments::nbytes)] nbytes: u64,
        cuda: bool,
        keep: Option<Py<PyAny>>,
        access: &str,
        granted_to: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Region>> {
        let kept = keep.unwrap_or_else(|| slf.py().None());
        let foreign = foreign::address(address, nbytes, cuda, kept)?;
        Region::register(slf, foreign, access, granted_to)
    }

    /// Reads the description of a peer's region, from `Region.describe` there.
    fn import_region(&self, description: &Bound<'_, PyAny>) -> PyResult<RemoteRegion> {
        let description = arguments::bytes("description", description)?;
        let remote = self.engine.import(&description).map_err(errors::region)?;
        Ok(RemoteRegion { remote })
    }

    /// Writes bytes from here into the peer's memory. `local` and `remote` are a region or a slice
    /// each, or lists of as many. The peer gets the notification once all bytes are in place.
    #[pyo3(signature = (peer, local, remote, *, notification = None, timeout = None))]
    fn write(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        notification: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (request, kept) = request::write(peer, (local, remote), notification, timeout)?;
        Transfer::post(slf, kept, |engine| engine.post(request))
    }

    /// Reads bytes of the peer's memory into memory here; see `write`.
    #[pyo3(signature = (peer, local, remote, *, timeout = None))]
    fn read(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (request, kept) = request::read(peer, (local, remote), timeout)?;
        Transfer::post(slf, kept, |engine| engine.post(request))
    }

    /// Sends a message that fills the peer's oldest receive of this tag. It waits for that receive.
    #[pyo3(signature = (peer, tag, local, *, timeout = None))]
    fn send(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        #[pyo3(from_py_with = arguments::tag)] tag: u64,
        local: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (request, kept) = request::send(peer, tag, local, timeout)?;
        Transfer::post(slf, kept, |engine| engine.post(request))
    }

    /// Room for a message of this tag from the peer. It waits for one.
    #[pyo3(signature = (peer, tag, local, *, timeout = None))]
    fn receive(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        #[pyo3(from_py_with = arguments::tag)] tag: u64,
        local: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (request, kept) = request::receive(peer, tag, local, timeout)?;
        Transfer::post(slf, kept, |engine| engine.post(request))
    }

    /// A write that is checked and cut once, and posted again and again.
    #[pyo3(signature = (peer, local, remote, *, notification = None, timeout = None))]
    fn prepare_write(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        notification: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Prepared> {
        let (request, kept) = request::write(peer, (local, remote), notification, timeout)?;
        Prepared::prepare(slf, kept, |engine| engine.prepare(request))
    }

    /// A read that is checked and cut once, and posted again and again.
    #[pyo3(signature = (peer, local, remote, *, timeout = None))]
    fn prepare_read(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Prepared> {
        let (request, kept) = request::read(peer, (local, remote), timeout)?;
        Prepared::prepare(slf, kept, |engine| engine.prepare(request))
    }

    /// A send that is checked and cut once, and posted again and again.
    #[pyo3(signature = (peer, tag, local, *, timeout = None))]
    fn prepare_send(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        #[pyo3(from_py_with = arguments::tag)] tag: u64,
        local: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Prepared> {
        let (request, kept) = request::send(peer, tag, local, timeout)?;
        Prepared::prepare(slf, kept, |engine| engine.prepare(request))
    }

    /// A receive that is checked and cut once, and posted again and again.
    #[pyo3(signature = (peer, tag, local, *, timeout = None))]
    fn prepare_receive(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        #[pyo3(from_py_with = arguments::tag)] tag: u64,
        local: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Prepared> {
        let (request, kept) = request::receive(peer, tag, local, timeout)?;
        Prepared::prepare(slf, kept, |engine| engine.prepare(request))
    }

    /// Tells a peer something, which it gets by `notifications` or its like. What this returns may be waited for, or
    /// dropped: it goes on until the peer has it or is lost, so many seconds are over, or the engine closes. `drain`
    /// waits for all of them.
    #[pyo3(signature = (peer, data, *, timeout = None))]
    fn notify(
        slf: &Bound<'_, Self>,
        peer: &Peer,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let request = request::notify(peer, data, timeout)?;
        let none = PyTuple::empty(slf.py()).unbind();
        let transfer = Transfer::post(slf, none, |engine| engine.post(request))?;
        // The transfer has a copy of the data, so no memory is freed before it ends.
        transfer.detach();
        Ok(transfer)
    }

    /// The next notification; None if none came within the timeout, or the engine is closed.
    #[pyo3(signature = (timeout = None))]
    fn wait_notification(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Notification>> {
        let timeout = waiting::timeout(timeout)?;
        let look = |slice| match self.engine.wait_notification(slice) {
            None if self.closed() => Some(None),
            found => found.map(Some),
        };
        wait(py, timeout, look)?.flatten().map(|taken| Notification::new(py, taken)).transpose()
    }

    /// All notifications that have come, in order. Never blocks.
    fn take_notifications(&self, py: Python<'_>) -> PyResult<Vec<Notification>> {
        let taken = self.engine.take_notifications();
        taken.into_iter().map(|one| Notification::new(py, one)).collect()
    }

    /// Notifications as they come, for `for` and `async for`, until the engine is closed, or none has
    /// come for so many seconds.
    #[pyo3(signature = (timeout = None))]
    fn notifications<'py>(
        slf: &Bound<'py, Self>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        waiting::timeout(timeout)?;
        let py = slf.py();
        asyncio(py)?.getattr(intern!(py, "Notifications"))?.call1((slf, timeout))
    }

    /// A descriptor that is readable once something has happened, for loops other than asyncio's.
    fn events(&self) -> PyResult<Events> {
        Ok(Events { events: self.engine.events().map_err(errors::engine)? })
    }

    /// Moves data if callers are to (setting progress = caller); says whether any moved.
    fn progress(&self, py: Python<'_>) -> bool {
        py.detach(|| self.engine.progress())
    }

    /// Waits until every transfer that was posted here is over, detached ones too. False: some are
    /// under way yet after so many seconds.
    #[pyo3(signature = (timeout = None))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = waiting::timeout(timeout)?;
        Ok(wait(py, timeout, |slice| self.engine.drain(slice))?.is_some())
    }

    /// All counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json(py, &self.engine.stats())
    }

    /// The state of everything, for people.
    fn dump(&self, py: Python<'_>) -> String {
        py.detach(|| self.engine.dump())
    }

    /// Leaves its groups, tells the peers, ends all transfers with an error, and stops the threads. Notifications that
    /// came before can be taken. Closing twice is fine.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, Ordering::Release);
        py.detach(|| self.end());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.closed() {
            false => format!("{:?}", self.engine),
            true => format!("<closed {:?}>", self.engine),
        }
    }
}
