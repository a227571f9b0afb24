//! Environment names of NCCL, RCCL and UCCL, and what they mean here.

use polyrail_yaml::excerpt;

use crate::kind::Invalid;
use crate::subsystems::SUBSYSTEMS;

/// An environment name of another tool for a setting.
#[derive(Clone, Copy)]
pub(crate) struct Alias {
    pub(crate) env: &'static str,
    /// Turns the other tool's value into the setting's.
    pub(crate) translate: fn(&str) -> Result<Translated, Refused>,
    /// What differs from the setting, for the documentation; empty when nothing does.
    pub(crate) note: &'static str,
}

/// What a value of another tool means here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    /// The text for the setting; `None` leaves it as it is.
    pub(crate) value: Option<String>,
    /// What the user should know: phrases that follow the variable's name and value.
    pub(crate) warnings: Vec<String>,
}

/// A value that the other tool does not know either.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) invalid: Invalid,
    pub(crate) allowed: &'static str,
}

/// Names that Polyrail reads only to say why they have no effect.
pub(crate) const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    (
        "NCCL_BUFFSIZE",
        "there is no buffer per channel; chunk_bytes and window_chunks bound what is in flight",
    ),
    ("NCCL_GPUDIRECTTCPX_TX_IRQ_BINDINGS", "the engine does not move interrupts"),
    ("NCCL_GPUDIRECTTCPX_RX_IRQ_BINDINGS", "the engine does not move interrupts"),
    ("NCCL_SHM_LOCALITY", "host memory has no shared-memory transport"),
    ("NCCL_SHM_MEMCPY_MODE", "host memory has no shared-memory transport"),
    ("NCCL_NET_SHARED_BUFFERS", "data lands in place, so there are no buffers to share"),
    ("NCCL_NET_GDR_LEVEL", "there is no transport from GPU memory straight to the network"),
    (
        "NCCL_IGNORE_CPU_AFFINITY",
        "Polyrail never changes the program's affinity; the tx and rx settings pin the proxies",
    ),
];

/// Whether a variable is read at all, as an alias or only to say that it has no effect.
pub(crate) fn is_known(env: &str) -> bool {
    let is_alias =
        || crate::table::TABLE.iter().any(|spec| spec.aliases.iter().any(|alias| alias.env == env));
    WITHOUT_COUNTERPART.iter().any(|(known, _)| *known == env) || is_alias()
}

/// The same setting under another name.
pub(crate) const fn same(env: &'static str) -> Alias {
    Alias { env, translate: unchanged, note: "" }
}

/// A setting whose values need translation, or a note.
pub(crate) const fn via(
    env: &'static str,
    translate: fn(&str) -> Result<Translated, Refused>,
    note: &'static str,
) -> Alias {
    Alias { env, translate, note }
}

pub(crate) fn unchanged(text: &str) -> Result<Translated, Refused> {
    Ok(becomes(text))
}

/// NCCL writes -2 for "decide yourself".
pub(crate) fn nccl_count(text: &str) -> Result<Translated, Refused> {
    if text.trim() == "-2" {
        return Ok(Translated {
            value: None,
            warnings: vec!["asks for the automatic choice, so nothing changes".to_owned()],
        });
    }
    unchanged(text)
}

/// NCCL writes -1 for "no signal".
pub(crate) fn nccl_dump_signal(text: &str) -> Result<Translated, Refused> {
    unchanged(if text.trim() == "-1" { "0" } else { text })
}

pub(crate) fn rccl_proxy_trace(text: &str) -> Result<Translated, Refused> {
    match text.trim() {
        "1" => Ok(becomes("polyrail-trace-%h-%p.json")),
        "0" => Ok(becomes("")),
        _ => Err(Refused { invalid: Invalid::because("is neither 0 nor 1"), allowed: "0, 1" }),
    }
}

pub(crate) fn nccl_debug(text: &str) -> Result<Translated, Refused> {
    let level = match text.trim().to_ascii_uppercase().as_str() {
        "VERSION" => "error",
        "WARN" => "warn",
        "INFO" => "info",
        "ABORT" => {
            return Ok(Translated {
                warnings: vec!["is read as INFO; Polyrail never aborts the program".to_owned()],
                ..becomes("info")
            });
        }
        "TRACE" => "trace",
        _ => {
            return Err(Refused {
                invalid: Invalid::because("is not a level of NCCL"),
                allowed: "VERSION, WARN, INFO, ABORT, TRACE",
            });
        }
    };
    Ok(becomes(level))
}

/// NCCL's subsystems, and ours that log the same things.
const NCCL_SUBSYSTEMS: &[(&str, &[&str])] = &[
    ("INIT", &["config", "engine", "peer"]),
    ("COLL", &[]),
    ("P2P", &["share", "gpu"]),
    ("SHM", &["share"]),
    ("NET", &["rail", "flow", "nccl"]),
    ("GRAPH", &["rail", "host"]),
    ("TUNING", &["config"]),
    ("ENV", &["config"]),
    ("ALLOC", &["staging"]),
    ("CALL", &[]),
    ("PROXY", &["proxy"]),
    ("NVLS", &[]),
    ("BOOTSTRAP", &["peer"]),
    ("REG", &["share"]),
    ("PROFILE", &["profile"]),
    ("RAS", &[]),
    ("ALL", SUBSYSTEMS),
];

pub(crate) fn nccl_debug_subsys(text: &str) -> Result<Translated, Refused> {
    let (caret, list) = match text.trim().strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", text.trim()),
    };
    let mut ours: Vec<&str> = Vec::new();
    let mut lost: Vec<&str> = Vec::new();
    for item in list.split(',') {
        let item = item.trim();
        let Some((name, same)) =
            NCCL_SUBSYSTEMS.iter().find(|(name, _)| name.eq_ignore_ascii_case(item))
        else {
            let shown = excerpt(item);
            return Err(Refused {
                invalid: Invalid::because(format!("has the unknown subsystem `{shown}`")),
                allowed: "ALL, or a list of INIT, COLL, P2P, SHM, NET, GRAPH, TUNING, ENV, ALLOC, CALL, PROXY, NVLS, BOOTSTRAP, REG, PROFILE, RAS; with ^ in front all others",
            });
        };
        if same.is_empty() {
            lost.push(name);
        }
        ours.extend(*same);
    }
    let mut warnings = Vec::new();
    if !lost.is_empty() {
        warnings.push(format!("names {}, which Polyrail does not have", lost.join(", ")));
    }
    let value = match (caret, ours.as_slice()) {
        ("", []) => {
            warnings.push("names nothing that Polyrail has, so nothing changes".to_owned());
            None
        }
        (_, []) => Some("all".to_owned()),
        (caret, ours) => Some(format!("{caret}{}", ours.join(","))),
    };
    Ok(Translated { value, warnings })
}

fn becomes(text: &str) -> Translated {
    Translated { value: Some(text.to_owned()), warnings: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(translated: Result<Translated, Refused>) -> Option<String> {
        translated.unwrap().value
    }

    #[test]
    fn levels_of_nccl_become_ours_in_any_case() {
        for (theirs, ours) in
            [("VERSION", "error"), ("warn", "warn"), ("Info", "info"), ("TRACE", "trace")]
        {
            assert_eq!(value(nccl_debug(theirs)).as_deref(), Some(ours));
        }
        let abort = nccl_debug("ABORT").unwrap();
        assert_eq!(abort.value.as_deref(), Some("info"));
        assert_eq!(abort.warnings.len(), 1);
        assert_eq!(nccl_debug("LOUD").unwrap_err().allowed, "VERSION, WARN, INFO, ABORT, TRACE");
    }

    #[test]
    fn subsystems_of_nccl_become_ours_and_the_rest_is_told() {
        assert_eq!(value(nccl_debug_subsys("NET,proxy")).as_deref(), Some("rail,flow,nccl,proxy"));
        assert_eq!(value(nccl_debug_subsys("^ENV")).as_deref(), Some("^config"));
        assert_eq!(value(nccl_debug_subsys("^COLL")).as_deref(), Some("all"));
        let mixed = nccl_debug_subsys("INIT,COLL,NVLS").unwrap();
        assert_eq!(mixed.value.as_deref(), Some("config,engine,peer"));
        assert_eq!(mixed.warnings, ["names COLL, NVLS, which Polyrail does not have"]);
        let nothing = nccl_debug_subsys("COLL").unwrap();
        assert_eq!((nothing.value, nothing.warnings.len()), (None, 2));
        assert!(nccl_debug_subsys("NETS").is_err());
    }

    #[test]
    fn automatic_and_absent_values_of_nccl_are_understood() {
        let automatic = nccl_count("-2").unwrap();
        assert_eq!((automatic.value, automatic.warnings.len()), (None, 1));
        assert_eq!(value(nccl_count("4")).as_deref(), Some("4"));
        assert_eq!(value(nccl_dump_signal("-1")).as_deref(), Some("0"));
        assert_eq!(value(rccl_proxy_trace("0")).as_deref(), Some(""));
        assert!(rccl_proxy_trace("yes").is_err());
    }
}
