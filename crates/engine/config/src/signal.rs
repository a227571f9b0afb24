//! Signals by number and by name.

use crate::invalid::Invalid;

/// Highest signal number of Linux.
pub(crate) const LAST_SIGNAL: u64 = 64;

/// Names and numbers as on x86-64 and Arm.
const NAMES: &[(&str, u64)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

const REMEDY: &str = "USR1 and USR2 are free in most programs; 0 is off";

/// Reads `12`, `USR2`, `SIGUSR2`, or `0` and `off` for none.
pub(crate) fn parse(text: &str) -> Result<u64, Invalid> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    let number = match number_of(text) {
        Some(number) => number,
        None if text.starts_with(|c: char| c.is_ascii_digit()) => text
            .parse()
            .ok()
            .filter(|&number| number <= LAST_SIGNAL)
            .ok_or_else(|| Invalid::because("is out of range").help(REMEDY))?,
        None => {
            return Err(Invalid::because("is neither a signal's number nor its name").help(REMEDY));
        }
    };
    refuse_untakeable(number)?;
    Ok(number)
}

/// Returns the name if there is one, otherwise the number; [`parse`] reads both.
pub(crate) fn show(number: u64) -> String {
    match NAMES.iter().find(|&&(_, known)| known == number) {
        Some((name, _)) => (*name).to_owned(),
        None => number.to_string(),
    }
}

fn number_of(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|&&(known, _)| known == short).map(|&(_, number)| number)
}

fn refuse_untakeable(number: u64) -> Result<(), Invalid> {
    let why = match number {
        9 | 19 => "which no program can catch",
        4 | 7 | 8 | 11 => "which reports a fault of the program itself",
        32 | 33 => "which the C library keeps for its threads",
        _ => return Ok(()),
    };
    let name = show(number);
    let what = if name == number.to_string() { name } else { format!("{number} ({name})") };
    Err(Invalid::because(format!("is signal {what}, {why}")).help(REMEDY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_reads_from_number_and_name() {
        for text in ["10", "USR1", "SIGUSR1", "sigusr1", " usr1 "] {
            assert_eq!(parse(text), Ok(10), "{text}");
        }
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("off"), Ok(0));
        assert_eq!(parse("64"), Ok(64));
    }

    #[test]
    fn every_signal_that_can_be_taken_reads_back() {
        for number in 0..=LAST_SIGNAL {
            if refuse_untakeable(number).is_ok() {
                assert_eq!(parse(&show(number)), Ok(number));
            }
        }
    }

    #[test]
    fn signals_that_cannot_serve_are_refused_with_the_reason() {
        for (text, reason) in [
            ("9", "is signal 9 (KILL), which no program can catch"),
            ("STOP", "is signal 19 (STOP), which no program can catch"),
            ("11", "is signal 11 (SEGV), which reports a fault of the program itself"),
            ("BUS", "is signal 7 (BUS), which reports a fault of the program itself"),
            ("SIGFPE", "is signal 8 (FPE), which reports a fault of the program itself"),
            ("4", "is signal 4 (ILL), which reports a fault of the program itself"),
            ("32", "is signal 32, which the C library keeps for its threads"),
            ("65", "is out of range"),
            ("99999999999999999999999", "is out of range"),
            ("-1", "is neither a signal's number nor its name"),
            ("USR3", "is neither a signal's number nor its name"),
            ("", "is neither a signal's number nor its name"),
        ] {
            assert_eq!(parse(text).unwrap_err().reason, reason, "{text}");
        }
    }
}
