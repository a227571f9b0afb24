//! All commands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::cmd;
use crate::usage::prepared;
use crate::version::VERSION;

/// Move memory between machines over every network interface at once, on plain TCP.
#[derive(Parser)]
#[command(name = "polyrail", version = VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read a profile: figures, models of links, comparisons, inputs for simulators, a report.
    Analyze(Box<cmd::analyze::Args>),
    /// Find the settings that are best for a workload, or say that the default is.
    Autotune(Box<cmd::sweep::AutotuneArgs>),
    /// Measure how fast memory moves between two processes, and what keeps it from being faster.
    Bench(Box<cmd::bench::Args>),
    /// Choose which CPUs the threads of each interface run on, and check such choices.
    Bindings(Box<cmd::bindings::Args>),
    /// Measure collective operations between ranks over a net plugin of NCCL, without a GPU.
    Collective(Box<cmd::collective::Args>),
    /// Print completions of commands, options and their values for a shell.
    Completions(cmd::completions::Args),
    /// Show the settings, their values and where each value came from.
    Config(cmd::config::Args),
    /// Find what is wrong with this host for fast TCP, and what mends it.
    Doctor(Box<cmd::doctor::Args>),
    /// Find out which settings change a figure, by how much, and how sure that is.
    Experiment(Box<cmd::experiment::Args>),
    /// Serve the metrics of all engines of this host to Prometheus.
    Exporter(cmd::exporter::Args),
    /// Show and choose which CPUs the interrupts of network interfaces go to.
    Irq(Box<cmd::irq::Args>),
    /// Network namespaces with shaped links: a multi-rail cluster on one machine.
    Lab(cmd::lab::Args),
    /// Write a manual page for each command.
    Man(cmd::man::Args),
    /// Measure how fast memory moves between all pairs of nodes, by itself and all at once.
    Mesh(Box<cmd::mesh::Args>),
    /// Install, check and set up the plugin for NCCL and RCCL.
    Nccl(cmd::nccl::Args),
    /// Show and set the queues of an interface, their sizes, and when they interrupt; show its counters.
    Nic(Box<cmd::nic::Args>),
    /// Install, try and remove the backend for NIXL.
    Nixl(cmd::nixl::Args),
    /// Show which engines are in a group, and who joins and leaves.
    Peers(Box<cmd::peers::Args>),
    /// Measure every link between the GPUs or the memory of this machine, and keep all samples.
    Profile(Box<cmd::profile::Args>),
    /// Write what CPUs, interrupts, NICs, flows and threads do, second by second.
    Sample(cmd::sample::Args),
    /// Make a secret that lets engines connect to each other by address alone.
    Secret(cmd::secret::Args),
    /// Measure many combinations of settings: the best one, heat maps, and how much each setting matters.
    Sweep(Box<cmd::sweep::SweepArgs>),
    /// Watch the engines of this machine: rates of each rail, events and threads, second by second.
    Top(cmd::top::Args),
    /// Show CPUs, nodes, interfaces and GPUs, and which interface serves each GPU best.
    Topo(cmd::topo::Args),
    /// Settings for fast TCP, by profile, with a way back.
    Tune(Box<cmd::tune::Args>),
}

/// Runs the command that was chosen.
pub(crate) fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Analyze(args) => cmd::analyze::run(&args),
        Command::Autotune(args) => cmd::sweep::autotune(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Bindings(args) => cmd::bindings::run(&args),
        Command::Collective(args) => cmd::collective::run(&args),
        Command::Completions(args) => cmd::completions::run(&args, prepared(Cli::command())),
        Command::Config(args) => cmd::config::run(args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Experiment(args) => cmd::experiment::run(&args),
        Command::Exporter(args) => cmd::exporter::run(&args),
        Command::Irq(args) => cmd::irq::run(&args),
        Command::Lab(args) => cmd::lab::run(args),
        Command::Man(args) => cmd::man::run(&args, prepared(Cli::command())),
        Command::Mesh(args) => cmd::mesh::run(&args),
        Command::Nccl(args) => cmd::nccl::run(args),
        Command::Nic(args) => cmd::nic::run(&args),
        Command::Nixl(args) => cmd::nixl::run(args),
        Command::Peers(args) => cmd::peers::run(&args),
        Command::Profile(args) => cmd::profile::run(&args),
        Command::Sample(args) => cmd::sample::run(&args),
        Command::Secret(args) => cmd::secret::run(&args),
        Command::Sweep(args) => cmd::sweep::sweep(&args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Topo(args) => cmd::topo::run(&args),
        Command::Tune(args) => cmd::tune::run(&args),
    }
}
