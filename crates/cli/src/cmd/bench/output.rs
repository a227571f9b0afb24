//! Output for people and programs.

mod fit;
mod path;
mod remarks;
mod render;
mod save;
mod tables;
mod words;

pub(crate) use self::path::{TCP, explanation, path_of};
pub(crate) use self::remarks::remarks;
pub(crate) use self::save::{Output, kept_state_folder, sample_file};
