//! Documentation generated from the table: the page of all settings and the text on one.

use std::fmt::Write;

use crate::SUBSYSTEMS;
use crate::alias::WITHOUT_COUNTERPART;
use crate::choices::Preset;
use crate::conflict::RULES;
use crate::error::ConfigError;
use crate::preset;
use crate::renamed::RENAMED;
use crate::table::{Settings, Spec, TABLE, index_of, names};

/// Returns the page `docs/config.md`.
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    presets(&mut page);
    page.push_str("\n## Settings\n");
    let mut group = "";
    for spec in TABLE {
        if spec.group != group {
            group = spec.group;
            let _ = write!(page, "\n### {group}\n");
        }
        setting(&mut page, spec);
    }
    conflicts(&mut page);
    other_tools(&mut page);
    earlier_versions(&mut page);
    page
}

/// Returns the text on one setting, for a terminal.
///
/// # Errors
/// [`ConfigError::Unknown`] for an unknown name, with the nearest known one, and
/// [`ConfigError::Renamed`] for a setting of an earlier version.
pub fn help(name: &str) -> Result<String, ConfigError> {
    let Some(index) = index_of(name) else {
        return Err(ConfigError::no_setting(name, None, names()));
    };
    let spec = &TABLE[index];
    let mut text = format!("{}: {}\n\n", spec.name, spec.help());
    for (label, value) in facts(spec) {
        let _ = writeln!(text, "  {label:<12} {value}");
    }
    for rule in RULES.iter().filter(|rule| rule.names.contains(&name)) {
        let _ = writeln!(text, "  {:<12} when {}: {}", "conflict", rule.when, rule.why);
    }
    Ok(text)
}

fn facts(spec: &Spec) -> Vec<(&'static str, String)> {
    let mut facts = vec![("default", default(spec))];
    facts.push(("allowed", spec.kind.range()));
    if !spec.kind.unit().is_empty() {
        facts.push(("unit", spec.kind.unit().to_owned()));
    }
    for &preset in Preset::ALL {
        for value in preset::values(preset).iter().filter(|value| value.name == spec.name) {
            facts.push(("preset", format!("{preset}: {} ({})", value.value, value.because)));
        }
    }
    facts.push(("environment", spec.env_name()));
    for alias in spec.aliases {
        let note = if alias.note.is_empty() { String::new() } else { format!(" ({})", alias.note) };
        facts.push(("also read", format!("{}{note}", alias.env)));
    }
    facts.push(("file", format!("{}: {}", spec.name, quoted(&default(spec)))));
    facts.push(("command line", format!("--set {}={}", spec.name, default(spec))));
    facts
}

const INTRODUCTION: &str = "\
# Settings

<!-- Written by `polyrail config docs`; a test compares. Change the table in crates/engine/config instead. -->

Every setting has one name, the same everywhere. You can give a value in any of these layers; a
later one overrides an earlier one:

1. the default;
2. a preset;
3. a YAML file: the one that `POLYRAIL_CONFIG` names, else `~/.config/polyrail/config.yml`, else
   `/etc/polyrail/config.yml`; on top of it `--config FILE`;
4. environment names of NCCL, RCCL and UCCL that mean the same;
5. the environment: `POLYRAIL_` and the name in capitals, like `POLYRAIL_CHUNK_BYTES=1MiB`;
6. the command line, `--set chunk_bytes=1MiB`, and what a program sets itself.

Any layer from the file on may name the preset. Its values still yield to every explicit value.
`polyrail config show` prints the effective values and where each came from;
`polyrail config help NAME` explains one.

An unknown name, a value out of range, or two values that contradict each other are errors, and then
nothing takes effect. An unknown `POLYRAIL_` variable is an error, too, unless it has the form of a service
link, which Kubernetes sets in every pod for a Service whose name begins with polyrail
(`POLYRAIL_PORT=tcp://10.96.0.7:9754`). Variables of other tools are read as those tools read them: a
number out of range becomes the nearest one, and a value that the tool ignores is ignored, each with a
warning.

## Values

- Sizes: a number of bytes, or with a unit: `B`; `KiB`, `MiB`, `GiB` (powers of 1024); `kB`, `MB`,
  `GB` (powers of 1000). A bare `K`, `M` or `G` is refused.
- Times: a number in the unit that the name ends in, or with a unit: `us`, `ms`, `s`, `min`, `h`.
- Flags: `true`, `on`, `yes`, `1`; `false`, `off`, `no`, `0`.
- CPUs: as the kernel lists them, `8-21,112-125`.
- File names: `%h` becomes the host's name, `%p` the process number, `%%` a per cent sign.

## File

One `name: value` per line, all with the same indentation, or all of them below `polyrail:`. No lists,
no anchors, no name twice; at most 1 MiB. Quote a text that starts with a special character.

```yaml
preset: throughput
rails: eth1,eth2,eth3,eth4
chunk_bytes: 2MiB
log_file: \"/var/log/polyrail.%h.%p.log\"
```
";

fn presets(page: &mut String) {
    page.push_str("\n## Presets\n");
    for &preset in Preset::ALL {
        let values = preset::values(preset);
        if values.is_empty() {
            let _ = write!(page, "\n`{preset}` is the defaults.\n");
            continue;
        }
        let _ = write!(page, "\n`{preset}`:\n\n| Setting | Value | Why |\n|---|---|---|\n");
        for value in values {
            let _ = writeln!(page, "| `{}` | `{}` | {} |", value.name, value.value, value.because);
        }
    }
}

fn setting(page: &mut String, spec: &Spec) {
    let _ = write!(page, "\n#### `{}`\n\n{}\n\n", spec.name, spec.help());
    let _ = writeln!(page, "- Default: {}", code_or(&default(spec), "empty"));
    let _ = writeln!(page, "- Allowed: {}", spec.kind.range());
    let _ = writeln!(page, "- Environment: `{}`", spec.env_name());
    for alias in spec.aliases {
        let note = if alias.note.is_empty() { String::new() } else { format!(" ({})", alias.note) };
        let _ = writeln!(page, "- Also read: `{}`{note}", alias.env);
    }
}

fn conflicts(page: &mut String) {
    page.push_str("\n## Values that don't go together\n\n| When | Why not |\n|---|---|\n");
    for rule in RULES {
        let _ = writeln!(page, "| {} | {} |", rule.when, rule.why);
    }
}

fn other_tools(page: &mut String) {
    page.push_str(
        "\n## Environment names of other tools\n\n\
         Polyrail's own name wins over these, with a warning where the two differ. An empty variable\n\
         is ignored, and so is a value that conflicts with another setting. Numbers of NCCL are numbers\n\
         of C: `0x10` is 16 and `010` is 8.\n\n\
         | Name | Setting | What differs |\n|---|---|---|\n",
    );
    let of_setting = |spec: &'static Spec| spec.aliases.iter().map(move |alias| (alias, spec.name));
    let mut rows: Vec<_> = TABLE.iter().flat_map(of_setting).collect();
    rows.sort_unstable_by_key(|(alias, _)| alias.env);
    for (alias, setting) in rows {
        let _ = writeln!(page, "| `{}` | `{setting}` | {} |", alias.env, alias.note);
    }
    let _ = write!(
        page,
        "\nThe subsystems of the log are {}.\n\n\
         These names are read and have no counterpart yet; each gives a warning where it is set:\n\n\
         | Name | Why |\n|---|---|\n",
        SUBSYSTEMS.join(", "),
    );
    for (env, why) in WITHOUT_COUNTERPART {
        let _ = writeln!(page, "| `{env}` | {why} |");
    }
}

fn earlier_versions(page: &mut String) {
    page.push_str(
        "\n## Names of earlier versions\n\n\
         These names are refused, wherever they are given:\n\n\
         | Name | Instead |\n|---|---|\n",
    );
    for (name, now) in RENAMED {
        let _ = writeln!(page, "| `{name}` | {now} |");
    }
}

fn default(spec: &Spec) -> String {
    spec.kind.show(&spec.value(&Settings::default()))
}

fn code_or(text: &str, instead: &str) -> String {
    if text.is_empty() { instead.to_owned() } else { format!("`{text}`") }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { "\"\"".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn the_page_has_every_setting_alias_and_rule() {
        let page = markdown();
        for spec in TABLE {
            assert!(page.contains(&format!("#### `{}`", spec.name)), "{}", spec.name);
            assert!(page.contains(&spec.env_name()));
            assert!(spec.aliases.iter().all(|alias| page.contains(alias.env)));
        }
        assert!(RULES.iter().all(|rule| page.contains(rule.when)));
    }

    #[test]
    fn the_committed_page_is_the_written_one() {
        let committed = include_str!("../../../../docs/config.md");
        assert!(committed == markdown(), "run: cargo run -- config docs > docs/config.md");
    }

    #[test]
    fn the_example_of_the_page_is_valid() {
        let example = INTRODUCTION.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let config = Config::builder().yaml(example, "example").unwrap().build().unwrap();
        assert_eq!(config.chunk_bytes, 2 << 20);
    }

    #[test]
    fn help_on_one_setting_has_its_facts_and_conflicts() {
        let text = help("rail_stall_ms").unwrap();
        for part in ["400", "20 to 600000 ms", "POLYRAIL_RAIL_STALL_MS", "peer_timeout_ms"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(help("sockets").unwrap().contains("NCCL_NSOCKS_PERTHREAD"));
        assert!(help("chunk_bytes").unwrap().contains("preset       latency: 256KiB"));
        let error = help("chunk_byte").unwrap_err();
        assert_eq!(error.help().as_deref(), Some("did you mean `chunk_bytes`?"));
        assert!(matches!(help("listen_ports"), Err(ConfigError::Renamed { .. })));
    }
}
