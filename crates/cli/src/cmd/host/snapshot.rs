//! Archives copies of this machine's `/proc` and `/sys`.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use polyrail_doctor::{Probes, examined};
use polyrail_host::snapshot::{self, Answers, SnapshotError};
use polyrail_report::exit;
use polyrail_sys::files::{Opening, open_to_write, remove_opened};

use super::place::Where;
use super::topology::ask_nvml;
use crate::fault::Fault;
use crate::files::OutFile;
use crate::stdout::tell;
use crate::unwritten::{Unwritten, to_stdout};
use crate::values::new_file;

#[derive(clap::Args)]
pub(super) struct SnapshotArgs {
    /// The archive, which must not be there yet; `-` is standard output.
    #[arg(value_parser = new_file(true))]
    file: OutFile,

    /// Do not ask NVIDIA's library NVML about the GPUs, which wakes those that sleep.
    #[arg(long)]
    no_nvml: bool,
}

pub(super) fn take(args: &SnapshotArgs, place: &Where) -> Result<ExitCode, Fault> {
    let file: &Path = &args.file;
    let (root, topology) = (place.root(), place.topology()?);
    let nvml = match ask_nvml(&root, args.no_nvml, &topology) {
        Some(Ok(report)) => Some(report),
        Some(Err(absent)) => {
            tell!("polyrail: {absent}");
            None
        }
        None => None,
    };
    let probes = Probes::take(&root, &examined(&root, &topology)).map_err(|error| Fault {
        help: error.help(),
        ..Fault::new(exit::USAGE, error.to_string())
    })?;
    let probes = probes.redacted().to_json();
    let answers = Answers { nvml: nvml.as_ref(), files: vec![(Probes::FILE, probes)] };
    let is_stdout = file == Path::new("-");
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|_| !is_stdout);
    let name = name.unwrap_or("machine");
    let written = if is_stdout {
        snapshot::write(&root, name, &answers, io::stdout().lock())
    } else {
        match open_to_write(file, Opening::New, 0o666) {
            Ok(out) => snapshot::write(&root, name, &answers, io::BufWriter::new(&out))
                .inspect_err(|error| {
                    // Half an archive is useless. Remove it.
                    if matches!(error, SnapshotError::Write(_) | SnapshotError::Read(_)) {
                        let _ = remove_opened(file, &out);
                    }
                }),
            Err(error) => return Err(Unwritten::at(file)(error).into()),
        }
    };
    match written {
        Ok(summary) => {
            tell!(
                "polyrail: {} files and {} links of {}; no hardware or IP addresses, names, serial \
                 numbers or keys are in it",
                summary.files,
                summary.links,
                if root.is_live() {
                    "this machine".to_owned()
                } else {
                    root.root().display().to_string()
                },
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(SnapshotError::Write(error)) if is_stdout => {
            let _ = to_stdout(Err(error));
            Ok(ExitCode::SUCCESS)
        }
        Err(SnapshotError::Write(error)) => Err(Unwritten::at(file)(error).into()),
        Err(other) => Err(Fault { help: other.help(), ..Fault::environment(other.to_string()) }),
    }
}
