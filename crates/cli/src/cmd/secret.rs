//! `polyrail secret`: makes secrets for `secret_file`.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use polyrail_report::exit;
use polyrail_sys::files::{Opening, open_to_write, remove_opened};

use crate::files::OutFile;
use crate::stdout::{complain, print, refuse_place, tell};
use crate::unwritten::Unwritten;
use crate::values::new_file;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a secret that lets engines connect to each other by address alone.
    ///
    /// Copy the file to each host, and name it there with `--set secret_file=FILE`, in the
    /// configuration, or in the environment as POLYRAIL_SECRET_FILE. To replace a secret without an
    /// interruption, put the new one on the second line everywhere, then on the first, then remove
    /// the old one, and restart the engines after each of these steps.
    New {
        /// Write it here, readable by this user only; the file must not exist. Standard output if not
        /// given.
        #[arg(value_parser = new_file(false))]
        file: Option<OutFile>,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Command::New { file } = &args.command;
    let secret = match polyrail::new_secret() {
        Ok(secret) => secret,
        Err(error) => {
            complain(&format!("random bits: {error}"), Some("run it where the system has some"));
            return ExitCode::from(exit::ENVIRONMENT);
        }
    };
    let Some(path) = file else { return print(&format!("{secret}\n"), exit::OK) };
    let created = open_to_write(path, Opening::New, 0o600);
    let written = match &created {
        Ok(file) => writeln!(&mut &*file, "{secret}").inspect_err(|_| {
            // A partial secret would block the next try.
            let _ = remove_opened(path, file);
        }),
        Err(_) => Ok(()),
    };
    match created.and(written) {
        Ok(()) => {
            tell!("wrote {}, which only this user can read", path.display());
            ExitCode::from(exit::OK)
        }
        Err(error) => refuse_place(&Unwritten::at(path)(error)),
    }
}
