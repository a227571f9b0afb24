//! Names that certificates may have: `trainer.example.org,*.gpu.example.org,spiffe://example.org/ml/*`.

use std::fmt;

use polyrail_yaml::excerpt;

/// Maximum length of a DNS name.
const LONGEST_DNS_BYTES: usize = 253;

/// Maximum length of a label of a DNS name.
const LONGEST_LABEL_BYTES: usize = 63;

const SPIFFE: &str = "spiffe://";

/// One name that a certificate may have, or all names of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// `*`: any name.
    Any,
    /// A DNS name in lower case.
    Dns(String),
    /// `*.example.org`: DNS names with one label before this, which begins with the dot.
    DnsBelow(String),
    /// A SPIFFE ID.
    Spiffe(String),
    /// `spiffe://example.org/ml/*`: SPIFFE IDs that begin with this, which ends with the slash.
    SpiffeBelow(String),
}

/// Error in a text that is not a valid list of names, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (name {number})")]
pub struct NamesError {
    /// Position of the first wrong name in the list, counted from 1.
    pub number: usize,
    /// Fault of that name.
    pub fault: NamesFault,
}

/// Fault of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamesFault {
    /// Nothing between two commas, or at an end.
    #[error("has an empty item in the list")]
    Empty,
    /// Neither a DNS name nor a SPIFFE ID.
    #[error("has `{0}`, which is neither a DNS name nor a SPIFFE ID (an address is neither)")]
    BadName(String),
    /// A star where it means nothing.
    #[error("has `{0}` with a `*` that is neither all, nor the first label, nor the last step")]
    BadStar(String),
}

impl NamesError {
    /// Returns a correction.
    pub fn help(&self) -> String {
        "write them like trainer.example.org,*.gpu.example.org,spiffe://example.org/ml/*, in small \
         letters but for the path of a SPIFFE ID; `*` alone is any name"
            .to_owned()
    }
}

/// Reads names in the order of the text; the empty text means none. Spaces around them are ignored.
///
/// # Errors
/// [`NamesError`] with the number of the name.
pub fn parse_names(text: &str) -> Result<Vec<NamePattern>, NamesError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let one = |(at, name): (usize, &str)| {
        pattern(name.trim()).map_err(|fault| NamesError { number: at + 1, fault })
    };
    text.split(',').enumerate().map(one).collect()
}

impl NamePattern {
    /// Returns whether the name matches this pattern. A DNS name has to be in lower case; one with a star, as
    /// certificates may have, is not the name of a host.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Dns(own) | Self::Spiffe(own) => own == name,
            Self::DnsBelow(end) => name
                .strip_suffix(end.as_str())
                .is_some_and(|label| !label.is_empty() && !label.contains(['.', '*', '/'])),
            Self::SpiffeBelow(begin) => {
                name.strip_prefix(begin.as_str()).is_some_and(|path| !path.is_empty())
            }
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Dns(name) | Self::Spiffe(name) => f.write_str(name),
            Self::DnsBelow(end) => write!(f, "*{end}"),
            Self::SpiffeBelow(begin) => write!(f, "{begin}*"),
        }
    }
}

fn pattern(text: &str) -> Result<NamePattern, NamesFault> {
    let bad = || Err(NamesFault::BadName(excerpt(text)));
    if text.is_empty() {
        return Err(NamesFault::Empty);
    }
    if text == "*" {
        return Ok(NamePattern::Any);
    }
    if let Some(name) = text.strip_prefix(SPIFFE) {
        let (name, is_prefix) = name.strip_suffix("/*").map_or((name, false), |name| (name, true));
        if name.contains('*') {
            return Err(NamesFault::BadStar(excerpt(text)));
        }
        return match is_spiffe(name) {
            true if is_prefix => Ok(NamePattern::SpiffeBelow(format!("{SPIFFE}{name}/"))),
            true => Ok(NamePattern::Spiffe(text.to_owned())),
            false => bad(),
        };
    }
    let name = text.to_ascii_lowercase();
    let (rest, is_wild) = name.strip_prefix("*.").map_or((&name[..], false), |rest| (rest, true));
    if rest.contains('*') {
        return Err(NamesFault::BadStar(excerpt(text)));
    }
    match is_dns(rest) {
        true if is_wild => Ok(NamePattern::DnsBelow(format!(".{rest}"))),
        true => Ok(NamePattern::Dns(name)),
        false => bad(),
    }
}

/// Returns whether the text may follow `spiffe://`: a domain, and perhaps a path.
fn is_spiffe(name: &str) -> bool {
    let of_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    let of_path = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let mut steps = name.split('/');
    let domain = steps.next().unwrap_or_default();
    let is_step = |step: &str| !["", ".", ".."].contains(&step) && step.bytes().all(of_path);
    !domain.is_empty() && domain.bytes().all(of_domain) && steps.all(is_step)
}

fn is_dns(name: &str) -> bool {
    let of_label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL_BYTES).contains(&label.len()) && label.bytes().all(of_label)
    };
    // No top-level domain is a number: a name that ends in one is an address, and certificates are not checked for
    // addresses.
    let is_address = name.rsplit('.').next().is_some_and(|last| last.parse::<u64>().is_ok());
    name.len() <= LONGEST_DNS_BYTES && name.split('.').all(is_label) && !is_address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<NamePattern> {
        parse_names(text).unwrap()
    }

    fn fault(text: &str) -> (usize, NamesFault) {
        let error = parse_names(text).unwrap_err();
        assert!(error.help().contains("trainer.example.org"));
        (error.number, error.fault)
    }

    #[test]
    fn a_list_reads_back_as_it_is_written() {
        let text = "*,a,Trainer.example.org,*.gpu.example.org,spiffe://d,spiffe://d/a/B,\
                    spiffe://d/*,spiffe://d/a/B/*";
        let shown: Vec<String> = names(text).iter().map(NamePattern::to_string).collect();
        assert_eq!(shown.join(","), text.replace('T', "t"));
        assert_eq!(names(" a , b "), names("a,b"));
        assert_eq!(names(" "), []);
    }

    #[test]
    fn a_pattern_matches_what_it_names_and_nothing_else() {
        for (text, yes, no) in [
            ("*", &["a", "spiffe://d/a"][..], &[][..]),
            ("a.example", &["a.example"], &["b.a.example", "a.example.org", "A.example", ""]),
            (
                "*.example",
                &["a.example"],
                &[
                    "example",
                    ".example",
                    "b.a.example",
                    "*.example",
                    "aexample",
                    "spiffe://d/.example",
                ],
            ),
            ("spiffe://d/a", &["spiffe://d/a"], &["spiffe://d/a/b", "spiffe://d", "spiffe://d/A"]),
            (
                "spiffe://d/a/*",
                &["spiffe://d/a/b", "spiffe://d/a/b/c"],
                &["spiffe://d/a", "spiffe://d/ab", "spiffe://d/a/"],
            ),
            (
                "spiffe://d/*",
                &["spiffe://d/a"],
                &["spiffe://d", "spiffe://dd/a", "spiffe://d.e/a", "d"],
            ),
        ] {
            let [pattern] = &names(text)[..] else { panic!("{text}") };
            assert!(yes.iter().all(|name| pattern.matches(name)), "{text}");
            assert!(!no.iter().any(|name| pattern.matches(name)), "{text}");
        }
    }

    #[test]
    fn a_bad_name_is_refused_with_its_number() {
        for text in ["a,", ",a", "a,,b"] {
            assert_eq!(fault(text).1, NamesFault::Empty, "{text}");
        }
        for text in [
            "a b",
            "a..b",
            "a.",
            "-ü",
            "a/b",
            "http://a",
            "spiffe://",
            "spiffe://D/a",
            "spiffe://d/",
            "spiffe://d//a",
            "spiffe://d/../a",
            "spiffe://d:1/a",
            "SPIFFE://d/a",
            "a:80",
            "10.0.0.1",
            "*.0.0.1",
        ] {
            assert_eq!(fault(text), (1, NamesFault::BadName(text.to_owned())), "{text}");
        }
        for text in
            ["a.*", "a*.b", "**", "*.*.b", "spiffe://*/a", "spiffe://d/a*", "spiffe://d/*/a"]
        {
            let found = fault(&format!("a, {text}"));
            assert_eq!(found, (2, NamesFault::BadStar(text.to_owned())), "{text}");
        }
    }
}
