//! `polyrail mesh`: how fast memory moves between all pairs of nodes, by itself and all at once.
//!
//! One process starts the others of its node, of all nodes of a lab, or of all [`hosts`] ([`launch`], [`place`]). These are
//! workers: each has an engine, and finds the others by the rendezvous ([`crew`]), or in a lab and on hosts by who started
//! it ([`meet`]). All of them follow orders
//! ([`follow`]); the first one gives them, too, and collects what was counted ([`direct`]).
//!
//! [`plan`] says who sends to whom and when, [`talk`] what workers say to each other, [`post`] sends,
//! [`counters`] counts, [`report`] is what comes of it, [`conclude`] says that in sentences, and [`render`] is
//! how people get to see it.

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
mod place;
mod plan;
mod post;
mod render;
mod report;
mod talk;

use std::process::ExitCode;

pub(crate) use self::args::Args;
use crate::fault::Fault;

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.worker {
        Some(seat) => crew::work(args, seat),
        None => launch::run(args),
    };
    done.map_or_else(Fault::refuse, ExitCode::from)
}
