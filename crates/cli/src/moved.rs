//! Commands with a new name. An old name runs nothing: the error shows the new one.

use std::ffi::OsString;
use std::path::Path;

/// Words of commands in earlier versions, with those of today. The first match counts.
const MOVED: &[(&[&str], &str)] = &[
    (&["autotune"], "experiment autotune"),
    (&["bindings", "suggest"], "host plan bindings"),
    (&["bindings"], "host show bindings"),
    (&["completions"], "shell completions"),
    (&["experiment", FILE], "experiment run"),
    (&["irq", "apply", FILE], "host apply"),
    (&["irq", "apply"], "host apply irq"),
    (&["irq", "plan"], "host plan irq"),
    (&["irq", "reset"], "host undo irq"),
    (&["irq", "verify", FILE], "host verify"),
    (&["irq", "verify"], "host verify irq"),
    (&["irq", "watch", FILE], "host watch"),
    (&["irq", "watch"], "host watch irq"),
    (&["irq"], "host show irq"),
    (&["man"], "shell man"),
    (&["nic", "reset"], "host undo nic"),
    (&["nic", "stats"], "host show counters"),
    (&["nic", "channels", ANY, PAIR], "host apply channels"),
    (&["nic", "channels"], "host show channels"),
    (&["nic", "rings", ANY, PAIR], "host apply rings"),
    (&["nic", "rings"], "host show rings"),
    (&["nic", "coalesce", ANY, PAIR], "host apply coalesce"),
    (&["nic", "coalesce"], "host show coalesce"),
    (&["nic", "rss", ANY, PAIR], "host apply rss"),
    (&["nic", "rss"], "host show rss"),
    (&["nic"], "host show"),
    (&["sweep"], "experiment sweep"),
    (&["topo", "--matrix"], "host show matrix"),
    (&["topo", "--nccl-xml"], "host show nccl-xml"),
    (&["topo", "--tree"], "host show tree"),
    (&["topo", "snapshot"], "host snapshot"),
    (&["topo"], "host show"),
    (&["tune", "apply", "--plan"], "host apply"),
    (&["tune", "apply"], "host apply tune"),
    (&["tune", "confirm"], "host confirm"),
    (&["tune", "plan"], "host plan tune"),
    (&["tune", "reset"], "host undo tune"),
    (&["tune", "verify"], "host verify tune"),
    (&["tune"], "host show profiles"),
];

/// Matches the name of an existing file.
const FILE: &str = "FILE";
const ANY: &str = "NIC";
/// Matches a name with a value.
const PAIR: &str = "NAME=VALUE";

/// Finds the old words that include the one at `place`. Returns them with the new words.
pub(crate) fn moved(words: &[OsString], place: usize) -> Option<(String, &'static str)> {
    let is = |old: &str, word: &OsString| match old {
        FILE => Path::new(word).is_file(),
        ANY => true,
        PAIR => word.to_string_lossy().contains('='),
        _ => word == old,
    };
    let fits = |old: &[&str], words: &[OsString]| {
        old.len() <= words.len() && old.iter().zip(words).all(|(old, word)| is(old, word))
    };
    // Old names match only at the top level.
    let has_place = |old: &[&str]| old.len() > place && fits(old, words);
    let (old, now) = MOVED.iter().find(|(old, _)| has_place(old))?;
    Some((old.join(" "), now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_below_another_command_is_any_word() {
        let words = ["lab", "sweep"].map(OsString::from);
        let told = crate::check(&words).unwrap_err();
        assert!(told.starts_with("command `sweep`: does not exist"), "{told}");
    }

    #[test]
    fn an_old_name_is_refused_with_the_new_one_which_exists() {
        for (old, now) in MOVED {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
            let typed = old.iter().map(|word| if *word == FILE { file } else { *word });
            let words: Vec<OsString> = typed.map(OsString::from).collect();
            let told = crate::check(&words).unwrap_err();
            let begin = format!("command `{}`: is `polyrail {now}` now; allowed: ", old.join(" "));
            let help = format!("\nhelp: for more, try 'polyrail {now} --help'");
            assert!(told.starts_with(&begin) && told.ends_with(&help), "{told}");
            let mut command = &crate::command();
            for word in now.split(' ') {
                match command.find_subcommand(word) {
                    Some(below) => command = below,
                    // The command has none below it. The word is its first argument.
                    None => {
                        let first = command.get_positionals().next();
                        let values = first.map(clap::Arg::get_possible_values).unwrap_or_default();
                        let is_one = values.iter().any(|value| value.get_name() == word);
                        assert!(is_one, "{now}: {word}");
                    }
                }
            }
        }
    }
}
