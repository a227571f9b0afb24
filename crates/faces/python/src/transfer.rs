//! Transfers, their results, and requests that are posted repeatedly.

use std::sync::atomic::{AtomicBool, Ordering};

use polyrail::{PostError, PreparedTransfer, TransferError};
use pyo3::exceptions::PyTimeoutError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments;
use crate::engine::{self, Engine};
use crate::errors;
use crate::request::Kept;
use crate::waiting;

/// A write, read, send or receive under way. Wait for it, or await it in asyncio.
///
/// Keep it until it is over: it is cancelled if the object goes before, unless `detach()` was called.
/// It keeps the regions that it uses. One of `Engine.notify` uses none, and is detached from the start.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Transfer {
    /// Taken when the object is dropped, and never before.
    transfer: Option<polyrail::Transfer>,
    is_detached: AtomicBool,
    // Dropped after the transfer: regions may end when it is over.
    kept: Kept,
    engine: Py<Engine>,
}

/// How a transfer ended that did not fail.
#[pyclass(frozen, get_all, module = "polyrail")]
pub(crate) struct Outcome {
    /// Payload bytes.
    nbytes: u64,
    /// From the post to the end, in seconds.
    seconds: f64,
}

/// A request that is checked and cut once, and posted as often as you like, also while an earlier
/// post is under way. `Engine.prepare_write` and its like make it.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Prepared {
    prepared: PreparedTransfer,
    kept: Kept,
    engine: Py<Engine>,
}

impl Transfer {
    /// Posts a transfer while other Python threads run.
    pub(crate) fn post(
        engine: &Bound<'_, Engine>,
        kept: Kept,
        post: impl FnOnce(&polyrail::Engine) -> Result<polyrail::Transfer, PostError> + Send,
    ) -> PyResult<Self> {
        let own = &engine.get().engine;
        let transfer = engine.py().detach(|| post(own)).map_err(errors::post)?;
        let engine = engine.clone().unbind();
        Ok(Self { transfer: Some(transfer), is_detached: AtomicBool::new(false), kept, engine })
    }

    fn transfer(&self) -> &polyrail::Transfer {
        self.transfer.as_ref().expect("it is taken when the object ends")
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer.take()
            && *self.is_detached.get_mut()
        {
            transfer.detach();
        }
    }
}

/// Converts a result to the outcome or the exception.
fn outcome(ended: Result<polyrail::Outcome, TransferError>) -> PyResult<Outcome> {
    let outcome = ended.map_err(|error| errors::transfer(&error))?;
    Ok(Outcome { nbytes: outcome.bytes, seconds: outcome.duration.as_secs_f64() })
}

#[pymethods]
impl Transfer {
    /// Whether it is over, for better or worse. Never blocks.
    fn done(&self) -> bool {
        self.transfer().is_over()
    }

    /// How it ended, None while it is under way; raises TransferError if it failed. Never blocks.
    fn outcome(&self) -> PyResult<Option<Outcome>> {
        self.transfer().try_wait().map(outcome).transpose()
    }

    /// Waits until it is over, and says how it ended; raises TransferError if it failed. Raises
    /// TimeoutError after so many seconds: then it goes on, and may be waited for again.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Outcome> {
        let transfer = self.transfer();
        let ended = waiting::wait(py, waiting::timeout(timeout)?, |slice| transfer.wait(slice))?;
        outcome(ended.ok_or_else(|| {
            PyTimeoutError::new_err("the transfer goes on: wait again, or cancel() it")
        })?)
    }

    /// Asks for an early end and returns at once. It is over when `wait` says so: after that, no byte
    /// of it is read here or lands at the peer. It may still turn out complete.
    fn cancel(&self) {
        self.transfer().cancel();
    }

    /// It goes on though this object may go. Keep its regions: it fails if one of them ends.
    pub(crate) fn detach(&self) {
        self.is_detached.store(true, Ordering::Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kept)
    }

    /// Payload bytes of the parts that are complete.
    #[getter]
    fn bytes_done(&self) -> u64 {
        self.transfer().bytes_done()
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let ended = engine::asyncio(py)?.getattr(intern!(py, "ended"))?;
        let awaited = ended.call1((slf.get().engine.bind(py), slf))?;
        awaited.call_method0(intern!(py, "__await__"))
    }

    fn __repr__(&self) -> String {
        let transfer = self.transfer();
        match transfer.try_wait() {
            None => format!("Transfer(under way, {} bytes done)", transfer.bytes_done()),
            Some(Ok(ended)) => {
                format!("Transfer({} bytes, {:.6} s)", ended.bytes, ended.duration.as_secs_f64())
            }
            Some(Err(error)) => format!("Transfer(failed: {error})"),
        }
    }
}

#[pymethods]
impl Outcome {
    fn __repr__(&self) -> String {
        format!("Outcome({} bytes, {:.6} s)", self.nbytes, self.seconds)
    }
}

impl Prepared {
    pub(crate) fn prepare(
        engine: &Bound<'_, Engine>,
        kept: Kept,
        prepare: impl FnOnce(&polyrail::Engine) -> Result<PreparedTransfer, PostError> + Send,
    ) -> PyResult<Self> {
        let own = &engine.get().engine;
        let prepared = engine.py().detach(|| prepare(own)).map_err(errors::post)?;
        Ok(Self { prepared, kept, engine: engine.clone().unbind() })
    }
}

#[pymethods]
impl Prepared {
    /// Posts it; a write may have a notification of its own for this once. Raises Busy if too many
    /// are under way: post again when an older one is over.
    #[pyo3(signature = (notification = None))]
    fn post(&self, py: Python<'_>, notification: Option<&Bound<'_, PyAny>>) -> PyResult<Transfer> {
        let given = notification.map(|given| arguments::bytes("notification", given));
        let (prepared, notification) = (&self.prepared, given.transpose()?);
        Transfer::post(self.engine.bind(py), self.kept.clone_ref(py), |_| match notification {
            Some(notification) => prepared.post_with(notification),
            None => prepared.post(),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kept)
    }

    /// Payload bytes of each post.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.prepared.bytes()
    }

    /// Segments after merging.
    #[getter]
    fn segments(&self) -> usize {
        self.prepared.segments()
    }

    /// How its bytes travel, and why so.
    #[getter]
    fn path(&self) -> String {
        self.prepared.path().to_string()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.prepared)
    }
}
