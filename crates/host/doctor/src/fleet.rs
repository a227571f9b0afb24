//! Finds the host of a fleet that differs from the others, and its differences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use polyrail_sys::files::read_limited;
use polyrail_text::harmless;
use serde::{Deserialize, Serialize};

use crate::error::DoctorError;
use crate::report::{Report, SCHEMA_VERSION, Status};

/// Version of [`Comparison`].
pub const FLEET_SCHEMA_VERSION: u32 = 1;

/// The differences between the hosts of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    pub schema_version: u32,
    /// Hosts, in the order given.
    pub hosts: Vec<String>,
    /// Everything that differs between hosts: facts first, then findings.
    pub differences: Vec<Difference>,
    /// Hosts that differ from the majority, each with its number of differences; the largest number first.
    pub odd: Vec<(String, usize)>,
}

/// A fact or a check's result that is not the same on all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of a fact, or `check ID`.
    pub what: String,
    /// The value of more than half of the hosts; `None` if there is no such value.
    pub usual: Option<String>,
    /// Every other value, with its hosts.
    pub others: BTreeMap<String, Vec<String>>,
}

/// Largest report to read, in bytes. No real report comes near.
const REPORT_MAX: u64 = 64 << 20;

/// Reads reports that `polyrail doctor --json` wrote.
///
/// # Errors
/// [`DoctorError`] with the file: missing, not a report, or of another version.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Report>, DoctorError> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<Report, DoctorError> {
    let unreadable = |source| DoctorError::Unreadable { path: path.into(), source };
    let bytes = read_limited(path, REPORT_MAX).map_err(unreadable)?;
    let not_json =
        |fault: String| DoctorError::NotJson { path: path.into(), wanted: "a report", fault };
    let report: Report =
        serde_json::from_slice(&bytes).map_err(|error| not_json(error.to_string()))?;
    if report.schema_version != SCHEMA_VERSION {
        let fault = format!("its version is {}, not {SCHEMA_VERSION}", report.schema_version);
        return Err(not_json(fault));
    }
    Ok(report)
}

/// Compares hosts. A fact that some hosts lack counts as a difference.
///
/// # Errors
/// [`DoctorError::TooFew`] for fewer than two reports.
pub fn compare(reports: &[Report]) -> Result<Comparison, DoctorError> {
    if reports.len() < 2 {
        return Err(DoctorError::TooFew { given: reports.len() });
    }
    let hosts = names(reports);
    let all: Vec<BTreeMap<String, String>> = reports.iter().map(values).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let mut differences = Vec::new();
    let mut odd: BTreeMap<String, usize> = BTreeMap::new();
    for key in keys {
        let mut by_value: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (host, values) in hosts.iter().zip(&all) {
            let value = values.get(key).cloned().unwrap_or_else(|| ABSENT.into());
            by_value.entry(value).or_default().push(host.clone());
        }
        if by_value.len() < 2 {
            continue;
        }
        let most = by_value.iter().find(|(_, with)| with.len() * 2 > hosts.len());
        let usual = most.map(|(value, _)| value.clone());
        if let Some(usual) = &usual {
            by_value.remove(usual);
            for host in by_value.values().flatten() {
                *odd.entry(host.clone()).or_default() += 1;
            }
        }
        differences.push(Difference { what: key.clone(), usual, others: by_value });
    }
    // Findings come after facts, because they mostly follow from facts.
    differences.sort_by_key(|difference| difference.what.starts_with(CHECK));
    let mut odd: Vec<(String, usize)> = odd.into_iter().collect();
    odd.sort_by_key(|(host, count)| (std::cmp::Reverse(*count), host.clone()));
    Ok(Comparison { schema_version: FLEET_SCHEMA_VERSION, hosts, differences, odd })
}

const CHECK: &str = "check ";
const ABSENT: &str = "absent";

/// Returns the hosts' names. A name that occurred before gets the report's position appended.
fn names(reports: &[Report]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (at, report) in reports.iter().enumerate() {
        let name = report.hostname.clone().unwrap_or_else(|| "host".into());
        let name = if names.contains(&name) { format!("{name} ({})", at + 1) } else { name };
        names.push(name);
    }
    names
}

/// Returns facts, and the result of each check. Findings are reduced to their subjects, because counters differ anyway.
fn values(report: &Report) -> BTreeMap<String, String> {
    let mut values = report.facts.clone();
    for check in &report.checks {
        let word = match check.status {
            Status::Finding => {
                let subjects: Vec<&str> = check
                    .findings
                    .iter()
                    .filter_map(|finding| finding.subject.as_deref())
                    .collect();
                format!("finding {}", subjects.join(", ")).trim_end().to_owned()
            }
            Status::Unknown => "unknown".into(),
            Status::NotApplicable => "not applicable".into(),
            Status::Clean => "clean".into(),
        };
        values.insert(format!("{CHECK}{}", check.id), word);
    }
    values
}

impl Comparison {
    /// Returns the comparison for people. Reports come from other hosts, so their text can't steer the terminal or
    /// begin a line.
    pub fn text(&self) -> String {
        let count = self.hosts.len();
        if self.differences.is_empty() {
            return format!("{count} hosts are alike in all that is compared\n");
        }
        let mut text = match self.odd.as_slice() {
            [] => format!("{count} hosts differ, and none is the odd one out\n"),
            [(host, things), rest @ ..] => {
                let host = harmless(host, &[]);
                let mut line =
                    format!("{host} differs most from the other hosts, in {things} things");
                for (host, things) in rest {
                    line += &format!("; {} in {things}", harmless(host, &[]));
                }
                line + "\n"
            }
        };
        for Difference { what, usual, others } in &self.differences {
            text += &format!("\n{}\n", harmless(what, &[]));
            if let Some(usual) = usual {
                let usual = harmless(usual, &[]);
                let others: usize = others.values().map(Vec::len).sum();
                text += &format!("  {usual}  ({} of {count})\n", count - others);
            }
            for (value, hosts) in others {
                let mark = if usual.is_some() { '>' } else { ' ' };
                let (value, hosts) = (harmless(value, &[]), harmless(&hosts.join(", "), &[]));
                text += &format!("{mark} {value}  ({hosts})\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::report::Summary;

    fn host(name: &str, facts: &[(&str, &str)]) -> Report {
        let facts = facts.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Report {
            schema_version: SCHEMA_VERSION,
            version: "1".into(),
            hostname: Some(name.into()),
            boot_id: None,
            kernel: None,
            summary: Summary::default(),
            checks: Vec::new(),
            facts: facts.collect(),
        }
    }

    #[test]
    fn the_odd_one_out_is_named_with_what_it_has() {
        let usual = [("eth1: MTU", "8896"), ("kernel", "6.12")];
        let odd = [("eth1: MTU", "1500"), ("kernel", "6.12")];
        let reports = [host("a", &usual), host("b", &odd), host("c", &usual)];
        let comparison = compare(&reports).unwrap();
        assert_eq!(comparison.odd, [("b".to_owned(), 1)]);
        let difference = &comparison.differences[0];
        assert_eq!(difference.usual.as_deref(), Some("8896"));
        assert_eq!(difference.others, BTreeMap::from([("1500".into(), vec!["b".to_owned()])]));
        let text = comparison.text();
        assert!(text.starts_with("b differs most from the other hosts, in 1 things\n"), "{text}");
        assert!(text.contains("\neth1: MTU\n  8896  (2 of 3)\n> 1500  (b)\n"), "{text}");
    }

    #[test]
    fn a_line_break_in_a_report_forges_no_line() {
        let forged = "1500\n  9000  (3 of 3)\u{1b}[2K";
        let reports = [host("a\nb differs", &[("MTU\nx", forged)]), host("c", &[])];
        let text = compare(&reports).unwrap().text();
        // One line for the name, one for each of its two values, and the heading.
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 4, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn two_that_differ_have_no_odd_one_and_what_is_absent_is_different() {
        let reports = [host("a", &[("x", "1")]), host("a", &[])];
        let comparison = compare(&reports).unwrap();
        assert_eq!(comparison.odd, []);
        assert_eq!(comparison.hosts, ["a", "a (2)"]);
        let text = comparison.text();
        assert!(text.contains("  1  (a)\n  absent  (a (2))\n"), "{text}");
    }

    #[test]
    fn hosts_that_are_alike_are_said_to_be() {
        let reports = [host("a", &[("x", "1")]), host("b", &[("x", "1")])];
        assert_eq!(
            compare(&reports).unwrap().text(),
            "2 hosts are alike in all that is compared\n"
        );
        let message = compare(&reports[..1]).unwrap_err().to_string();
        assert_eq!(message, "--fleet: has 1 report to compare; allowed: 2 or more");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        let message = |paths: &[PathBuf]| read(paths).unwrap_err().to_string();
        assert!(message(std::slice::from_ref(&path)).contains("x.json can't be read"));
        fs::File::create(&path).unwrap().set_len(3 << 30).unwrap();
        let error = read_one(&path).unwrap_err().to_string();
        assert!(error.contains("larger than 64 MiB, the most that is read"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(message(std::slice::from_ref(&path)).contains("x.json is not a report"));
        let mut report = host("a", &[]);
        report.schema_version = 9;
        fs::write(&path, serde_json::to_vec(&report).unwrap()).unwrap();
        assert!(message(&[path]).contains("its version is 9, not 1"));
    }
}
