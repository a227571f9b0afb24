//! Commands with a new name. An old name runs nothing: the error shows the new one.

use std::ffi::OsString;
use std::path::Path;

/// Command words of earlier versions, with the words that replace them. The first match counts.
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
    (&["nccl", "check", LIBRARY], "nccl try"),
    (&["nccl", "check"], "doctor"),
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
    (&["nixl", "check"], "doctor"),
    (&["nixl", "uninstall"], "nixl install --undo"),
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

/// Options of earlier versions: the command, the option, and the words that replace them.
const MOVED_OPTIONS: &[(&str, &str, &str)] = &[
    ("bench", "--block-bytes", "bench --blocks NxSIZE"),
    ("bench", "--channels", "bench --set channels=N"),
    ("bench", "--chunk", "bench --set chunk_bytes=SIZE"),
    ("bench", "--congestion", "bench --set congestion=NAME"),
    ("bench", "--dry-run", "bench --explain-path only"),
    ("bench", "--interval", "top --interval TIME"),
    ("bench", "--no-json", "bench --json none"),
    ("bench", "--proxies", "bench --set proxies=TX,RX"),
    ("bench", "--rx-bindings", "bench --set rx_bindings=BINDINGS"),
    ("bench", "--sockets", "bench --set sockets=N"),
    ("bench", "--tx-bindings", "bench --set tx_bindings=BINDINGS"),
    ("bench", "--window", "bench --set window_chunks=N"),
    ("collective", "--factor", "collective --sizes LIST"),
    ("collective", "--lab-nodes", "collective --lab NODES:RATES"),
    ("collective", "--lab-rails", "collective --lab NODES:RATES"),
    ("collective", "--max-bytes", "collective --sizes LIST"),
    ("collective", "--min-bytes", "collective --sizes LIST"),
    ("config show", "--origin", "config show"),
    ("doctor", "--list", "doctor --explain"),
    ("doctor", "--fix", "host apply fix ID"),
    ("doctor", "--undo", "host undo doctor"),
    ("doctor", "--dry-run", "host apply fix ID --dry-run"),
    ("doctor", "--state-dir", "host apply fix ID --state-dir DIR"),
    ("experiment autotune", "--resume", "experiment autotune --journal FILE"),
    ("experiment sweep", "--resume", "experiment sweep --journal FILE"),
    ("host apply", "--confirm-within", "host apply --allow-disruptive=TIME"),
    ("lab set", "--down", "lab set --link down"),
    ("lab set", "--up", "lab set --link up"),
    ("mesh", "--lab-nodes", "mesh --lab NODES:RATES"),
    ("mesh", "--lab-rails", "mesh --lab NODES:RATES"),
    ("nccl tune", "--bytes", "nccl tune --collective OPTIONS"),
    ("nccl tune", "--operation", "nccl tune --collective OPTIONS"),
    ("nccl tune", "--plugin", "nccl tune --collective OPTIONS"),
    ("nccl tune", "--ranks", "nccl tune --collective OPTIONS"),
    ("peers", "--for", "peers --watch TIME"),
    ("sample", "--force", "sample --out NEWFILE"),
];

/// Matches the name of an existing file.
const FILE: &str = "FILE";
/// Matches any word, as [`LIBRARY`] does.
const ANY: &str = "NIC";
const LIBRARY: &str = "LIBRARY";
/// Matches a name with a value.
const PAIR: &str = "NAME=VALUE";

/// Finds the old words that include the one at `place`, and returns them with the new words.
pub(crate) fn moved(words: &[OsString], place: usize) -> Option<(String, &'static str)> {
    let is = |old: &str, word: &OsString| match old {
        FILE => Path::new(word).is_file(),
        ANY | LIBRARY => true,
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

/// Returns the words that replace an old option of this command. The command's name comes without the program's.
pub(crate) fn moved_option(command: &str, option: &str) -> Option<&'static str> {
    let is_it = |(of, old, _): &&(&str, &str, &str)| *of == command && *old == option;
    MOVED_OPTIONS.iter().find(is_it).map(|(.., now)| *now)
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
            assert_exists(now);
        }
    }

    /// Asserts that the words name a command, its options with values, and the first values of its arguments.
    fn assert_exists(now: &str) {
        let mut command = &crate::command();
        let mut is_value = false;
        for word in now.split(' ') {
            // The value of an option.
            let is_option = word.starts_with("--");
            if std::mem::replace(&mut is_value, is_option) {
                continue;
            }
            let word = word.split('=').next().unwrap_or(word);
            if let Some(option) = word.strip_prefix("--") {
                let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
                assert!(options.any(|long| long == option), "{now}: {word}");
            } else if let Some(below) = command.find_subcommand(word) {
                command = below;
            } else if word.chars().any(char::is_lowercase) {
                // The command has no subcommand of this name. The word is its first argument.
                let first = command.get_positionals().next();
                let values = first.map(clap::Arg::get_possible_values).unwrap_or_default();
                let is_one = values.iter().any(|value| value.get_name() == word);
                assert!(is_one, "{now}: {word}");
            }
        }
    }

    #[test]
    fn an_old_option_is_refused_with_the_new_words_which_exist() {
        for (command, old, now) in MOVED_OPTIONS {
            let words: Vec<OsString> =
                command.split(' ').chain([*old]).map(OsString::from).collect();
            let told = crate::check(&words).unwrap_err();
            let begin = format!("option `{old}`: is `polyrail {now}` now; allowed: what ");
            assert!(told.starts_with(&begin) && told.lines().count() == 2, "{told}");
            assert_exists(now);
        }
    }
}
