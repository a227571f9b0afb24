//! Rails that carry nothing while others do.

use polyrail_report::{LimitKind, counted, show_gb_per_s};

use super::causes::Cause;
use super::evidence::{Evidence, Line};
use super::rules::Candidate;
use crate::cmd::bench::talk::{DownRail, WhyDown};

/// Returns the maximum rates of this end's rails, without those that carry nothing.
pub(super) fn line_of_others(evidence: &Evidence) -> Option<Line> {
    without(evidence.line.as_ref()?, &evidence.local.down, evidence.ways)
}

/// Works like [`line_of_others`] for the end whose rails carry less: every byte uses a rail of each end.
pub(super) fn narrower_line(evidence: &Evidence) -> Option<Line> {
    let there = evidence.peer_line.as_ref();
    let there = there.and_then(|line| without(line, &evidence.peer.down, evidence.ways));
    match (line_of_others(evidence), there) {
        (Some(here), Some(there)) if here.gb_per_s() <= there.gb_per_s() => Some(here),
        (here, there) => there.or(here),
    }
}

/// Removes the rails that carry nothing. Returns `None` if no rail is left.
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

/// Whether a rail of this end carries nothing. The text after the verdict names it.
pub(super) fn is_silent(evidence: &Evidence, rail: &str) -> bool {
    is_among(&evidence.local.down, rail, evidence.ways)
}

fn is_among(down: &[DownRail], name: &str, ways: u64) -> bool {
    down.iter().any(|one| one.name == name && !carries(one, ways))
}

/// Whether a rail that was down delayed the others: it was down for part of the time, or its chunks were resent.
pub(super) fn disturbs(evidence: &Evidence) -> bool {
    is_in_part(evidence) || evidence.has_resent
}

/// Whether a rail was down for part of the time behind the rate: within the sample, or in one of the samples behind the
/// mean rate. Its bytes count in the rate, but not the bytes that it could have carried otherwise.
pub(super) fn is_in_part(evidence: &Evidence) -> bool {
    evidence.down_in_some
        || evidence.local.down.iter().chain(&evidence.peer.down).any(|rail| rail.went)
}

/// Whether the rail still carries the only direction in use, although connections from its own end fail.
fn carries(rail: &DownRail, ways: u64) -> bool {
    rail.receives && ways == 1
}

/// Returns the candidate for rails that are down. It counts only if nothing else is the limit.
pub(super) fn rails_down(evidence: &Evidence) -> Option<Candidate> {
    let rails = evidence.rails.len().max(1);
    let elsewhen = evidence.down_elsewhen.iter().flatten();
    let mut all = evidence.local.down.iter().chain(&evidence.peer.down).chain(elsewhen);
    let waited = match evidence.has_resent {
        true => {
            "; transfers waited for a rail that failed, and its chunks went out again on others"
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

/// Names the rails of both ends that carried nothing in some sample, with the reason and the place to look: a line
/// each, after any verdict. A rail may be up again when the line is printed, so its fault is in the past tense.
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

/// Returns the causes of the rails that [`names`] names.
pub(super) fn causes(evidence: &Evidence) -> impl Iterator<Item = Cause> {
    let elsewhen = evidence.down_elsewhen.iter().flatten();
    let all = evidence.local.down.iter().chain(&evidence.peer.down).chain(elsewhen);
    all.map(|rail| match rail.why {
        WhyDown::NoChannel { .. } => Cause::NoChannel,
        WhyDown::NoPartner => Cause::NoPartner,
        _ => Cause::RailDown,
    })
}

/// Names rails that are left out for the same reason together.
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
        // Each kind of fault has its own sentence.
        let [was_down, was_not_connected, was_lost] = DOWN;
        let state = match why {
            WhyDown::Disconnected => was_not_connected,
            WhyDown::Gone => was_lost,
            WhyDown::Lost => "lost its connections for a time",
            _ => was_down,
        };
        match why.is_fault() {
            true => format!(
                "{names} {place} {state}: {words} ({})",
                look(why, &words, interface, place)
            ),
            false => format!("{names} {place} {is} not used: {words}"),
        }
    };
    // Each line stays one line, whatever text the other host sends.
    reasons.into_iter().map(told).map(|line| line.replace('\n', " ")).collect()
}

/// States of rails that were down, in words.
const DOWN: [&str; 3] = ["was down", "was not connected", "was lost"];

/// Whether a line of [`names`] is about a rail that was down, and not about one that the settings leave unused.
pub(crate) fn names_down(line: &str) -> bool {
    let places = [HERE, THERE];
    let is_state = |place| DOWN.iter().any(|state| line.contains(&format!(" {place} {state}: ")));
    places.into_iter().any(is_state)
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

/// Describes the fact; `end` names the end that has the rail.
pub(crate) fn words(rail: &DownRail, end: &str) -> String {
    let because = |otherwise: &str| rail.because.clone().unwrap_or_else(|| otherwise.to_owned());
    match rail.why {
        WhyDown::Interface | WhyDown::NoRail => {
            let words = "its interface was down or had no carrier";
            let is_none = rail.why == WhyDown::NoRail;
            words.to_owned() + if is_none { ", so the engine has no such rail" } else { "" }
        }
        WhyDown::Gone => because("its interface does not exist any more"),
        WhyDown::Disconnected => because("none of its flows was connected"),
        WhyDown::Lost => because("they died with chunks under way"),
        WhyDown::NoChannel { channels, rails } => {
            let channels = counted(channels.into(), "channel");
            format!("{end} has {channels} for {rails} rails (setting `channels`)")
        }
        WhyDown::NoPartner => because("it is paired with no rail of the end opposite"),
    }
}
