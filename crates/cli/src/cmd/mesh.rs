//! `polyrail mesh`: measures how fast memory moves between all pairs of nodes, isolated and all at once.
//!
//! One process starts the others of its node, of all nodes of a lab, or of all [`hosts`] ([`launch`], [`place`]). These
//! are workers with an engine each. They find each other by the rendezvous ([`crew`]), or in a lab and on hosts through
//! the process that started them ([`meet`]). All workers follow orders ([`follow`]). The first worker also gives the
//! orders, and collects the counts ([`direct`]).
//!
//! [`plan`] decides which pairs send when, [`talk`] has the messages between workers, [`post`] sends, [`counters`]
//! counts, [`report`] has the results, [`conclude`] puts them in sentences, [`render`] prints them and [`page`] makes
//! their page.

mod args;
mod conclude;
mod counters;
mod crew;
mod direct;
mod faults;
mod follow;
mod heard;
mod hosts;
mod launch;
mod meet;
mod page;
mod place;
mod plan;
mod post;
mod render;
mod report;
mod talk;

use std::process::ExitCode;

pub(crate) use self::args::Args;
pub(crate) use self::page::page;
use crate::fault::Fault;

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.worker {
        Some(seat) => crew::work(args, seat),
        None => launch::run(args),
    };
    done.map_or_else(Fault::refuse, ExitCode::from)
}
