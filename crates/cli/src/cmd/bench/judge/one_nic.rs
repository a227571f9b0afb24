//! Limit of rails in one subnet whose bytes arrive through another rail's NIC, because of the kernel's defaults for
//! ARP.

use polyrail_report::{LimitKind, show_gb_per_s};

use super::causes::Cause;
use super::down::{HERE, THERE};
use super::evidence::Evidence;
use super::rules::Candidate;
use crate::cmd::bench::talk::OneNic;

/// Returns the candidate for a NIC that receives nearly all bytes. It counts only if nothing else is the limit.
pub(super) fn limit(evidence: &Evidence) -> Option<Candidate> {
    let (_, found) = ends(evidence).find(|(_, found)| found.share >= NEARLY_ALL)?;
    // Fewer outstanding bytes are limited by latency.
    if evidence.depth.saturating_mul(evidence.size) < LEAST_OUTSTANDING {
        return None;
    }
    let because = format!(
        "{} GB/s arrive, nearly all by NIC {}",
        show_gb_per_s(evidence.gb_per_s),
        found.interface
    );
    let (kind, cause) = (LimitKind::Network, Cause::OneNic);
    Some(Candidate { kind, cause, share: 1.0, from: 1.0, because })
}

/// Returns the candidate for several NICs that receive, some of them for other rails. It counts only if nothing else is
/// the limit.
pub(super) fn shared(evidence: &Evidence) -> Option<Candidate> {
    ends(evidence).next()?;
    let because = format!(
        "{} GB/s arrive, some of them by NICs of other rails",
        show_gb_per_s(evidence.gb_per_s)
    );
    let (kind, cause) = (LimitKind::Network, Cause::OneNic);
    Some(Candidate { kind, cause, share: 1.0, from: 1.0, because })
}

/// Describes the state of each end, and the settings that change it.
pub(super) fn names(evidence: &Evidence) -> impl Iterator<Item = String> {
    ends(evidence).map(|(place, found)| name(place, found))
}

pub(super) fn name(place: &str, OneNic { rails, interface, share }: &OneNic) -> String {
    let is_whole = *share >= NEARLY_ALL;
    let (rails, share) = (rails.join(", ").replace('\n', " "), share * 100.0);
    let other = if place == HERE { THERE } else { HERE };
    let and_others = if is_whole { "" } else { ", and some rails receive by other rails' NICs" };
    format!(
        "{rails} {place} are in one subnet, and {share:.0} % of what they receive arrives by {interface}{and_others}: by \
         the kernel's defaults any NIC answers ARP for all addresses of its host ({place}: `{SYSCTLS}`; then {other}: \
         `ip neigh flush all`)"
    )
}

/// Minimum share of one NIC that counts as receiving nearly everything.
const NEARLY_ALL: f64 = 0.9;
/// Minimum number of outstanding bytes for which a NIC can be the limit.
const LEAST_OUTSTANDING: u64 = 1 << 20;

pub(super) fn causes(evidence: &Evidence) -> impl Iterator<Item = Cause> {
    ends(evidence).map(|_| Cause::OneNic)
}

fn ends(evidence: &Evidence) -> impl Iterator<Item = (&'static str, &OneNic)> {
    let both = [(HERE, &evidence.local), (THERE, &evidence.peer)];
    both.into_iter().filter_map(|(place, load)| Some((place, load.one_nic.as_ref()?)))
}

const SYSCTLS: &str = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";
