//! Waiting without the interpreter's lock, interruptible by Ctrl-C.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Interval at which Python checks for signals while it waits: only its main thread may handle them, and the engine's
/// calls are not interrupted by signals.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(100);

/// Reads a timeout in seconds. `None` means forever.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        let text = format!("timeout is {seconds}; allowed: seconds, 0 or more, or None");
        return Err(PyValueError::new_err(text));
    }
    // More seconds than a `Duration` holds mean forever, too.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// Calls `look`, which waits at most for the given time, until it returns a value. Returns `None` after the timeout.
/// Other Python threads run meanwhile.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    look: impl Fn(Duration) -> Option<T> + Send + Sync,
) -> PyResult<Option<T>> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slice = left.map_or(LOOK_FOR_SIGNALS, |left| left.min(LOOK_FOR_SIGNALS));
        if let Some(found) = py.detach(|| look(slice)) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}
