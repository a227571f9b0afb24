//! CPUs per interface: `eth1:8-21,112-125;eth2:22-35`.
//!
//! The grammar is that of NCCL's GPUDirect-TCPX plugin, extended by single CPUs, spaces, and one entry without an
//! interface, such as `8-21`, for all other interfaces. That plugin silently accepts mistakes, such as a repeated name
//! or letters in a number. This parser reports them.

use polyrail_yaml::excerpt;

use crate::cpus::{CpuListError, parse_cpulist};

/// Name in messages of the entry without an interface.
pub const OTHERS: &str = "any other interface";

/// Maximum interfaces that bindings may name: as many as an engine has rails.
const INTERFACES_MAX: usize = 64;

/// Maximum length of an interface name in the kernel.
const LONGEST_NAME_BYTES: usize = 15;

/// An interface, or all other interfaces, and the CPUs of the threads that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the interface, or `None` for all other interfaces. The interface need not exist.
    pub interface: Option<String>,
    /// CPUs in ascending order; never empty. Whether they exist is not checked.
    pub cpus: Vec<u32>,
    /// Position of the entry's first character in the text, counted from 1.
    pub column: usize,
}

/// Error in a text that is not valid bindings, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (column {column})")]
pub struct BindingsError {
    /// Position of the first wrong character, counted from 1.
    pub column: usize,
    /// Fault at that position.
    pub fault: BindingsFault,
}

/// Fault of bindings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindingsFault {
    /// Nothing between two semicolons, or before the first.
    #[error("has nothing before a semicolon")]
    EmptyEntry,
    /// An entry has no colon and is not a list of CPUs.
    #[error("has `{0}` without a colon between interface and CPUs")]
    NoColon(String),
    /// The text before the colon can't be the name of an interface.
    #[error("has `{0}`, which can't be the name of an interface")]
    BadName(String),
    /// A second entry for an interface, or for [`OTHERS`].
    #[error("has {0} twice")]
    Twice(String),
    /// An interface without CPUs.
    #[error("has no CPUs for {0}")]
    NoCpus(String),
    /// The CPUs of an interface are not a valid list.
    #[error("has a list for {interface} that {source}")]
    Cpus {
        /// Name of the interface, or [`OTHERS`].
        interface: String,
        /// Fault of the list: a phrase that follows its name.
        source: CpuListError,
    },
    /// More interfaces than an engine can have rails.
    #[error("has more than {INTERFACES_MAX} interfaces")]
    TooMany,
}

impl BindingsError {
    /// Returns a correction, if one is known.
    pub fn help(&self) -> Option<String> {
        let example = "write them like eth1:8-21,112-125;eth2:22-35, or 8-21 for all interfaces";
        match &self.fault {
            BindingsFault::Twice(name) if name == OTHERS => {
                Some("write one list of CPUs without an interface, with commas".to_owned())
            }
            BindingsFault::Twice(name) => {
                Some(format!("write {name} once, with all its CPUs after one colon"))
            }
            BindingsFault::TooMany => None,
            _ => Some(example.to_owned()),
        }
    }
}

/// Reads bindings in the order of the text; the empty text means no bindings. A semicolon at the
/// end is ignored, and so are spaces around names, numbers and signs.
///
/// # Errors
/// [`BindingsError`] with the column.
pub fn parse_bindings(text: &str) -> Result<Vec<Binding>, BindingsError> {
    let mut bindings: Vec<Binding> = Vec::new();
    if text.trim().is_empty() {
        return Ok(bindings);
    }
    let entries: Vec<&str> = text.split(';').collect();
    let mut start = 1;
    for (at, entry) in entries.iter().enumerate() {
        let column = start + indent(entry);
        start += entry.chars().count() + 1;
        if entry.trim().is_empty() {
            let is_last = at + 1 == entries.len() && at > 0;
            if is_last {
                continue;
            }
            return Err(BindingsError { column, fault: BindingsFault::EmptyEntry });
        }
        let binding = binding(entry, column)?;
        if bindings.iter().any(|other| other.interface == binding.interface) {
            let fault = BindingsFault::Twice(binding.interface.unwrap_or(OTHERS.to_owned()));
            return Err(BindingsError { column, fault });
        }
        bindings.push(binding);
        if bindings.iter().filter(|one| one.interface.is_some()).count() > INTERFACES_MAX {
            return Err(BindingsError { column, fault: BindingsFault::TooMany });
        }
    }
    Ok(bindings)
}

/// Parses an entry. `column` is where the entry begins, without the spaces before it.
fn binding(entry: &str, column: usize) -> Result<Binding, BindingsError> {
    let entry = entry.trim();
    let fail = |column, fault| Err(BindingsError { column, fault });
    let (interface, list, list_column) = match entry.split_once(':') {
        Some((name, list)) => {
            let interface = name.trim().to_owned();
            if !is_interface(&interface) {
                return fail(column, BindingsFault::BadName(excerpt(&interface)));
            }
            (Some(interface), list, column + name.chars().count() + 1)
        }
        None if is_list(entry) => (None, entry, column),
        None => return fail(column, BindingsFault::NoColon(excerpt(entry))),
    };
    let named = || interface.clone().unwrap_or(OTHERS.to_owned());
    if list.trim().is_empty() {
        return fail(list_column, BindingsFault::NoCpus(named()));
    }
    match parse_cpulist(list) {
        Ok(cpus) => Ok(Binding { interface, cpus, column }),
        Err((offset, source)) => {
            fail(list_column + offset, BindingsFault::Cpus { interface: named(), source })
        }
    }
}

/// Returns whether the text must be meant as a list of CPUs.
fn is_list(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c.is_whitespace() || "-,".contains(c))
}

/// Returns whether the kernel and this grammar accept the text as a name.
fn is_interface(name: &str) -> bool {
    let is_fine = |c: char| !c.is_whitespace() && !polyrail_yaml::steers(c) && !"/:;,".contains(c);
    !matches!(name, "" | "." | "..")
        && name.len() <= LONGEST_NAME_BYTES
        && name.chars().all(is_fine)
}

fn indent(text: &str) -> usize {
    text.chars().take_while(|c| c.is_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn interfaces_keep_their_order_and_singles_and_spaces_are_fine() {
        let bindings = parse_bindings(" eth10: 5 ;eth1:8-9,112;").unwrap();
        let seen: Vec<_> = bindings
            .iter()
            .map(|b| (b.interface.as_deref(), b.cpus.as_slice(), b.column))
            .collect();
        let wanted =
            [(Some("eth10"), [5].as_slice(), 2), (Some("eth1"), [8, 9, 112].as_slice(), 12)];
        assert_eq!(seen, wanted);
        assert_eq!(parse_bindings(" "), Ok(vec![]));
    }

    #[test]
    fn one_entry_may_have_no_interface_wherever_it_stands() {
        for (text, column) in [("8-9", 1), (" 8,9 ;", 2), ("eth1:3; 9,8", 9), ("8-9;eth1:3", 1)] {
            let bindings = parse_bindings(text).unwrap();
            let others: Vec<_> = bindings.iter().filter(|one| one.interface.is_none()).collect();
            assert_eq!(others, [&Binding { interface: None, cpus: vec![8, 9], column }], "{text}");
            assert_eq!(bindings.len(), 1 + usize::from(text.contains("eth1")), "{text}");
        }
    }

    #[test]
    fn each_fault_is_named_at_its_column() {
        use BindingsFault::*;
        let cpus = |source| Cpus { interface: "eth1".into(), source };
        let others = |source| Cpus { interface: OTHERS.into(), source };
        for (text, column, fault) in [
            ("eth1", 1, NoColon("eth1".into())),
            ("8-21,x", 1, NoColon("8-21,x".into())),
            ("8-21;22-35", 6, Twice(OTHERS.into())),
            ("8-21,,22", 6, others(CpuListError::EmptyItem)),
            ("eth1:8; 9000", 9, others(CpuListError::TooHigh("9000".into()))),
            ("eth1:8;eth2", 8, NoColon("eth2".into())),
            (";eth1:8", 1, EmptyEntry),
            (";", 1, EmptyEntry),
            ("eth1:8;;eth2:9", 8, EmptyEntry),
            (":8", 1, BadName(String::new())),
            ("eth/1:8", 1, BadName("eth/1".into())),
            ("an_interface_too_long:8", 1, BadName("an_interface_too_long".into())),
            ("eth1:8;eth10:9; eth1:10", 17, Twice("eth1".into())),
            ("eth1:", 6, NoCpus("eth1".into())),
            ("eth1: ;eth2:3", 6, NoCpus("eth1".into())),
            ("eth1:8-21, 9-8", 12, cpus(CpuListError::Reversed { first: 9, last: 8 })),
            ("eth1:8,,9", 8, cpus(CpuListError::EmptyItem)),
            ("eth1:0x8", 6, cpus(CpuListError::NotACpu("0x8".into()))),
            ("eth1:8:9", 6, cpus(CpuListError::NotACpu("8:9".into()))),
            ("eth1:0-9000", 6, cpus(CpuListError::TooHigh("9000".into()))),
        ] {
            let error = parse_bindings(text).unwrap_err();
            assert_eq!(error, BindingsError { column, fault }, "{text}");
            assert!(error.help().is_some());
        }
        let many: String = (0..65).map(|at| format!("e{at}:0;")).collect();
        assert_eq!(parse_bindings(&many).unwrap_err().fault, TooMany);
    }

    #[test]
    fn the_message_says_interface_fault_and_column() {
        let message = parse_bindings("eth1:0-3;eth2:x").unwrap_err().to_string();
        assert_eq!(
            message,
            "has a list for eth2 that has the item `x`, which is neither a CPU nor a range of CPUs \
             (column 15)"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_columns_are_in_the_text(text in "[a-z0-9:;,\\- ]*|\\PC*") {
            if let Err(error) = parse_bindings(&text) {
                prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
            }
        }
    }
}
