//! `polyrail config`: prints the settings, their values and the origin of each value.

use std::process::ExitCode;

use clap::Subcommand;
use polyrail_config::{Config, ConfigError, Row};
use polyrail_report::{Align, Table, exit};
use serde_json::{Map, Value, json};

use crate::config_args::{ConfigArgs, print_warnings, refuse};
use crate::stdout::{fitted, print};
use crate::values::{completed, setting_name, settings};

/// Version of the JSON, raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Arguments of the subcommand.
#[derive(clap::Args)]
// `config help NAME` explains a setting; `--help` is there for the rest.
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the settings in effect, and where each value came from.
    Show(ShowArgs),
    /// Explain one setting.
    Help {
        /// The setting, like chunk_bytes.
        #[arg(hide_possible_values = true, value_parser = completed(setting_name, settings))]
        name: String,
    },
    /// Print the documentation of all settings as Markdown.
    Docs,
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match output(&args.command) {
        Ok(text) => print(&text, exit::OK),
        Err(error) => refuse(&error),
    }
}

fn output(command: &Command) -> Result<String, ConfigError> {
    match command {
        Command::Show(args) => {
            let config = args.config.resolve()?;
            print_warnings(&config);
            Ok(if args.json { json(&config) } else { table(&config.rows()) })
        }
        Command::Help { name } => polyrail_config::help(name),
        Command::Docs => Ok(polyrail_config::markdown()),
    }
}

fn json(config: &Config) -> String {
    let settings: Map<String, Value> = config
        .rows()
        .iter()
        .map(|row| {
            let mut entry = json!(row);
            entry["changed"] = row.is_changed().into();
            (row.name.to_owned(), entry)
        })
        .collect();
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "settings": settings,
        "warnings": config.warnings(),
    });
    format!("{document:#}\n")
}

fn table(rows: &[Row]) -> String {
    let mut table = ["", "", ""]
        .into_iter()
        .fold(Table::default(), |table, heading| table.column(heading, Align::Left));
    for row in rows {
        let mark = if row.is_changed() { "*" } else { "" };
        table.row([format!("{mark:1} {}", row.name), value_cell(row), row.origin.to_string()]);
    }
    let mut text = fitted(&table).trim_start_matches('\n').to_owned();
    if rows.iter().any(Row::is_changed) {
        text.push_str("\n* differs from the default\n");
    }
    text
}

fn value_cell(row: &Row) -> String {
    let value = if row.value.is_empty() { "\"\"" } else { &row.value };
    // Sizes already include their unit, and the names of counts say what is counted.
    let unit =
        if matches!(row.unit, "ms" | "us") && row.meaning.is_empty() { row.unit } else { "" };
    let meaning =
        if row.meaning.is_empty() { String::new() } else { format!(" ({})", row.meaning) };
    format!("{value}{unit}{meaning}")
}
