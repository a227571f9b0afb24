//! Text about the path of the bytes between two memories: the engine's choice and its reasons, for people.

use polyrail::{Config, PathKind, PreparedTransfer, TransferPath};
use polyrail_config::Origin;
use polyrail_report::{PathConsidered, PathTaken, show_size};

/// Name of the path over rails.
pub(crate) const TCP: &str = "tcp";

/// Returns the path of a transfer, with all paths that were considered.
pub(crate) fn path_of(prepared: &PreparedTransfer, config: &Config) -> PathTaken {
    let mut path = explain(prepared.path());
    if let Some(Origin::Proposal { because }) = config.origin("path") {
        add_who_set_it(&mut path, because);
    }
    let near = prepared.near_rails();
    if !near.is_empty()
        && let Some(rails) = path.considered.last_mut()
    {
        rails.why += &format!("; those near its GPU go first: {}", near.join(", "));
    }
    path
}

/// Adds the origin of the setting to reasons that a setting forbids a path: the user has not set it.
fn add_who_set_it(path: &mut PathTaken, because: &str) {
    let ways = path.considered.iter_mut().map(|way| &mut way.why);
    for why in ways.chain([&mut path.why]).filter(|why| why.starts_with("the setting path says ")) {
        *why += &format!(" ({because})");
    }
}

/// Formats the paths of these sizes for people, each path once.
pub(crate) fn explanation<'p>(paths: impl IntoIterator<Item = (u64, &'p PathTaken)>) -> String {
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

/// Converts the engine's choice. The rails work everywhere and are the last choice.
fn explain(path: &TransferPath) -> PathTaken {
    let why = path.reason.to_string();
    let is_tcp = path.kind == PathKind::Tcp;
    let way = |kind: PathKind, is_possible, why: &str| PathConsidered {
        path: kind.name().into(),
        is_possible,
        why: why.into(),
    };
    let mut considered: Vec<_> =
        path.not_possible().iter().map(|(kind, why)| way(*kind, false, &why.to_string())).collect();
    match path.kind {
        // A reason for the rails alone is a reason against every other path.
        PathKind::Tcp if considered.is_empty() => {
            considered.push(way(PathKind::PeerCopy, false, &why));
        }
        PathKind::Tcp => {}
        other => considered.push(way(other, true, &why)),
    }
    let rails = if is_tcp { "no faster way is" } else { "the next choice" };
    considered.push(way(PathKind::Tcp, true, rails));
    PathTaken { taken: path.kind.name().to_owned(), why, considered }
}

#[cfg(test)]
mod tests {
    use polyrail::{PathObstacle, PathReason};

    use super::*;

    #[test]
    fn what_speaks_for_the_rails_speaks_against_copies() {
        let path = |kind| explain(&TransferPath::new(kind, PathReason::Setting));
        let (tcp, copy) = (path(PathKind::Tcp), path(PathKind::PeerCopy));
        assert_eq!(
            explanation([(8, &tcp), (1 << 20, &tcp), (1 << 30, &copy)]),
            "path of 8B, 1MiB: tcp\n  peer copy: not possible: the setting path says so\n  \
             tcp: possible: no faster way is\n\
             path of 1GiB: peer copy\n  peer copy: possible: the setting path says so\n  \
             tcp: possible: the next choice\n"
        );
    }

    #[test]
    fn a_setting_that_nobody_gave_is_told_with_who_did() {
        let path = TransferPath::new(PathKind::Tcp, PathObstacle::NoCopiesByCpus)
            .without(PathKind::PeerCopy, PathObstacle::Empty)
            .without(PathKind::SingleCopy, PathObstacle::NoCopiesByCpus);
        let mut path = explain(&path);
        add_who_set_it(&mut path, "by bench");
        let whys: Vec<&str> = path.considered.iter().map(|way| &*way.why).collect();
        let told = "the setting path says device (by bench)";
        assert_eq!(
            (&*path.why, whys),
            (told, vec!["there are no bytes", told, "no faster way is"])
        );
    }

    #[test]
    fn what_was_not_possible_is_said_before_what_is_taken() {
        let path = TransferPath::new(PathKind::Shared, PathReason::Setting)
            .without(PathKind::PeerCopy, PathObstacle::NearHostMemory);
        assert_eq!(
            explanation([(8, &explain(&path))]),
            "path of 8B: shared memory\n  peer copy: not possible: this end is host memory\n  \
             shared memory: possible: the setting path says so\n  tcp: possible: the next choice\n"
        );
    }
}
