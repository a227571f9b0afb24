//! Waiting: without the interpreter's lock, and so that Ctrl-C ends it.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How often Python looks for signals while it waits: only its main thread may handle them, and the
/// engine's calls do not end when one comes.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(100);

/// Reads a timeout in seconds; `None` is for ever.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        let text = format!("timeout is {seconds}; allowed: seconds, 0 or more, or None");
        return Err(PyValueError::new_err(text));
    }
    // More seconds than a `Duration` holds are for ever, too.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// Asks `look`, which waits at most as long as it is told, until it has an answer. `None`: there was
/// none within the timeout. Other threads of Python run meanwhile.
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
