//! Profiles of settings for fast TCP.

use std::path::Path;
use std::process::ExitCode;

use polyrail_report::{Align, Table};
use polyrail_tune::profile::{self, Aim, Profile, Subject};
use polyrail_tune::{Plan, TuneError};

use super::changes;
use super::output::print;
use super::place::Where;
use crate::stdout::fitted;

/// Lists the profiles, or the settings of one profile with their reasons.
pub(super) fn list(profile: Option<&str>) -> Result<ExitCode, TuneError> {
    let Some(name) = profile else {
        let mut table = Table::default().column("profile", Align::Left).column("for", Align::Left);
        for profile in Profile::built_in()? {
            table.row([profile.name, profile.about]);
        }
        return Ok(print(&fitted(&table)));
    };
    let mut table = Table::default()
        .column("setting", Align::Left)
        .column("wanted", Align::Left)
        .column("why", Align::Left)
        .column("source", Align::Left);
    for rule in Profile::named(name)?.rules {
        let subject = match &rule.subject {
            Subject::File(path) => path.clone(),
            Subject::Ethtool(setting) => format!("ethtool {setting}"),
        };
        let field = rule.field.map_or_else(String::new, |field| format!(" [{}]", field + 1));
        let aim = match &rule.aim {
            Aim::AtLeast(least) => format!("at least {least}"),
            Aim::AtMost(most) => format!("at most {most}"),
            Aim::Equals(value) => value.clone(),
            Aim::Maximum => "the maximum".to_owned(),
            Aim::NoCpus => "no CPU".to_owned(),
            Aim::NearQueue => "CPUs of the node".to_owned(),
        };
        table.row([subject + &field, aim, rule.why, rule.source]);
    }
    Ok(print(&fitted(&table)))
}

/// Plans a built-in profile, or a user's own.
pub(super) fn plan(
    name: Option<&str>,
    file: Option<&Path>,
    nics: &[String],
    place: &Where,
) -> Result<Plan, TuneError> {
    let profile = match (file, name) {
        (Some(path), _) => own(path)?,
        (None, name) => Profile::named(name.unwrap_or_default())?,
    };
    profile::plan(&mut place.machine(), &place.topology()?, &profile, nics)
}

/// Reads a user's own profile, which is named like its file.
pub(super) fn own(path: &Path) -> Result<Profile, TuneError> {
    let allowed = "a profile as docs/tune.md describes it";
    let text = changes::read_argument("--profile-file", path, allowed)?;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("own");
    Profile::parse(&text, name, &path.display().to_string())
}
