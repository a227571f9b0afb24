//! The two ends of a run, one of which measures while the other serves, and their start.

mod about;
mod client;
mod events;
mod fit;
mod idle;
mod inlab;
mod line;
mod listen;
mod measure;
mod promise;
mod protection;
mod result;
mod serve;
mod spawn;
mod sums;
mod why;
mod yardsticks;

pub(crate) use self::client::run as measure;
pub(crate) use self::inlab::run_in_lab;
pub(crate) use self::listen::listen;
pub(crate) use self::spawn::{Here, Served, serve_parent};
