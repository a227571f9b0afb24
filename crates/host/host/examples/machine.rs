//! Writes the files of a machine built by code, as an archive for `--sysroot`:
//!
//! ```sh
//! cargo run -p polyrail-host --features fixtures --example machine -- a3-high a3.tar
//! polyrail host show --sysroot a3.tar
//! ```

use std::fs::File;
use std::process::ExitCode;

use polyrail_host::fixtures::{self, Kind};
use polyrail_host::snapshot;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, path] = arguments.as_slice() else {
        eprintln!("usage: machine NAME FILE");
        return ExitCode::from(2);
    };
    let built = fixtures::ALL.iter().find(|(known, _)| known == name).map(|(_, build)| build());
    let of_kind = || fixtures::kinds().iter().find(|kind| kind.name == name).map(Kind::build);
    let Some(fixture) = built.or_else(of_kind) else {
        let mut names: Vec<&str> = fixtures::ALL.iter().map(|(name, _)| *name).collect();
        names.extend(fixtures::kinds().iter().map(|kind| kind.name));
        eprintln!("no machine `{name}`; there are: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let written = File::create(path).map_err(snapshot::SnapshotError::Write).and_then(|file| {
        snapshot::write(&fixture.root(), name, &snapshot::Answers::default(), file)
    });
    match written {
        Ok(summary) => {
            println!("{path}: {} files", summary.files);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}
