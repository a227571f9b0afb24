//! `polyrail bench`: measures how fast memory moves between two processes, and finds the limit.
//!
//! The folders from the top; each uses only those below it:
//!
//! 1. [`ends`]: one process measures, the other serves: both here by default, on two machines with
//!    `--listen` and `--connect`, or in a lab.
//! 2. [`rivals`]: what is measured in alternation with the engine.
//! 3. [`trial`]: one size on one pair of engines. Each is several samples; between them the destination
//!    is overwritten and then compared with a pattern of the position.
//! 4. [`judge`]: finds the limit of each size.
//! 5. [`talk`]: messages between the two ends, through the measured engine.
//! 6. [`memory`]: the memory of one end and its contents.
//! 7. [`output`]: text for people, and JSON for programs.
//! 8. [`options`]: the options and the settings that follow from them.
//!
//! All of them use [`faults`].

mod ends;
mod faults;
mod judge;
mod memory;
mod options;
mod output;
mod rivals;
mod talk;
mod trial;

use std::process::{Command, ExitCode};

use polyrail::Engine;
use polyrail_report::exit;

pub(crate) use self::judge::names_down;
pub(crate) use self::memory::{Bank, Buffers, Needs, Store};
use self::options::Role;
pub(crate) use self::options::{
    Args, Layout, MemoryKind, Verify, check_options, place_together, usual_warmup,
};
pub(crate) use self::talk::RailDelta;
use crate::config_args::{print_warnings, told};
use crate::fault::Fault;
use crate::stdout::{keep, start_log};

pub(crate) fn run(args: &Args) -> ExitCode {
    start(args).map_or_else(Fault::refuse, ExitCode::from)
}

fn start(args: &Args) -> Result<u8, Fault> {
    let role = args.role()?;
    // With a lab, another process writes to standard output.
    if args.is_for_programs() && !matches!(role, Role::Lab { .. }) {
        keep().map_err(|source| Fault::system("keeping standard output", source))?;
    }
    // Start the log first, so that slow steps from here on appear in it.
    start_log(&told(args.resolve_config(&role, &[])?))?;
    let placed = args.place(&role)?;
    let config = args.resolve_config(&role, &placed.mine)?;
    // Print once: other processes of the run have the same settings.
    if !args.serve_parent && !args.nccl_rank {
        print_warnings(&config);
    }
    let config = told(config);
    if !matches!(role, Role::Listen { .. } | Role::ServeParent | Role::NcclRank) {
        args.check_schedule(&config)?;
    }
    match role {
        Role::Listen { addresses } => {
            let threads = options::Placed::words(placed.by, &placed.why);
            ends::listen(config, Bank::open(args.mem)?, &addresses, &threads)
        }
        Role::ServeParent => ends::serve_parent(config, Bank::open(args.mem)?).map(|()| exit::OK),
        Role::NcclRank => rivals::run_nccl_rank(config, &Bank::open(args.mem)?).map(|()| exit::OK),
        Role::Connect(server) => {
            let (bank, engine) = (Bank::open(args.mem)?, Engine::builder().config(config).build()?);
            ends::measure(args, engine, bank, &server, &placed)
        }
        Role::Lab { rates } => ends::run_in_lab(rates, &config, &placed, args.peer_mem),
        Role::Both if args.one_process => {
            let bank = Bank::open(args.mem)?;
            // Build this end first, as below: the other end can't name the source of a wrong value.
            let engine = Engine::builder().config(config.clone()).build()?;
            let here = ends::Here::start(&config, &placed, Bank::open(args.peer_mem)?)?;
            ends::measure(args, engine, bank, &here.server, &placed)
        }
        Role::Both => {
            // Build this end before the other process starts, so that its errors come first. The other end gets
            // options, and does not know where a wrong value came from.
            let bank = Bank::open(args.mem)?;
            let engine = Engine::builder().config(config.clone()).build()?;
            let program = std::env::current_exe()
                .map_err(|source| Fault::system("finding this program", source))?;
            let command = Command::new(program);
            let mut served = ends::Served::start(command, &config, &placed, args.peer_mem)?;
            let measured = ends::measure(args, engine, bank, &served.server, &placed);
            if matches!(&measured, Err(fault) if fault.is_interrupted()) {
                served.hurry();
            }
            measured
        }
    }
}
