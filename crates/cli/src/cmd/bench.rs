//! `polyrail bench`: how fast memory moves between two processes, and what keeps it from being
//! faster.
//!
//! One process measures ([`client`]), the other serves ([`serve`]): both here by default
//! ([`spawn`]), on two machines with `--listen` and `--connect`, or in a lab ([`inlab`]). They talk
//! through the engine under test ([`control`]). Each size is a [`trial`] of several samples; between
//! them the destination is overwritten and then compared with a [`pattern`] of the position.

mod args;
mod buffers;
mod client;
mod configure;
mod control;
mod cuda;
mod error;
mod inlab;
mod interrupt;
mod latency;
mod layout;
mod machine;
mod measure;
mod memory;
mod nccl;
mod nccl_rank;
mod near;
mod observe;
mod output;
mod path;
mod pattern;
mod place;
mod plan;
mod progress;
mod raw;
mod remarks;
mod render;
mod rivals;
mod serve;
mod spawn;
mod tables;
mod trial;
mod verdict;
mod watch;
mod work;

use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use polyrail::{Config, Engine};
use polyrail_report::exit;

pub(crate) use self::args::Args;
use self::args::Role;
use self::error::BenchError;
use self::interrupt::Interrupt;
use self::memory::Bank;
pub(crate) use self::place::place_together;
use crate::config_args::print_warnings;

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match start(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("polyrail: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(args: &Args) -> Result<u8, BenchError> {
    let role = args.role()?;
    let placed = args.place(&role)?;
    let config = args.resolve_config(&role, &placed.mine)?;
    if !args.serve_parent && !args.nccl_rank {
        print_warnings(&config);
    }
    if !matches!(role, Role::Listen { .. } | Role::ServeParent | Role::NcclRank) {
        args.check_plan(&config)?;
    }
    crate::logging::start(&config)?;
    match role {
        Role::Listen { address } => {
            eprintln!("threads: {}", placed.why);
            listen(config, Bank::open(args.mem)?, address)
        }
        Role::ServeParent => spawn::serve_parent(config, Bank::open(args.mem)?).map(|()| exit::OK),
        Role::NcclRank => nccl_rank::run(config, &Bank::open(args.mem)?).map(|()| exit::OK),
        Role::Connect { address } => {
            client::run(args, config, Bank::open(args.mem)?, address, &placed)
        }
        Role::Lab { rates } => inlab::run(rates, &config, &placed, args.peer_mem),
        Role::Both if args.one_process => {
            let bank = Bank::open(args.mem)?;
            let here = spawn::Here::start(&config, &placed, Bank::open(args.peer_mem)?)?;
            client::run(args, config, bank, here.address, &placed)
        }
        Role::Both => {
            // Before the other process, so that what is wrong here is said first.
            let bank = Bank::open(args.mem)?;
            let program = std::env::current_exe()
                .map_err(|source| BenchError::system("finding this program", source))?;
            let command = Command::new(program);
            let served = spawn::Served::start(command, &config, &placed, args.peer_mem)?;
            client::run(args, config, bank, served.address, &placed)
        }
    }
}

/// Serves clients until Ctrl-C, which is the usual end and no failure.
fn listen(config: Config, bank: Bank, address: Option<SocketAddr>) -> Result<u8, BenchError> {
    let interrupt = Interrupt::install()?;
    let engine = Engine::builder().config(config).build()?;
    let addresses = engine.addresses();
    let wanted = address.filter(|address| !address.ip().is_unspecified());
    if let Some(address) = wanted
        && !addresses.iter().any(|rail| rail.ip() == address.ip())
    {
        let rails: Vec<String> = addresses.iter().map(|rail| rail.ip().to_string()).collect();
        return Err(BenchError::NotARail { address, rails: rails.join(", ") });
    }
    let first = wanted.and_then(|wanted| addresses.iter().find(|rail| rail.ip() == wanted.ip()));
    if let Some(address) = first.or(addresses.first()) {
        println!("listening on {address}");
        eprintln!("measure with `polyrail bench --connect {address}`; end with Ctrl-C");
    }
    serve::serve(&engine, &Arc::new(bank), &|| interrupt.is_raised(), |peer, result| {
        match result {
            Ok(()) => eprintln!("served {}", peer.name()),
            Err(error) => eprintln!("served {}, which ended early: {error}", peer.name()),
        }
        true
    });
    Ok(exit::OK)
}
