//! What people and programs get to see.

mod path;
mod remarks;
mod render;
mod save;
mod tables;
mod words;

pub(crate) use self::path::{TCP, explanation, path_of};
pub(crate) use self::remarks::remarks;
pub(crate) use self::save::{Output, sample_file};
