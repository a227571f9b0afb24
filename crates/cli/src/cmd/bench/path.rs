//! Which way the bytes take between two memories, and why: the engine's choice, for people.

use polyrail::{PathKind, PreparedTransfer, TransferPath};
use polyrail_report::{PathConsidered, PathTaken, show_size};

/// The name of the way over rails.
pub(super) const TCP: &str = "tcp";
const PEER_COPY: &str = "peer copy";

/// The way of a request, with all that were looked at.
pub(super) fn path_of(prepared: &PreparedTransfer) -> PathTaken {
    explain(prepared.path())
}

/// For people: the ways of these sizes, each once.
pub(super) fn explanation<'p>(paths: impl IntoIterator<Item = (u64, &'p PathTaken)>) -> String {
    let mut groups: Vec<(Vec<String>, &PathTaken)> = Vec::new();
    for (size, path) in paths {
        match groups.iter_mut().find(|(_, other)| *other == path) {
            Some((sizes, _)) => sizes.push(show_size(size)),
            None => groups.push((vec![show_size(size)], path)),
        }
    }
    let group = |(sizes, path): &(Vec<String>, &PathTaken)| {
        let mut text = format!("path of {}: {}\n", sizes.join(", "), path.taken);
        for way in &path.considered {
            let verdict = if way.is_possible { "possible" } else { "not possible" };
            text += &format!("  {}: {verdict}: {}\n", way.path, way.why);
        }
        text
    };
    groups.iter().map(group).collect()
}

/// The rails lead everywhere and are the last choice, so that whatever speaks for them speaks
/// against the copies.
fn explain(path: &TransferPath) -> PathTaken {
    let why = path.reason.to_string();
    let is_tcp = path.kind == PathKind::Tcp;
    let rails = if is_tcp { "nothing better is" } else { "the next choice" };
    let considered = vec![
        PathConsidered { path: PEER_COPY.into(), is_possible: !is_tcp, why: why.clone() },
        PathConsidered { path: TCP.into(), is_possible: true, why: rails.into() },
    ];
    let taken = if is_tcp { TCP } else { PEER_COPY }.to_owned();
    PathTaken { taken, why, considered }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_for_the_rails_speaks_against_copies() {
        let path = |kind| TransferPath { kind, reason: "of something".into() };
        let (tcp, copy) = (explain(&path(PathKind::Tcp)), explain(&path(PathKind::PeerCopy)));
        assert_eq!(
            explanation([(8, &tcp), (1 << 20, &tcp), (1 << 30, &copy)]),
            "path of 8B, 1MiB: tcp\n  peer copy: not possible: of something\n  \
             tcp: possible: nothing better is\n\
             path of 1GiB: peer copy\n  peer copy: possible: of something\n  \
             tcp: possible: the next choice\n"
        );
    }
}
