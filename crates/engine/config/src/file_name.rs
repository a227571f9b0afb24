//! File names that contain the host's name and the process number.

use polyrail_yaml::harmless;

use crate::invalid::Invalid;

/// Expands a file name of the settings: `%h` becomes the host's name, `%p` the process number, `%%` a per cent sign.
///
/// This way many processes on many machines may share one setting. Any other `%` is unchanged; a [`crate::Config`] has
/// none.
pub fn expand_file_name(template: &str, host: &str, pid: u32) -> String {
    let mut name = String::with_capacity(template.len() + host.len());
    let mut rest = template;
    while let Some(at) = rest.find('%') {
        name.push_str(&rest[..at]);
        let filled = match rest.as_bytes().get(at + 1) {
            Some(b'h') => Some(host.to_owned()),
            Some(b'p') => Some(pid.to_string()),
            Some(b'%') => Some("%".to_owned()),
            _ => None,
        };
        // An unknown mark keeps its `%`, and the rest is read as ordinary text.
        let used = if filled.is_some() { 2 } else { 1 };
        name.push_str(filled.as_deref().unwrap_or("%"));
        rest = &rest[at + used..];
    }
    name.push_str(rest);
    name
}

/// Refuses marks that [`expand_file_name`] would not expand.
pub(crate) fn check(template: &str) -> Result<(), Invalid> {
    let mut characters = template.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            continue;
        }
        match characters.next() {
            Some('h' | 'p' | '%') => {}
            Some(other) => {
                let reason =
                    format!("has the unknown mark `%{}`", harmless(&other.to_string(), &[]));
                return Err(Invalid::because(reason).help(MARKS));
            }
            None => return Err(Invalid::because("ends in a single `%`").help(MARKS)),
        }
    }
    Ok(())
}

const MARKS: &str = "%h is the host's name, %p the process number, %% a per cent sign";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_process_are_filled_in() {
        assert_eq!(expand_file_name("log.%h.%p.txt", "node1", 42), "log.node1.42.txt");
        assert_eq!(expand_file_name("100%%-%h%h", "é", 1), "100%-éé");
        assert_eq!(expand_file_name("plain", "node1", 42), "plain");
        assert_eq!(expand_file_name("%", "node1", 42), "%");
        assert_eq!(expand_file_name("%é", "node1", 42), "%é");
    }

    #[test]
    fn an_unknown_mark_is_refused() {
        assert_eq!(check("a%d").unwrap_err().reason, "has the unknown mark `%d`");
        assert_eq!(check("a%").unwrap_err().reason, "ends in a single `%`");
        assert_eq!(check("%h-%p-%%"), Ok(()));
    }
}
