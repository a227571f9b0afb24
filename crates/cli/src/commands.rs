//! Top-level command line: the subcommands and their dispatch.

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
    /// Read a profile: figures, models, comparisons, a report, inputs for simulators.
    Analyze(Box<cmd::analyze::Args>),
    /// Measure how fast memory moves between two processes, and what slows it down.
    Bench(Box<cmd::bench::Args>),
    /// Measure collective operations over a net plugin of NCCL, without a GPU.
    Collective(Box<cmd::collective::Args>),
    /// Show the settings, their values and where each value came from.
    Config(cmd::config::Args),
    /// Find what is wrong with this host for fast TCP, and what mends it.
    Doctor(Box<cmd::doctor::Args>),
    /// Find out which settings change a figure, by how much, and which are the best.
    #[command(subcommand)]
    Experiment(Experiment),
    /// Serve the metrics of all engines of this host to Prometheus.
    Exporter(cmd::exporter::Args),
    /// Show this machine, change what makes it slow, and take changes back: interrupts, queues, settings.
    Host(Box<cmd::host::Args>),
    /// Network namespaces with shaped links: a multi-rail cluster on one machine.
    Lab(cmd::lab::Args),
    /// Measure how fast memory moves between all pairs of nodes, alone and at once.
    Mesh(Box<cmd::mesh::Args>),
    /// Install, check and set up the plugin for NCCL and RCCL.
    Nccl(cmd::nccl::Args),
    /// Install, try and remove the backend for NIXL.
    Nixl(cmd::nixl::Args),
    /// Show which engines are in a group, and who joins and leaves.
    Peers(Box<cmd::peers::Args>),
    /// Measure every link between GPUs or memory of this machine; keep all samples.
    Profile(Box<cmd::profile::Args>),
    /// Write what CPUs, interrupts, NICs, flows and threads do, second by second.
    Sample(cmd::sample::Args),
    /// Make a secret that lets engines connect to each other by address alone.
    Secret(cmd::secret::Args),
    /// Write completions for a shell, and manual pages.
    Shell(cmd::shell::Args),
    /// Watch the engines of this machine: rates of each rail, events and threads.
    Top(cmd::top::Args),
}

#[derive(Subcommand)]
enum Experiment {
    /// Find out which settings change a figure, by how much, and how sure that is.
    Run(Box<cmd::experiment::RunArgs>),
    /// Undo what an experiment that was killed changed on this host.
    Undo(Box<cmd::experiment::UndoArgs>),
    /// Measure many combinations of settings: the best one, heat maps, and how much each setting matters.
    Sweep(Box<cmd::sweep::SweepArgs>),
    /// Find the settings that are best for a workload, or say that the default is.
    Autotune(Box<cmd::sweep::AutotuneArgs>),
}

/// Runs the chosen subcommand.
pub(crate) fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Analyze(args) => cmd::analyze::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Collective(args) => cmd::collective::run(&args),
        Command::Config(args) => cmd::config::run(args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Experiment(Experiment::Run(args)) => cmd::experiment::run(&args),
        Command::Experiment(Experiment::Undo(args)) => cmd::experiment::undo(&args),
        Command::Experiment(Experiment::Sweep(args)) => cmd::sweep::sweep(&args),
        Command::Experiment(Experiment::Autotune(args)) => cmd::sweep::autotune(&args),
        Command::Exporter(args) => cmd::exporter::run(&args),
        Command::Host(args) => cmd::host::run(&args),
        Command::Lab(args) => cmd::lab::run(args),
        Command::Mesh(args) => cmd::mesh::run(&args),
        Command::Nccl(args) => cmd::nccl::run(args),
        Command::Nixl(args) => cmd::nixl::run(args),
        Command::Peers(args) => cmd::peers::run(&args),
        Command::Profile(args) => cmd::profile::run(&args),
        Command::Sample(args) => cmd::sample::run(&args),
        Command::Secret(args) => cmd::secret::run(&args),
        Command::Shell(args) => cmd::shell::run(&args, prepared(Cli::command())),
        Command::Top(args) => cmd::top::run(&args),
    }
}
