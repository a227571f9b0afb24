//! Settings of an engine, from a dictionary and keywords.

use polyrail::{Config, EngineError};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};

use crate::arguments;
use crate::errors;

/// Reads settings. Later ones override earlier ones, and all override the environment.
pub(crate) fn read(given: &[Option<&Bound<'_, PyDict>>], env: bool) -> PyResult<Config> {
    let mut builder = Config::builder();
    if env {
        builder = builder.env();
    }
    for (name, value) in given.iter().copied().flatten().flatten() {
        let wrong = |_| arguments::wrong_type("settings", &name, "names of settings");
        let name: String = name.extract().map_err(wrong)?;
        let text = text(&name, &value)?;
        let refused = |error| errors::engine(EngineError::Config(error));
        builder = builder.set(&name, &text).map_err(refused)?;
    }
    builder.build().map_err(|error| errors::engine(EngineError::Config(error)))
}

/// Formats a value as a user would type it: lists with commas.
fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().to_string());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| text(name, &item?));
        return Ok(items.collect::<PyResult<Vec<_>>>()?.join(","));
    }
    if value.is_none() {
        let text = format!("{name} is None: leave it out for the default");
        return Err(PyTypeError::new_err(text));
    }
    Ok(value.str()?.to_string())
}
