//! The two ends of a run: one measures, the other serves; and how they are brought up.

mod about;
mod client;
mod idle;
mod inlab;
mod intervals;
mod line;
mod listen;
mod measure;
mod promise;
mod protection;
mod result;
mod serve;
mod spawn;
mod why;
mod yardsticks;

pub(crate) use self::client::run as measure;
pub(crate) use self::inlab::run_in_lab;
pub(crate) use self::listen::listen;
pub(crate) use self::spawn::{Here, Served, serve_parent};
