//! `polyrail collective`: collective operations between ranks over a net plugin of NCCL, without a GPU.
//!
//! One process starts the ranks ([`crew`]), on this host or on the nodes of a lab ([`place`]), has them run
//! size after size ([`measure`]), and shows what came of it ([`report`], [`render`]). A rank
//! ([`worker`]) is a process of its own that loads one plugin. With `--compare` there are two crews, which
//! take turns.

mod args;
mod crew;
mod measure;
mod place;
mod render;
mod report;
mod worker;

use std::process::ExitCode;

pub(crate) use self::args::{Args, check_options};
use crate::fault::Fault;

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match args.worker {
        true => worker::work(),
        false => measure::run(args),
    };
    done.map_or_else(Fault::refuse, |()| ExitCode::SUCCESS)
}
