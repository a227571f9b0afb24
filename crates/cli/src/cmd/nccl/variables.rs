//! The variables by which NCCL, RCCL and the plugin are tuned, in one table. `nccl variables` prints it, `nccl tune`
//! checks its input with it, and docs/nccl-variables.md is generated from it.

mod table;

use std::fmt::Write as _;

use polyrail_config::{Config, steers};
use polyrail_report::{Align, Table};

pub(super) use self::table::TABLE;
use crate::stdout::fitted;
use crate::values::Refusal;

/// A variable of NCCL or RCCL.
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// Topic of the variable.
    pub(super) group: &'static str,
    /// First release of NCCL that has it; empty if only RCCL has it.
    pub(super) since: &'static str,
    /// Last release that has it; empty if the newest has it.
    pub(super) until: &'static str,
    /// Whether RCCL of ROCm 6.2 has it.
    pub(super) in_rccl: bool,
    pub(super) default: &'static str,
    pub(super) values: Values,
    pub(super) what: &'static str,
    /// Measured effect; empty if it was not measured.
    pub(super) measured: &'static str,
}

/// Values that a variable takes.
pub(super) enum Values {
    /// A whole number in this range.
    Whole(i64, i64),
    Words(&'static [&'static str]),
    /// Any text; this describes it.
    Text(&'static str),
}

const PREFIX_OF_OURS: &str = "POLYRAIL_";
/// Releases whose sources the table was read from.
const NEWEST_NCCL: &str = "2.30.7";
const RCCL: &str = "ROCm 6.2.2";

impl Values {
    fn text(&self) -> String {
        match self {
            Self::Whole(least, most) => format!("{least} to {most}"),
            Self::Words(words) => words.join(", "),
            Self::Text(text) => (*text).to_owned(),
        }
    }

    fn holds(&self, value: &str) -> bool {
        match self {
            Self::Whole(least, most) => {
                value.parse::<i64>().is_ok_and(|value| (*least..=*most).contains(&value))
            }
            Self::Words(words) => words.iter().any(|word| word.eq_ignore_ascii_case(value)),
            Self::Text(_) => !value.is_empty() && !value.contains(steers),
        }
    }
}

impl Variable {
    fn versions(&self) -> String {
        match (self.since, self.until) {
            ("", _) => "none".to_owned(),
            (since, "") => format!("from {since}"),
            (since, until) => format!("{since} to {until}"),
        }
    }

    fn measured(&self) -> &'static str {
        if self.measured.is_empty() { "not measured" } else { self.measured }
    }
}

/// Checks the value of a variable that a user wants to try.
pub(super) fn check(name: &str, value: &str) -> Result<(), Refusal> {
    if let Some(setting) = name.strip_prefix(PREFIX_OF_OURS) {
        Config::builder().set(&setting.to_lowercase(), value)?;
        return Ok(());
    }
    let Some(variable) = TABLE.iter().find(|variable| variable.name == name) else {
        let near = closest(name);
        let refusal = Refusal::new(
            "is no variable that is known here",
            "a variable of NCCL, of RCCL, or POLYRAIL_ with the name of a setting",
        );
        let help = match near {
            Some(near) => format!("did you mean {near}? `polyrail nccl variables` lists all"),
            None => "`polyrail nccl variables` lists all".to_owned(),
        };
        return Err(refusal.showing(name).with_help(help));
    };
    match variable.values.holds(value) {
        true => Ok(()),
        false => Err(Refusal::new(format!("is no value of {name}"), variable.values.text())
            .showing(value)
            .with_help(format!("its default is {}", variable.default))),
    }
}

/// Whether the plugin reads the variable itself.
pub(super) fn is_read_by_plugin(name: &str) -> bool {
    name.starts_with(PREFIX_OF_OURS) || READ_BY_PLUGIN.contains(&name)
}

/// Variables of NCCL that are another name of a setting, and change how fast the plugin is.
const READ_BY_PLUGIN: [&str; 6] = [
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_PROGRESS_APPENDOP_FREQ",
    "NCCL_PROXY_APPEND_BATCH_SIZE",
];

/// Name in the table with the longest common prefix, if it is too long to be chance.
fn closest(name: &str) -> Option<&'static str> {
    const LEAST: usize = 8;
    let upper = name.to_uppercase();
    let shared = |known: &str| known.bytes().zip(upper.bytes()).take_while(|(a, b)| a == b).count();
    let best = TABLE.iter().map(|variable| variable.name).max_by_key(|known| shared(known))?;
    (shared(best) >= LEAST).then_some(best)
}

pub(super) fn text() -> String {
    let mut table = Table::default();
    for heading in ["variable", "NCCL", "RCCL", "default", "values"] {
        table = table.column(heading, Align::Left);
    }
    for one in TABLE {
        let in_rccl = if one.in_rccl { "yes" } else { "no" };
        table.row([
            one.name.to_owned(),
            one.versions(),
            in_rccl.to_owned(),
            one.default.to_owned(),
            one.values.text(),
        ]);
    }
    format!(
        "{}\ndocs/nccl-variables.md says what each one does, and what was measured\n",
        fitted(&table)
    )
}

pub(super) fn markdown() -> String {
    let mut page = format!(
        "# Variables of NCCL and RCCL\n\n<!-- Written by `polyrail nccl variables --markdown`; a test compares. -->\n\n\
         The variables of the environment that decide how fast NCCL and RCCL are, as far as a network, its proxies, buffers, channels \
         and protocols are concerned. Names, versions and defaults are those of the sources: of each release of NCCL from 2.3.5 to \
         {NEWEST_NCCL}, and of RCCL of {RCCL}. A default of -2 means that NCCL chooses. `polyrail nccl tune` \
         ([NCCL and RCCL over Polyrail](nccl.md#tune-it)) tries values of any of them on your own job.\n\n\
         What was measured is with Polyrail's plugin unless it says otherwise; commands and spreads are in [NCCL and RCCL over \
         Polyrail](nccl.md#figures). Polyrail's own settings are in [Configuration](config.md); as a variable each is `POLYRAIL_` with its name in capitals.\n",
    );
    let mut group = "";
    for one in TABLE {
        if one.group != group {
            group = one.group;
            // Writing to a string can't fail.
            let _ = write!(
                page,
                "\n## {group}\n\n| variable | NCCL | RCCL | default | values | what it does | measured |\n|---|---|---|---|---|---|---|\n"
            );
        }
        let in_rccl = if one.in_rccl { "yes" } else { "no" };
        let _ = writeln!(
            page,
            "| `{}` | {} | {in_rccl} | {} | {} | {} | {} |",
            one.name,
            one.versions(),
            one.default,
            one.values.text(),
            one.what,
            one.measured()
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_is_the_one_that_the_table_makes() {
        let committed = include_str!("../../../../../docs/nccl-variables.md");
        assert!(
            committed == markdown(),
            "run: cargo run -- nccl variables --markdown > docs/nccl-variables.md"
        );
    }

    #[test]
    fn each_variable_is_there_once_and_whole() {
        let names: BTreeSet<_> = TABLE.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for one in TABLE {
            let texts = [one.default, one.what, &one.values.text(), one.group];
            assert!(
                texts.iter().all(|text| !text.is_empty() && !text.contains('|')),
                "{}",
                one.name
            );
            assert!(one.in_rccl || !one.since.is_empty(), "{}: nobody has it", one.name);
            assert_eq!(one.name.starts_with("RCCL_"), one.since.is_empty(), "{}", one.name);
        }
    }

    #[test]
    fn every_name_of_nccl_and_rccl_that_the_settings_know_is_in_it() {
        let page = polyrail_config::markdown();
        let is_part = |one: char| one.is_ascii_uppercase() || one.is_ascii_digit() || one == '_';
        let names = page.split(|one: char| !is_part(one)).filter(|name| {
            (name.starts_with("NCCL_") || name.starts_with("RCCL_")) && !name.contains("TCPX")
        });
        let names: BTreeSet<_> = names.filter(|name| name.len() > "NCCL_".len()).collect();
        for name in READ_BY_PLUGIN {
            assert!(page.contains(&format!("Also read: `{name}`")), "{name}");
        }
        assert!(names.len() > READ_BY_PLUGIN.len());
        for name in names {
            assert!(TABLE.iter().any(|one| one.name == name), "{name}");
        }
    }

    #[test]
    fn an_unknown_variable_and_a_wrong_value_are_named_with_what_is_allowed() {
        assert!(check("NCCL_BUFFSIZE", "8388608").is_ok());
        assert!(check("NCCL_PROTO", "simple").is_ok());
        assert!(check("POLYRAIL_CHUNK_BYTES", "1MiB").is_ok());
        let unknown = check("NCCL_BUFFERSIZE", "1").unwrap_err();
        assert!(unknown.help().unwrap().contains("NCCL_BUFFSIZE"), "{unknown:?}");
        for (name, value) in
            [("NCCL_BUFFSIZE", "8MiB"), ("NCCL_MIN_NCHANNELS", "0"), ("POLYRAIL_CHUNK_BYTES", "x")]
        {
            assert!(check(name, value).is_err(), "{name}={value}");
        }
    }
}
