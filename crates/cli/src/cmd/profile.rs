//! `polyrail profile`: measures every link between the endpoints of this machine.
//!
//! [`args`] has the options, [`choice`] makes endpoints and a plan from them, and [`session`] fills the
//! folder. [`warm`] first brings GPUs to a steady temperature, [`lock`] locks their clocks on request, and
//! [`nccl`] finds NCCL.

mod args;
mod choice;
mod lock;
mod nccl;
mod session;
mod warm;

use std::process::ExitCode;

use polyrail_profile::{Folder, PathKind};
use polyrail_report::exit;

pub(crate) use self::args::{Args, Way};
use self::choice::Choice;
use self::session::UNCHANGED;
use crate::fault::Fault;
use crate::interrupt::{AtOnce, Interrupt};
use crate::stdout::{print, start_log};

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok((text, code)) => print(&text, code),
        Err(fault) => fault.refuse(),
    }
}

fn execute(args: &Args) -> Result<(String, u8), Fault> {
    if !args.restore_clocks.is_empty() {
        return lock::guard(&args.restore_clocks).map(|()| (String::new(), exit::OK));
    }
    args.refuse_unused()?;
    let interrupt = Interrupt::install(AtOnce::FirstWhileNothingIsDone(UNCHANGED))?;
    // Finding and warming devices takes long, so claim the folder first.
    let claim = args.resume.as_ref().map(Folder::claim).transpose()?;
    let choice = Choice::make(args)?;
    if args.plan {
        return Ok((choice.describe(args), exit::OK));
    }
    if choice.paths.contains(&PathKind::Nccl) {
        nccl::settle(choice.nccl_mode)?;
    }
    start_log(&choice.options.config)?;
    session::fill(args, choice, claim, &interrupt)
}
