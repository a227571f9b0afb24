//! The findings, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::check::{Check, Cost, Evidence, Finding, Group, Outcome, Unknown};
use crate::checks::CHECKS;
use crate::context::{Context, Options};
use crate::facts::facts;

/// Version of [`Report`]; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// The diagnosis of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    pub version: String,
    pub hostname: Option<String>,
    /// Identifier of the current boot; changes with every boot.
    pub boot_id: Option<String>,
    pub kernel: Option<String>,
    /// Number of checks with each result.
    pub summary: Summary,
    /// All checks: those with findings first, and the costliest of them first.
    pub checks: Vec<CheckReport>,
    /// Properties of the host, to compare hosts.
    pub facts: BTreeMap<String, String>,
}

/// Number of checks with each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Checks that found a fault.
    pub findings: usize,
    /// Checks that found no fault.
    pub clean: usize,
    /// Checks that could not find out.
    pub unknown: usize,
    /// Checks of parts that this host does not have.
    pub not_applicable: usize,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Stable name of the check.
    pub id: String,
    /// Part of the machine that the check examines.
    pub group: Group,
    pub status: Status,
    /// The fault that the check finds.
    pub title: String,
    pub cost: Cost,
    pub why: String,
    pub remedy: String,
    /// Whether the fix needs root.
    pub needs_root: bool,
    /// Whether the fix can be undone without a restart.
    pub reversible: bool,
    /// Faults; empty unless the status is `finding`.
    pub findings: Vec<Finding>,
    /// Evidence that the check examined and found right.
    pub evidence: Vec<Evidence>,
    /// Reasons for each part that the check could not find out. Present next to findings, too.
    pub unknown: Vec<String>,
    /// Command that plans the changes of the findings. `None` if there are none, or if the command would not find them
    /// because its `--rtt` or `--workers` differs.
    #[serde(default)]
    pub fix: Option<String>,
    /// Reason why there was nothing to examine.
    pub not_applicable: Option<String>,
}

/// The result of a check, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Finding,
    /// The check could not find out, for the host or for a part of it.
    Unknown,
    /// This host does not have the part that the check examines.
    NotApplicable,
    Clean,
}

pub fn examine(cx: &Context) -> Report {
    let mut checks: Vec<CheckReport> = CHECKS
        .iter()
        .copied()
        .flatten()
        .map(|check| CheckReport::of(check, (check.run)(cx), cx.options()))
        .collect();
    checks.sort_by_key(|check| (check.status, check.cost));
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    Report {
        schema_version: SCHEMA_VERSION,
        version: env!("CARGO_PKG_VERSION").into(),
        hostname: cx.root().hostname().ok(),
        boot_id: cx.root().boot_id().ok(),
        kernel: cx.root().kernel().ok(),
        summary: Summary {
            findings: count(Status::Finding),
            clean: count(Status::Clean),
            unknown: count(Status::Unknown),
            not_applicable: count(Status::NotApplicable),
        },
        checks,
        facts: facts(cx),
    }
}

impl CheckReport {
    fn of(check: &Check, result: Result<Outcome, Unknown>, options: &Options) -> Self {
        let outcome = result
            .unwrap_or_else(|Unknown(why)| Outcome { unknown: vec![why], ..Outcome::default() });
        let status = if !outcome.findings.is_empty() {
            Status::Finding
        } else if !outcome.unknown.is_empty() {
            Status::Unknown
        } else if outcome.not_applicable.is_some() {
            Status::NotApplicable
        } else {
            Status::Clean
        };
        let has_changes = outcome.findings.iter().any(|finding| !finding.changes.is_empty());
        Self {
            fix: has_changes.then(|| fix(check, options)).flatten(),
            id: check.id.into(),
            group: check.group,
            status,
            title: check.title.into(),
            cost: check.cost,
            why: check.why.into(),
            remedy: check.remedy.into(),
            needs_root: check.needs_root,
            reversible: check.reversible,
            findings: outcome.findings,
            evidence: outcome.seen,
            unknown: outcome.unknown,
            not_applicable: outcome.not_applicable,
        }
    }
}

/// Returns the command that plans the fix, if it finds what this check found with these options.
fn fix(check: &Check, options: &Options) -> Option<String> {
    let default = Options::default();
    let is_read = |option: &str| check.reads.contains(&option);
    let is_other = is_read("--rtt") && options.rtt != default.rtt
        || is_read("--workers") && options.workers != default.workers;
    let nic = match options.interfaces.as_slice() {
        [] => String::new(),
        names => format!(" --nic {}", names.join(",")),
    };
    (!is_other).then(|| format!("polyrail host apply fix {}{nic} --dry-run", check.id))
}

impl Report {
    /// Returns the report for people: findings in order of their cost, then the unknown parts.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut say = |line: String| {
            text.push_str(line.trim_end());
            text.push('\n');
        };
        let Summary { findings, clean, unknown, not_applicable } = self.summary;
        say(format!(
            "{} (Linux {}): {findings} with findings, {clean} clean, {unknown} unknown, \
             {not_applicable} not applicable",
            self.hostname.as_deref().unwrap_or("this host"),
            self.kernel.as_deref().unwrap_or("of unknown release"),
        ));
        let mut cost = None;
        for check in self.with(Status::Finding) {
            if cost != Some(check.cost) {
                cost = Some(check.cost);
                say(String::new());
                say(format!("{}:", check.cost.words()));
            }
            say(String::new());
            say(format!("  {}: {} [{}]", check.id, check.title, check.group.name()));
            for finding in &check.findings {
                let subject =
                    finding.subject.as_ref().map_or(String::new(), |name| format!("{name}: "));
                say(format!("    {subject}{}", finding.what));
                for evidence in &finding.evidence {
                    say(format!("      {} = {}", evidence.path, evidence.value));
                }
                for command in &finding.commands {
                    say(format!("      $ {command}"));
                }
            }
            for why in &check.unknown {
                say(format!("    not known: {why}"));
            }
            say(format!("    why: {}", check.why));
            let rights = match (check.needs_root, check.reversible) {
                (true, true) => " (needs root, can be undone)",
                (true, false) => " (needs root, can't be undone from here)",
                // Fixes that need no root are not settings: a cable, a machine type, an option of a program.
                (false, _) => "",
            };
            say(format!("    fix: {}{rights}", check.remedy));
            if let Some(fix) = &check.fix {
                say(format!("    or: {fix}"));
            }
        }
        if unknown > 0 {
            say(String::new());
            say("unknown, so neither clean nor a finding:".into());
            for check in self.with(Status::Unknown) {
                say(format!("  {}: {}", check.id, check.unknown.join("; ")));
            }
        }
        text
    }

    /// Returns the checks with this status.
    pub fn with(&self, status: Status) -> impl Iterator<Item = &CheckReport> {
        self.checks.iter().filter(move |check| check.status == status)
    }
}

impl Check {
    /// Returns everything about a check, for people.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let mut part = |heading: &str, body: &str| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{heading:<12}{body}");
        };
        part("check", self.id);
        part("group", self.group.name());
        part("fires when", self.title);
        part("cost", self.cost.words());
        part("why", self.why);
        part("remedy", self.remedy);
        part("needs root", if self.needs_root { "yes" } else { "no" });
        part("reversible", if self.reversible { "yes" } else { "no" });
        part("reads", &self.reads.join(", "));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_has_all_that_a_check_is() {
        let text = CHECKS[0][0].explain();
        for heading in [
            "check",
            "group",
            "fires when",
            "cost",
            "why",
            "remedy",
            "needs root",
            "reversible",
            "reads",
        ] {
            assert!(text.lines().any(|line| line.starts_with(heading)), "{heading}: {text}");
        }
    }
}
