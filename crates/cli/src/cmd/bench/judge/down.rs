//! Rails that carry nothing while others do.

use polyrail_report::{LimitKind, show_gb_per_s};

use super::evidence::{Evidence, Line};
use super::rules::Candidate;
use crate::cmd::bench::talk::{DownRail, NO_PARTNER};

/// What the rails carry at most that carry anything.
pub(super) fn line_of_others(evidence: &Evidence) -> Option<Line> {
    let Line { rails, source } = evidence.line.as_ref()?;
    let is_down = |name: &str| evidence.local.down.iter().any(|rail| rail.name == name);
    let (out, rails): (Vec<_>, Vec<_>) = rails.iter().cloned().partition(|(name, _)| is_down(name));
    let names: Vec<&str> = out.iter().map(|(name, _)| name.as_str()).collect();
    let source = match names.is_empty() {
        true => source.clone(),
        false => format!("{source} without {}", names.join(", ")),
    };
    Some(Line { rails, source })
}

/// Nothing else is the limit.
pub(super) fn rails_down(evidence: &Evidence) -> Option<Candidate> {
    let rails = evidence.rails.len().max(1);
    let is_down = |rail: &&DownRail| rail.why != NO_PARTNER;
    let down = evidence.local.down.iter().chain(&evidence.peer.down).filter(is_down).count();
    let because = format!(
        "{} GB/s are what the rails carry that are up, of {rails} here",
        show_gb_per_s(evidence.gb_per_s)
    );
    let candidate = Candidate { kind: LimitKind::Network, share: 1.0, from: 1.0, because };
    (down > 0).then_some(candidate)
}

/// Each rail that is down, why, and what to look at; for behind any verdict.
pub(super) fn names(evidence: &Evidence) -> String {
    let told = |place: &'static str| {
        move |DownRail { name, interface, why }: &DownRail| match why == NO_PARTNER {
            true => format!("; {name} {place} is not used: {why}"),
            false => format!(
                "; {name} {place} is down: {why} (look at `ip -s link show {interface}` and `polyrail doctor` {place})"
            ),
        }
    };
    let here = evidence.local.down.iter().map(told("here"));
    here.chain(evidence.peer.down.iter().map(told("at the other side"))).collect()
}
