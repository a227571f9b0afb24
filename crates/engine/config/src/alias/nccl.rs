//! Values of NCCL's variables, read the way NCCL reads them: values that it ignores are ignored, values that it clamps
//! are clamped, and numbers are numbers of C.

use std::net::IpAddr;

use polyrail_yaml::excerpt;

use super::{Reading, Variables};
use crate::subsystems::SUBSYSTEMS;

/// Maximum threads of a connection (`MAX_THREADS` in NCCL).
const THREADS_MAX: i64 = 16;
/// Maximum sockets of a connection, of all its threads together (`MAX_SOCKETS` in NCCL).
const SOCKETS_MAX: i64 = 64;
/// NCCL's value for an automatic choice.
const AUTOMATIC: i64 = -2;

/// Reads a number.
pub(crate) fn count(text: &str, _: &Variables) -> Reading {
    numeric(text, |number| Reading::of(number.to_string()))
}

/// Reads `NCCL_SOCKET_NTHREADS`.
pub(crate) fn threads(text: &str, _: &Variables) -> Reading {
    numeric(text, |number| match number {
        AUTOMATIC => automatic(),
        0..=THREADS_MAX => Reading::of(number.to_string()),
        ..0 => Reading::ignored("is negative"),
        _ => Reading::of(THREADS_MAX.to_string())
            .warn(format!("is read as {THREADS_MAX}, the most that NCCL takes")),
    })
}

/// Reads `NCCL_NSOCKS_PERTHREAD`, which NCCL bounds together with the threads.
pub(crate) fn sockets(text: &str, variables: &Variables) -> Reading {
    let threads = variables.get("NCCL_SOCKET_NTHREADS").and_then(|text| c_number(text));
    let threads = threads.unwrap_or(1).clamp(1, THREADS_MAX);
    numeric(text, |number| match number {
        AUTOMATIC => automatic(),
        number if number > SOCKETS_MAX / threads && threads > 1 => {
            let most = SOCKETS_MAX / threads;
            Reading::of(most.to_string()).warn(format!(
                "is read as {most}: NCCL takes at most {SOCKETS_MAX} sockets for its {threads} threads"
            ))
        }
        number => Reading::of(number.to_string()),
    })
}

/// Reads `NCCL_PROXY_DUMP_SIGNAL`, where -1 means no signal.
pub(crate) fn dump_signal(text: &str, _: &Variables) -> Reading {
    numeric(text, |number| Reading::of(number.max(0).to_string()))
}

/// Reads `RCCL_ENABLE_PROXY_TRACE`, a flag.
pub(crate) fn proxy_trace(text: &str, _: &Variables) -> Reading {
    numeric(text, |number| match number {
        0 => Reading::of(""),
        _ => Reading::of("polyrail-trace-%h-%p.json"),
    })
}

/// Reads `NCCL_DEBUG`.
pub(crate) fn debug(text: &str, _: &Variables) -> Reading {
    match text.trim().to_ascii_uppercase().as_str() {
        "VERSION" => Reading::of("error"),
        "WARN" => Reading::of("warn"),
        "INFO" => Reading::of("info"),
        "ABORT" => Reading::of("info").warn("is read as INFO: Polyrail never aborts the program"),
        "TRACE" => Reading::of("trace"),
        _ => Reading::ignored("is not a level of NCCL (VERSION, WARN, INFO, ABORT, TRACE)"),
    }
}

/// NCCL's subsystems, and Polyrail's that log the same things.
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

/// Reads `NCCL_DEBUG_SUBSYS`.
pub(crate) fn debug_subsys(text: &str, _: &Variables) -> Reading {
    let (caret, list) = match text.trim().strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", text.trim()),
    };
    let (mut ours, mut lost, mut unknown) = (Vec::<&str>::new(), Vec::new(), Vec::new());
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let known = NCCL_SUBSYSTEMS.iter().find(|(name, _)| name.eq_ignore_ascii_case(item));
        match known {
            None => unknown.push(item),
            Some((name, [])) => lost.push(*name),
            Some((_, same)) => ours.extend(*same),
        }
    }
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        let names = excerpt(&unknown.join(", "));
        warnings.push(format!("names {names}, which NCCL does not know; ignored"));
    }
    if !lost.is_empty() {
        warnings.push(format!("names {}, which Polyrail does not have", lost.join(", ")));
    }
    let value = match (caret, ours.as_slice()) {
        ("^", []) if !lost.is_empty() => Some("all".to_owned()),
        (_, []) => {
            warnings.push("names nothing that Polyrail has, so nothing changes".to_owned());
            None
        }
        (caret, ours) => Some(format!("{caret}{}", ours.join(","))),
    };
    Reading { value, warnings }
}

/// Reads `NCCL_DEBUG_FILE`: NCCL keeps marks that it does not know.
pub(crate) fn debug_file(text: &str, _: &Variables) -> Reading {
    let mut ours = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        ours.push(character);
        if character == '%' {
            let mark = rest.next_if(|next| matches!(next, 'h' | 'p' | '%'));
            ours.push(mark.unwrap_or('%'));
        }
    }
    Reading::of(ours)
}

/// Reads `NCCL_SOCKET_FAMILY`.
pub(crate) fn socket_family(text: &str, _: &Variables) -> Reading {
    match text {
        "AF_INET" => Reading::of("ipv4"),
        "AF_INET6" => Reading::of("ipv6"),
        _ => Reading::ignored("is neither AF_INET nor AF_INET6"),
    }
}

/// Reads `NCCL_SOCKET_IFNAME`: NCCL takes those interfaces of the list that exist, so one value serves machines whose
/// interfaces have other names.
pub(crate) fn socket_ifname(text: &str, _: &Variables) -> Reading {
    let text = text.trim();
    let after_caret = text.strip_prefix('^');
    let list = after_caret.unwrap_or(text);
    let (exact, list) = match list.strip_prefix('=') {
        Some(list) => ("=", list),
        None => ("", list),
    };
    let mut warnings = Vec::new();
    let mut names = Vec::new();
    for item in list.split(',').map(str::trim) {
        let (name, port) = match item.split_once(':') {
            Some((name, port)) if item.parse::<IpAddr>().is_err() => (name, Some(port)),
            _ => (item, None),
        };
        if let Some(port) = port {
            let port = excerpt(port);
            warnings.push(format!("has `:{port}`, which means nothing for an interface; ignored"));
        }
        if !name.is_empty() {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Reading::ignored("names no interface");
    }
    let front = match (after_caret, names.as_slice()) {
        (Some(_), _) => "^",
        (None, [_]) => "",
        // Names of missing interfaces are left out.
        (None, _) => "?",
    };
    Reading { value: Some(format!("{front}{exact}{}", names.join(","))), warnings }
}

fn automatic() -> Reading {
    Reading::default().warn("asks for the automatic choice, so nothing changes")
}

/// Reads a number of C, and warns where it differs from the number that a person reads.
fn numeric(text: &str, read: impl FnOnce(i64) -> Reading) -> Reading {
    let Some(number) = c_number(text) else {
        return Reading::ignored("is not a number that NCCL can read");
    };
    let reading = read(number);
    let is_plain = text.trim() == number.to_string();
    if is_plain || !reading.warnings.is_empty() {
        return reading;
    }
    reading.warn(format!("is read as {number}, as NCCL does"))
}

/// Returns the number that C's `strtoll` reads with base 0: `0x` is hexadecimal, a leading 0 is octal, and characters
/// after the digits are ignored. `None` without digits, or for a number beyond 64 bits.
fn c_number(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let hexadecimal = hexadecimal.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (radix, digits) = match (hexadecimal, digits.starts_with('0')) {
        (Some(rest), _) => (16, rest),
        (None, true) => (8, digits),
        (None, false) => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    i64::from_str_radix(&format!("{sign}{}", &digits[..end]), radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value and the number of warnings.
    fn read(read: fn(&str, &Variables) -> Reading, text: &str) -> (Option<String>, usize) {
        let reading = read(text, &Variables::new());
        (reading.value, reading.warnings.len())
    }

    fn value(text: &str, warnings: usize) -> (Option<String>, usize) {
        (Some(text.to_owned()), warnings)
    }

    #[test]
    fn numbers_are_those_of_c() {
        for (text, number) in [
            ("4", Some(4)),
            (" +4", Some(4)),
            ("0x10", Some(16)),
            ("-0X1f", Some(-31)),
            ("010", Some(8)),
            ("08", Some(0)),
            ("0x", Some(0)),
            ("4 threads", Some(4)),
            ("0", Some(0)),
            ("many", None),
            ("", None),
            ("-", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(c_number(text), number, "{text}");
        }
        assert_eq!(read(count, "4"), value("4", 0));
        assert_eq!(read(count, "010"), value("8", 1));
        assert_eq!(read(count, "many"), (None, 1));
    }

    #[test]
    fn threads_and_sockets_have_the_bounds_of_nccl() {
        assert_eq!(read(threads, "16"), value("16", 0));
        assert_eq!(read(threads, "17"), value("16", 1));
        assert_eq!(read(threads, "-2"), (None, 1));
        assert_eq!(read(threads, "-7"), (None, 1));
        assert_eq!(read(sockets, "-2"), (None, 1));
        let beside = |threads: &str, text| {
            let variables = [("NCCL_SOCKET_NTHREADS".to_owned(), threads.to_owned())];
            sockets(text, &variables.into()).value.unwrap()
        };
        for (threads, text, sockets) in [
            ("16", "4", "4"),
            ("16", "8", "4"),
            ("100", "8", "4"),
            ("0x2", "40", "32"),
            ("x", "9", "9"),
        ] {
            assert_eq!(beside(threads, text), sockets, "{threads} threads, {text} sockets");
        }
    }

    #[test]
    fn levels_of_nccl_become_ours_in_any_case() {
        for (theirs, ours) in
            [("VERSION", "error"), ("warn", "warn"), ("Info", "info"), ("TRACE", "trace")]
        {
            assert_eq!(read(debug, theirs), value(ours, 0));
        }
        assert_eq!(read(debug, "ABORT"), value("info", 1));
        for unknown in ["DEBUG", "NONE", "0", "1"] {
            assert_eq!(read(debug, unknown), (None, 1), "{unknown}");
        }
    }

    #[test]
    fn subsystems_of_nccl_become_ours_and_the_rest_is_reported() {
        assert_eq!(read(debug_subsys, "NET,proxy"), value("rail,flow,nccl,proxy", 0));
        assert_eq!(
            read(debug_subsys, ",INIT,,NET,"),
            value("config,engine,peer,rail,flow,nccl", 0)
        );
        assert_eq!(read(debug_subsys, "^ENV"), value("^config", 0));
        assert_eq!(read(debug_subsys, "^COLL"), value("all", 1));
        assert_eq!(read(debug_subsys, "GRAPH,BOGUS"), value("rail,host", 1));
        assert_eq!(read(debug_subsys, "INIT,COLL,NVLS"), value("config,engine,peer", 1));
        assert_eq!(read(debug_subsys, "COLL"), (None, 2));
        assert_eq!(read(debug_subsys, "NETS"), (None, 2));
        assert_eq!(read(debug_subsys, "^NETS"), (None, 2));
        assert_eq!(read(debug_subsys, ","), (None, 1));
        let warnings = debug_subsys("GRAPH,BOGUS", &Variables::new()).warnings;
        assert_eq!(warnings, ["names BOGUS, which NCCL does not know; ignored"]);
    }

    #[test]
    fn interfaces_of_a_list_are_optional() {
        for (text, ours, warnings) in [
            ("eth", "eth", 0),
            ("eno1,eth0", "?eno1,eth0", 0),
            ("=eno1,eth0,", "?=eno1,eth0", 0),
            ("=a,=b", "?=a,=b", 0),
            ("^docker,lo", "^docker,lo", 0),
            ("^=docker0", "^=docker0", 0),
            ("eth0:5000", "eth0", 1),
            ("eth0:1:2:3,eth1:", "?eth0,eth1", 2),
            ("127.0.0.1,fd00::1", "?127.0.0.1,fd00::1", 0),
        ] {
            assert_eq!(read(socket_ifname, text), value(ours, warnings), "{text}");
        }
        for none in [",", "=", "^", "^=,", ":5000"] {
            assert_eq!(read(socket_ifname, none), (None, 1), "{none}");
        }
    }

    #[test]
    fn flags_signals_families_and_files_are_read_as_their_tools_do() {
        assert_eq!(read(dump_signal, "-1"), value("0", 0));
        assert_eq!(read(dump_signal, "012"), value("10", 1));
        assert_eq!(read(proxy_trace, "0"), value("", 0));
        assert_eq!(read(proxy_trace, "1"), value("polyrail-trace-%h-%p.json", 0));
        assert_eq!(read(proxy_trace, "yes"), (None, 1));
        assert_eq!(read(socket_family, "AF_INET6"), value("ipv6", 0));
        assert_eq!(read(socket_family, "inet6"), (None, 1));
        assert_eq!(read(debug_file, "/a.%h.%p.%%"), value("/a.%h.%p.%%", 0));
        assert_eq!(read(debug_file, "/a.%d%"), value("/a.%%d%%", 0));
    }
}
