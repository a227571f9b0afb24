//! Rails that carry nothing while others do.

use polyrail_report::{LimitKind, counted, show_gb_per_s};

use super::causes::Cause;
use super::evidence::{Evidence, Line};
use super::rules::Candidate;
use crate::cmd::bench::talk::{DownRail, WhyDown};

/// What the rails here carry at most that carry anything.
pub(super) fn line_of_others(evidence: &Evidence) -> Option<Line> {
    without(evidence.line.as_ref()?, &evidence.local.down, evidence.ways)
}

/// The same of the end whose rails carry less: every byte takes a rail of both.
pub(super) fn narrower_line(evidence: &Evidence) -> Option<Line> {
    let there = evidence.peer_line.as_ref();
    let there = there.and_then(|line| without(line, &evidence.peer.down, evidence.ways));
    match (line_of_others(evidence), there) {
        (Some(here), Some(there)) if here.gb_per_s() <= there.gb_per_s() => Some(here),
        (here, there) => there.or(here),
    }
}

/// `None` if no rail is left.
fn without(line: &Line, down: &[DownRail], ways: u64) -> Option<Line> {
    let Line { rails, source } = line;
    let (out, rails): (Vec<_>, Vec<_>) =
        rails.iter().cloned().partition(|(name, _)| is_among(down, name, ways));
    if rails.is_empty() {
        return None;
    }
    let names: Vec<&str> = out.iter().map(|(name, _)| name.as_str()).collect();
    let source = match names.is_empty() {
        true => source.clone(),
        false => format!("{source} without {}", names.join(", ")),
    };
    Some(Line { rails, source })
}

/// Whether a rail here carries nothing, which the text behind the verdict tells.
pub(super) fn is_silent(evidence: &Evidence, rail: &str) -> bool {
    is_among(&evidence.local.down, rail, evidence.ways)
}

fn is_among(down: &[DownRail], name: &str, ways: u64) -> bool {
    down.iter().any(|one| one.name == name && !carries(one, ways))
}

/// Whether a rail that was down held the others up: it went down in this sample, its chunks were sent again, or it was
/// down in a sample that the rate is a mean of.
pub(super) fn disturbs(evidence: &Evidence) -> bool {
    let mut elsewhen = evidence.down_elsewhen.iter().flatten();
    let was_down = evidence.is_mixed && elsewhen.any(|rail| rail.why.is_fault());
    went(evidence) || was_down || evidence.has_resent
}

/// Returns whether a rail went down during the sample. Its bytes count in the rate, but its capacity is unknown.
pub(super) fn went(evidence: &Evidence) -> bool {
    evidence.local.down.iter().chain(&evidence.peer.down).any(|rail| rail.went)
}

/// Whether a rail on which connections of its own end fail carries in the only direction in use.
fn carries(rail: &DownRail, ways: u64) -> bool {
    rail.receives && ways == 1
}

/// Nothing else is the limit.
pub(super) fn rails_down(evidence: &Evidence) -> Option<Candidate> {
    let rails = evidence.rails.len().max(1);
    let elsewhen = evidence.down_elsewhen.iter().flatten();
    let mut all = evidence.local.down.iter().chain(&evidence.peer.down).chain(elsewhen);
    let waited = match evidence.has_resent {
        true => {
            "; transfers waited for a rail that was down, and its chunks went out again on others"
        }
        false => "",
    };
    let because = format!(
        "{} GB/s were what the rails carried that were up, of {rails} here{waited}",
        show_gb_per_s(evidence.gb_per_s)
    );
    let (kind, cause) = (LimitKind::Network, Cause::RailDown);
    let candidate = Candidate { kind, cause, share: 1.0, from: 1.0, because };
    all.any(|rail| rail.why.is_fault() && !carries(rail, evidence.ways)).then_some(candidate)
}

/// The rails of both ends that carried nothing in some sample, why, and what to look at: a line for each, behind any
/// verdict. A rail may be back when the line is printed, so its fault is in the past tense.
pub(super) fn names(evidence: &Evidence) -> Vec<String> {
    let [here, there] = &evidence.down_elsewhen;
    let here = [&*evidence.local.down, here].concat();
    let there = [&*evidence.peer.down, there].concat();
    let mut lines = of_end(&here, HERE);
    lines.extend(of_end(&there, THERE));
    lines
}

pub(super) const HERE: &str = "here";
pub(super) const THERE: &str = "at the other side";

/// The causes that [`names`] names.
pub(super) fn causes(evidence: &Evidence) -> impl Iterator<Item = Cause> {
    let elsewhen = evidence.down_elsewhen.iter().flatten();
    let all = evidence.local.down.iter().chain(&evidence.peer.down).chain(elsewhen);
    all.map(|rail| match rail.why {
        WhyDown::Interface | WhyDown::Gone | WhyDown::NoRail | WhyDown::Disconnected => {
            Cause::RailDown
        }
        WhyDown::NoChannel { .. } => Cause::NoChannel,
        WhyDown::NoPartner => Cause::NoPartner,
    })
}

/// Rails that are left out for one reason are named together.
pub(super) fn of_end(rails: &[DownRail], place: &str) -> Vec<String> {
    let mut reasons: Vec<(&DownRail, Vec<&DownRail>)> = Vec::new();
    for rail in rails {
        let is_same = |one: &DownRail| (one.why, &one.because) == (rail.why, &rail.because);
        match reasons.iter_mut().find(|(one, _)| is_same(one) && !one.why.is_fault()) {
            Some((_, same)) => same.push(rail),
            None => reasons.push((rail, vec![rail])),
        }
    }
    let told = |(first, rails): (&DownRail, Vec<&DownRail>)| {
        let (why, interface) = (first.why, &first.interface);
        let names: Vec<&str> = rails.iter().map(|rail| rail.name.as_str()).collect();
        let (names, is) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
        let words = words(first, if place == HERE { "this end" } else { "that end" });
        if why == WhyDown::Disconnected && first.receives {
            let (from, to, sender) = match place == HERE {
                true => ("here", "the other side", "the other side"),
                false => ("the other side", "here", "this end"),
            };
            return format!(
                "{names} {place}: connections from {from} to {to} failed: {words}; what {sender} sent passed (look at \
                 firewalls of both ends and between them)"
            );
        }
        // Each fault has a sentence of its own.
        let state = match why {
            WhyDown::Disconnected => "not connected",
            WhyDown::Gone => "lost",
            _ => "down",
        };
        match why.is_fault() {
            true => format!(
                "{names} {place} was {state}: {words} ({})",
                look(why, &words, interface, place)
            ),
            false => format!("{names} {place} {is} not used: {words}"),
        }
    };
    // One line each, whatever the other host says.
    reasons.into_iter().map(told).map(|line| line.replace('\n', " ")).collect()
}

/// Returns a hint where to look, chosen by the reason.
fn look(why: WhyDown, words: &str, interface: &str, place: &str) -> String {
    if why == WhyDown::Gone {
        return format!(
            "it is used again once that is back; the program {place} started again takes what is there then"
        );
    }
    if words.contains("firewall") {
        return "look at firewalls and routes of both ends and between them, and at `polyrail doctor` \
                of both"
            .to_owned();
    }
    if words.contains("MTU") {
        return format!(
            "look at `ip link show {interface}` at both ends and at the MTU of each switch and tunnel between them; \
             `ping -M do -s 1400 ADDRESS` tries one size"
        );
    }
    format!("look at `ip -s link show {interface}` and `polyrail doctor` {place}")
}

/// The fact in words; `end` is the one that has the rail.
fn words(rail: &DownRail, end: &str) -> String {
    let because = |otherwise: &str| rail.because.clone().unwrap_or_else(|| otherwise.to_owned());
    match rail.why {
        WhyDown::Interface | WhyDown::NoRail => {
            let words = "its interface was down or had no carrier";
            let is_none = rail.why == WhyDown::NoRail;
            words.to_owned() + if is_none { ", so the engine has no such rail" } else { "" }
        }
        WhyDown::Gone => because("its interface does not exist any more"),
        WhyDown::Disconnected => because("none of its flows was connected"),
        WhyDown::NoChannel { channels, rails } => {
            let channels = counted(channels.into(), "channel");
            format!("{end} has {channels} for {rails} rails (setting `channels`)")
        }
        WhyDown::NoPartner => because("it is paired with no rail of the end opposite"),
    }
}
