//! Kinds of values of a setting: how they are read, checked and written.

use crate::bindings::parse_bindings;
use crate::file_name;
use crate::invalid::Invalid;
use crate::metrics_listen::{self, MetricsListen};
use crate::number::Unit;
use crate::peer_names::parse_names;
use crate::ports;
use crate::proxies;
use crate::rendezvous::{self, Rendezvous};
use crate::signal;
use crate::spin;
use crate::subsystems::{self, SUBSYSTEMS};
use crate::suggest;
use crate::value::{Field, Value};

/// Maximum length of a text in any setting.
const LONGEST_TEXT_BYTES: usize = 4096;

/// Maximum length of a congestion control's name in the kernel.
const LONGEST_CONGESTION_BYTES: usize = 15;

/// Values of one setting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A number of `unit` from `min` to `max`; where `zero` is given, also 0, with that meaning.
    Number {
        unit: Unit,
        min: u64,
        max: u64,
        zero: Option<&'static str>,
    },
    /// One of some names.
    Choice(&'static [&'static str]),
    Flag,
    /// Interfaces, in the grammar of `NCCL_SOCKET_IFNAME`; only the engine can check whether they exist.
    Interfaces,
    /// CPUs per interface.
    Bindings,
    /// Names on certificates.
    PeerNames,
    Congestion,
    /// Ports to listen on.
    Ports,
    /// Numbers of progress threads.
    Proxies,
    Signal,
    /// Time that threads poll before they sleep.
    Spin,
    Subsystems,
    /// A file name with marks; holds the meaning of the empty name.
    FileName(&'static str),
    /// Address where metrics are served.
    MetricsListen,
    /// Rendezvous of engines.
    Rendezvous,
}

impl Kind {
    pub(crate) const fn count(label: &'static str, min: u64, max: u64) -> Self {
        Self::Number { unit: Unit::Count(label), min, max, zero: None }
    }

    pub(crate) const fn bytes(min: u64, max: u64) -> Self {
        Self::Number { unit: Unit::Bytes, min, max, zero: None }
    }

    pub(crate) const fn millis(min: u64, max: u64) -> Self {
        Self::Number { unit: Unit::Millis, min, max, zero: None }
    }

    /// Also takes 0, which means `meaning`; only for numbers.
    pub(crate) const fn or_zero(self, meaning: &'static str) -> Self {
        match self {
            Self::Number { unit, min, max, .. } => {
                Self::Number { unit, min, max, zero: Some(meaning) }
            }
            other => other,
        }
    }

    /// Reads and checks a text.
    pub(crate) fn parse(self, text: &str) -> Result<Value, Invalid> {
        check_text(text)?;
        let text = text.trim();
        match self {
            Self::Number { unit, min, max, zero } => {
                let number = unit.parse(text)?;
                let is_in_range = (min..=max).contains(&number) || (number == 0 && zero.is_some());
                if is_in_range {
                    Ok(Value::Number(number))
                } else {
                    Err(Invalid::because("is out of range"))
                }
            }
            Self::Choice(names) => choice(text, names),
            Self::Flag => flag(text),
            Self::Interfaces => {
                if text.is_empty() {
                    return Err(Invalid::because("is empty").help("write `auto` for all rails"));
                }
                Ok(Value::Text(text.to_owned()))
            }
            Self::Bindings => match parse_bindings(text) {
                Ok(_) => Ok(Value::Text(text.to_owned())),
                Err(error) => Err(Invalid { reason: error.to_string(), help: error.help() }),
            },
            Self::PeerNames => match parse_names(text) {
                Ok(_) => Ok(Value::Text(text.to_owned())),
                Err(error) => Err(Invalid::because(error.to_string()).help(error.help())),
            },
            Self::Congestion => congestion(text),
            Self::Ports => ports::parse(text).map(|ports| ports.value()),
            Self::Proxies => proxies::parse(text).map(|proxies| proxies.value()),
            Self::Signal => signal::parse(text).map(Value::Number),
            Self::Spin => spin::parse(text).map(|spin| spin.value()),
            Self::Subsystems => {
                subsystems::parse(text).map(|subsystems| Value::Text(subsystems.to_string()))
            }
            Self::FileName(_) => {
                file_name::check(text)?;
                Ok(Value::Text(text.to_owned()))
            }
            Self::MetricsListen => {
                MetricsListen::parse(text)?;
                Ok(Value::Text(text.to_owned()))
            }
            Self::Rendezvous => {
                Rendezvous::parse(text)?;
                Ok(Value::Text(text.to_owned()))
            }
        }
    }

    /// Returns the allowed number nearest to the one of a text; `None` if either is not a number.
    pub(crate) fn nearest(self, text: &str) -> Option<Value> {
        let Self::Number { min, max, .. } = self else { return None };
        let number: i128 = text.trim().parse().ok()?;
        Some(Value::Number(number.clamp(min.into(), max.into()) as u64))
    }

    /// Writes a value so that [`Kind::parse`] reads it back.
    pub(crate) fn show(self, value: &Value) -> String {
        match (self, value) {
            (Self::Number { unit, .. }, &Value::Number(number)) => unit.show(number),
            (Self::Signal, &Value::Number(number)) => signal::show(number),
            (_, value) => value.to_string(),
        }
    }

    /// Returns the meaning of a value that switches something off, or leaves it to others; empty for the rest.
    pub(crate) fn meaning(self, value: &Value) -> &'static str {
        match (self, value) {
            (Self::Number { zero: Some(meaning), .. }, Value::Number(0)) => meaning,
            (Self::Ports, Value::Number(0)) => ports::CHOSEN,
            (Self::Proxies, Value::Number(0)) => proxies::AUTOMATIC,
            (Self::Signal, Value::Number(0)) => "off",
            (Self::Bindings, Value::Text(text)) if text.is_empty() => "not pinned",
            (Self::PeerNames, Value::Text(text)) if text.is_empty() => "none",
            (Self::FileName(meaning), Value::Text(text)) if text.is_empty() => meaning,
            (Self::MetricsListen, Value::Text(text)) if text.is_empty() => "polyrail top alone",
            (Self::Rendezvous, Value::Text(text)) if text.is_empty() => "none",
            _ => "",
        }
    }

    /// Returns the unit of the number, or nothing.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Number { unit, .. } => unit.label(),
            Self::Proxies => "threads",
            _ => "",
        }
    }

    /// Returns all values, as text.
    pub(crate) fn range(self) -> String {
        match self {
            Self::Number { unit, min, max, zero } => {
                let range = format!("{} to {}", unit.show(min), unit.show(max));
                let label = match unit {
                    Unit::Millis | Unit::Micros => format!(" {}", unit.label()),
                    // Sizes print their unit, and the name of a count shows what it counts.
                    Unit::Bytes | Unit::Count(_) => String::new(),
                };
                match zero {
                    Some(meaning) => format!("0 ({meaning}), or {range}{label}"),
                    None => format!("{range}{label}"),
                }
            }
            Self::Choice(names) => names.join(", "),
            Self::Flag => "true, false".to_owned(),
            Self::Interfaces => "auto, a list of names, prefixes or addresses like eth1,eth2, the same behind = (exact names) \
                                 or ? (those that are there), ^ and a list (auto without these), or plugin:LIBRARY"
                .to_owned(),
            Self::Bindings => "empty (not pinned), CPUs like 8-21, CPUs per interface like eth1:8-21,112-125;eth2:22-35, or \
                               both like eth1:8-21;22-35"
                .to_owned(),
            Self::PeerNames => {
                "empty (none), or a list of DNS names, `*.example.org`, SPIFFE IDs, \
                                `spiffe://example.org/path/*`; `*` is any name"
                    .to_owned()
            }
            Self::Congestion => "auto, system, or a name the kernel knows".to_owned(),
            Self::Ports => ports::forms(),
            Self::Proxies => proxies::forms(),
            Self::Signal => format!(
                "0 (off), or a signal 1 to {} or its name; not {}",
                signal::LAST_SIGNAL,
                "KILL, STOP, SEGV, BUS, FPE, ILL"
            ),
            Self::Spin => spin::FORMS.to_owned(),
            Self::Subsystems => {
                format!("all, or a list of {}; with ^ in front all others", SUBSYSTEMS.join(", "))
            }
            Self::FileName(empty) => {
                format!("empty ({empty}), or a file name; %h host, %p process")
            }
            Self::MetricsListen => metrics_listen::FORMS.to_owned(),
            Self::Rendezvous => rendezvous::FORMS.to_owned(),
        }
    }
}

/// Refuses texts that no setting takes, before any other check.
fn check_text(text: &str) -> Result<(), Invalid> {
    if text.len() > LONGEST_TEXT_BYTES {
        let reason = format!("is longer than {LONGEST_TEXT_BYTES} bytes");
        return Err(Invalid::because(reason));
    }
    if text.contains(polyrail_yaml::steers) {
        return Err(Invalid::because(
            "has a control character, a line break or a mark of writing direction in it",
        ));
    }
    Ok(())
}

fn choice(text: &str, names: &[&'static str]) -> Result<Value, Invalid> {
    if names.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let invalid = Invalid::because("is not one of the choices");
    Err(match suggest::closest(text, names.iter().copied()) {
        Some(near) => invalid.help(format!("did you mean `{near}`?")),
        None => invalid,
    })
}

fn flag(text: &str) -> Result<Value, Invalid> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(Value::Flag(true)),
        "false" | "off" | "no" | "0" => Ok(Value::Flag(false)),
        _ => Err(Invalid::because("is neither true nor false")
            .help("on, yes and 1 mean true; off, no and 0 mean false")),
    }
}

fn congestion(text: &str) -> Result<Value, Invalid> {
    let is_name = !text.is_empty()
        && text.len() <= LONGEST_CONGESTION_BYTES
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if !is_name {
        return Err(Invalid::because("is not a name of a congestion control").help(
            "the names this machine knows are in /proc/sys/net/ipv4/tcp_available_congestion_control",
        ));
    }
    Ok(Value::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_the_range_is_refused_but_zero_with_a_meaning_is_not() {
        let kind = Kind::bytes(4096, 1 << 30).or_zero("kernel autotuning");
        assert_eq!(kind.parse("0"), Ok(Value::Number(0)));
        assert_eq!(kind.parse("4KiB"), Ok(Value::Number(4096)));
        assert_eq!(kind.parse("4095").unwrap_err().reason, "is out of range");
        assert_eq!(kind.parse("1025MiB").unwrap_err().reason, "is out of range");
        assert_eq!(kind.range(), "0 (kernel autotuning), or 4KiB to 1GiB");
        assert_eq!(Kind::millis(1, 9).parse("0").unwrap_err().reason, "is out of range");
    }

    #[test]
    fn flags_read_in_the_usual_spellings_only() {
        assert_eq!(Kind::Flag.parse("yes"), Ok(Value::Flag(true)));
        assert_eq!(Kind::Flag.parse("0"), Ok(Value::Flag(false)));
        assert_eq!(Kind::Flag.parse("2").unwrap_err().reason, "is neither true nor false");
    }

    #[test]
    fn a_congestion_control_the_kernel_could_not_take_is_refused() {
        assert!(Kind::Congestion.parse("bbr2").is_ok());
        for text in ["", "a b", "../cubic", "sixteen_letters_"] {
            assert!(Kind::Congestion.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn long_texts_and_control_characters_are_refused_everywhere() {
        let long = "x".repeat(LONGEST_TEXT_BYTES + 1);
        for kind in
            [Kind::Interfaces, Kind::Bindings, Kind::PeerNames, Kind::FileName("off"), Kind::Flag]
        {
            assert_eq!(kind.parse(&long).unwrap_err().reason, "is longer than 4096 bytes");
            let reason = kind.parse("a\nb").unwrap_err().reason;
            assert_eq!(
                reason,
                "has a control character, a line break or a mark of writing direction in it"
            );
        }
    }

    #[test]
    fn a_wrong_choice_suggests_the_nearest() {
        let error = Kind::Choice(&["proxy", "caller"]).parse("caler").unwrap_err();
        assert_eq!(error.help.as_deref(), Some("did you mean `caller`?"));
    }
}
