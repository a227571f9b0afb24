//! `polyrail collective`: collective operations between ranks over a net plugin of NCCL, without a GPU.
//!
//! One process starts the ranks ([`crew`]) on this host or on the nodes of a lab ([`place`]). It measures size after
//! size ([`measure`]) and shows the results ([`report`], [`render`], [`page`]). Each rank ([`worker`]) is a separate
//! process that loads one plugin. With `--compare` there are two crews, which alternate.

mod args;
mod crew;
mod measure;
mod page;
mod place;
mod render;
mod report;
mod worker;

use std::process::ExitCode;

pub(crate) use self::args::{Args, check_options};
pub(crate) use self::page::page;
use crate::fault::Fault;

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match args.worker {
        true => worker::work(),
        false => measure::run(args),
    };
    done.map_or_else(Fault::refuse, |()| ExitCode::SUCCESS)
}
