//! Slurm's lists of hosts: `node[01-04,7],gpu-a[1-2]b`.

/// Maximum number of hosts in a list, far above any job.
const MOST_HOSTS: usize = 100_000;
/// Maximum length of a host name.
const LONGEST_BYTES: usize = 253;

/// Error for an invalid list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodelistError {
    #[error("has an empty item")]
    EmptyItem,
    #[error("has a bracket that is not closed, or not opened")]
    Bracket,
    #[error("has `{0}` in brackets, which is no number and no range")]
    Range(String),
    #[error("has `{0}`, which is no name of a host")]
    Name(String),
    #[error("names more than {MOST_HOSTS} hosts")]
    TooMany,
}

/// Returns all hosts of a list, in its order.
pub(crate) fn expand(list: &str) -> Result<Vec<String>, NodelistError> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        // Prefixes so far. Each bracket multiplies them.
        let mut begun = vec![String::new()];
        let mut rest = item;
        while let Some((before, behind)) = rest.split_once('[') {
            let (ranges, after) = behind.split_once(']').ok_or(NodelistError::Bracket)?;
            let numbers = numbers(ranges)?;
            if begun.len().saturating_mul(numbers.len()) > MOST_HOSTS {
                return Err(NodelistError::TooMany);
            }
            begun = begun
                .iter()
                .flat_map(|begin| {
                    numbers.iter().map(move |number| format!("{begin}{before}{number}"))
                })
                .collect();
            rest = after;
        }
        if hosts.len() + begun.len() > MOST_HOSTS {
            return Err(NodelistError::TooMany);
        }
        for begin in begun {
            hosts.push(checked(format!("{begin}{rest}"))?);
        }
    }
    Ok(hosts)
}

/// Splits a list at commas outside of brackets.
fn items(list: &str) -> Result<Vec<&str>, NodelistError> {
    let (mut items, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, one) in list.char_indices() {
        match one {
            '[' if is_inside => return Err(NodelistError::Bracket),
            ']' if !is_inside => return Err(NodelistError::Bracket),
            '[' | ']' => is_inside = !is_inside,
            ',' if !is_inside => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[begin..]);
    match items.iter().any(|item| item.is_empty()) {
        true => Err(NodelistError::EmptyItem),
        false => Ok(items),
    }
}

/// Expands `01-03,7` to 01, 02, 03, 7. Numbers are padded to the width of the first one of their range.
fn numbers(ranges: &str) -> Result<Vec<String>, NodelistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let wrong = || NodelistError::Range(range.chars().take(40).collect());
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.bytes().all(|one| one.is_ascii_digit()) {
            true if text.len() <= 9 => text.parse::<usize>().map_err(|_| wrong()),
            _ => Err(wrong()),
        };
        let (from, to, width) = (number(first)?, number(last)?, first.len());
        if from > to {
            return Err(wrong());
        }
        if to - from >= MOST_HOSTS || numbers.len() + (to - from) >= MOST_HOSTS {
            return Err(NodelistError::TooMany);
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

fn checked(name: String) -> Result<String, NodelistError> {
    let is_known = |one: u8| one.is_ascii_alphanumeric() || b".-_".contains(&one);
    match name.len() <= LONGEST_BYTES && name.bytes().all(is_known) {
        true => Ok(name),
        false => Err(NodelistError::Name(name.chars().take(40).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm_are_expanded_in_order() {
        for (list, hosts) in [
            ("node1", "node1"),
            ("a,b.example.org,c-1", "a b.example.org c-1"),
            ("node[01-04,7]", "node01 node02 node03 node04 node7"),
            ("node[01-02],gpu-a[1-2]b", "node01 node02 gpu-a1b gpu-a2b"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("r[1-2]n[1,3]", "r1n1 r1n3 r2n1 r2n3"),
            ("[1-2]", "1 2"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), hosts, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (list, error) in [
            ("", NodelistError::EmptyItem),
            ("a,,b", NodelistError::EmptyItem),
            ("a[1-2", NodelistError::Bracket),
            ("a]1", NodelistError::Bracket),
            ("a[[1]]", NodelistError::Bracket),
            ("a[]", NodelistError::Range(String::new())),
            ("a[3-1]", NodelistError::Range("3-1".to_owned())),
            ("a[x-z]", NodelistError::Range("x-z".to_owned())),
            ("a[-5]", NodelistError::Range("-5".to_owned())),
            ("a[99999999999]", NodelistError::Range("99999999999".to_owned())),
            ("a b", NodelistError::Name("a b".to_owned())),
            ("a/../b", NodelistError::Name("a/../b".to_owned())),
            ("a[0-999999999]", NodelistError::TooMany),
            ("a[1-99999],b[1-99999]", NodelistError::TooMany),
            ("a[1-999][1-999]", NodelistError::TooMany),
            ("a[1-9][1-9][1-9][1-9][1-9][1-9][1-9][1-9][1-9][1-9]", NodelistError::TooMany),
        ] {
            assert_eq!(expand(list).unwrap_err(), error, "{list}");
        }
        let long = "x".repeat(300);
        assert!(matches!(expand(&long), Err(NodelistError::Name(_))));
    }
}
