//! The namespaces of a lab: its nodes, and the switch if the lab has one.

use std::fmt;
use std::str::FromStr;

use crate::error::LabError;
use crate::spec::{LabSpec, Side};

/// A node of a lab, by its number from 0; side a is node 0, and side b node 1.
///
/// A value may belong to a larger lab; functions refuse a node that their lab does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u8);

/// Arrangement of the namespaces of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Sides a and b, with a link per rail from one to the other.
    Pair,
    /// Nodes around one more namespace, with a bridge per rail.
    Switched {
        /// 2 to [`LabSpec::MAX_NODES`].
        nodes: usize,
    },
}

/// Maximum number of namespaces of one lab.
pub(crate) const MAX_SEATS: usize = LabSpec::MAX_NODES + 1;

impl Node {
    /// Node `index`, from 0.
    ///
    /// # Errors
    /// [`LabError::BadValue`] for a number above the maximum of a lab.
    pub fn new(index: usize) -> Result<Self, LabError> {
        let small = u8::try_from(index).ok().filter(|_| index < LabSpec::MAX_NODES);
        small.map(Self).ok_or_else(|| LabError::bad("node", index, allowed()))
    }

    /// The number, from 0.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The last number of this node's addresses.
    pub(crate) fn host(self) -> u8 {
        self.0 + 1
    }
}

impl From<Side> for Node {
    fn from(side: Side) -> Self {
        match side {
            Side::A => Self(0),
            Side::B => Self(1),
        }
    }
}

impl FromStr for Node {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        if let Ok(side) = text.parse::<Side>() {
            return Ok(side.into());
        }
        let digits = text.strip_prefix("node").unwrap_or(text);
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        let padded = digits.len() > 1 && digits.starts_with('0');
        let index = digits.parse().ok().filter(|_| plain && !padded);
        let bad = || LabError::bad("node", text, allowed());
        Self::new(index.ok_or_else(bad)?).map_err(|_| bad())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

impl Form {
    pub(crate) fn of(nodes: Option<usize>) -> Self {
        nodes.map_or(Self::Pair, |nodes| Self::Switched { nodes })
    }

    /// Derives the form of a lab from its number of namespaces alone.
    pub(crate) fn of_seats(seats: usize) -> Option<Self> {
        match seats {
            2 => Some(Self::Pair),
            3..=MAX_SEATS => Some(Self::Switched { nodes: seats - 1 }),
            _ => None,
        }
    }

    pub(crate) fn nodes(self) -> usize {
        match self {
            Self::Pair => 2,
            Self::Switched { nodes } => nodes,
        }
    }

    /// Every node, in order.
    pub(crate) fn all_nodes(self) -> impl Iterator<Item = Node> {
        // The number of nodes always fits in a byte.
        (0..self.nodes()).map(|index| Node(index as u8))
    }

    /// The seat of the switch, after the nodes.
    pub(crate) fn switch(self) -> Option<usize> {
        match self {
            Self::Pair => None,
            Self::Switched { nodes } => Some(nodes),
        }
    }

    /// Number of namespaces: the nodes, and then the switch.
    pub(crate) fn seats(self) -> usize {
        self.nodes() + usize::from(self.switch().is_some())
    }

    /// The last part of the namespace's name in the file system.
    pub(crate) fn suffix(self, seat: usize) -> String {
        match (self, seat) {
            (Self::Pair, 0) => "a".into(),
            (Self::Pair, _) => "b".into(),
            (Self::Switched { nodes }, seat) if seat == nodes => SWITCH.into(),
            (Self::Switched { .. }, seat) => format!("node{seat}"),
        }
    }

    /// Names the namespace for messages.
    pub(crate) fn title(self, seat: usize) -> String {
        match (self, seat) {
            (Self::Pair, _) => format!("side {}", self.suffix(seat)),
            (Self::Switched { nodes }, seat) if seat == nodes => "the switch".into(),
            (Self::Switched { .. }, seat) => format!("node {seat}"),
        }
    }

    /// Derives the form of a lab from its remaining suffixes alone.
    pub(crate) fn of_suffixes<'a>(suffixes: impl Iterator<Item = &'a str>) -> Self {
        let nodes = suffixes.filter_map(|suffix| match suffix {
            SWITCH => Some(2),
            _ => Some(suffix.strip_prefix("node")?.parse::<Node>().ok()?.index() + 1),
        });
        Self::of(nodes.max().map(|nodes| nodes.max(2)))
    }

    /// Whether the text is a possible last part of a namespace's name.
    pub(crate) fn is_suffix(text: &str) -> bool {
        let is_node = || {
            let digits = text.strip_prefix("node").unwrap_or_default();
            digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<Node>().is_ok()
        };
        matches!(text, "a" | "b" | SWITCH) || is_node()
    }
}

const SWITCH: &str = "switch";

fn allowed() -> String {
    format!("a, b, or 0 to {}", LabSpec::MAX_NODES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_by_letter_number_or_name() {
        for (text, index) in [("a", 0), ("B", 1), ("0", 0), ("7", 7), ("node31", 31)] {
            assert_eq!(text.parse::<Node>().unwrap().index(), index, "{text}");
        }
        for text in ["", "c", "32", "01", "-1", "+1", "node", "node032", "nodenode1", "node-1"] {
            let error = text.parse::<Node>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("node `{text}`")), "{error}");
            assert!(error.ends_with("a, b, or 0 to 31"), "{error}");
        }
    }

    #[test]
    fn what_is_left_of_a_lab_tells_its_form() {
        let form = |names: &[&'static str]| Form::of_suffixes(names.iter().copied());
        assert_eq!(form(&["a"]), Form::Pair);
        assert_eq!(form(&[]), Form::Pair);
        assert_eq!(form(&["switch"]), Form::Switched { nodes: 2 });
        assert_eq!(form(&["node0", "node4", "switch"]), Form::Switched { nodes: 5 });
        assert_eq!(Form::of_seats(2), Some(Form::Pair));
        assert_eq!(Form::of_seats(9), Some(Form::Switched { nodes: 8 }));
        assert_eq!((Form::of_seats(1), Form::of_seats(MAX_SEATS + 1)), (None, None));
    }

    #[test]
    fn every_namespace_of_a_lab_has_a_name_of_its_own_that_is_known_again() {
        for form in [Form::Pair, Form::Switched { nodes: 2 }, Form::Switched { nodes: 32 }] {
            let names = (0..form.seats()).map(|seat| form.suffix(seat)).collect::<Vec<_>>();
            assert!(names.iter().all(|name| Form::is_suffix(name)), "{names:?}");
            assert_eq!(Form::of_suffixes(names.iter().map(String::as_str)), form);
        }
        for other in ["", "c", "node", "node32", "nodea", "switch0", "node01", "nodenode1"] {
            assert!(!Form::is_suffix(other), "{other}");
        }
    }
}
