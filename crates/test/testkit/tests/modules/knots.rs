//! The list of known knots, and its comparison with the found ones.

use std::collections::BTreeMap;

/// Knots by folder, each as the sorted names of its members.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    by_folder: BTreeMap<String, Vec<Vec<String>>>,
}

impl Listed {
    /// Reads the list: a line with a folder begins a knot, and indented lines name its members.
    ///
    /// # Errors
    ///
    /// The first invalid line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut this = Self::default();
        let mut folder: Option<&str> = None;
        for (at, line) in text.lines().enumerate() {
            let fault = |what: &str| Err(format!("line {} {what}: {line}", at + 1));
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if !line.starts_with(' ') {
                this.by_folder.entry(line.to_owned()).or_default().push(Vec::new());
                folder = Some(line);
                continue;
            }
            let knots = folder.and_then(|folder| this.by_folder.get_mut(folder));
            let Some(members) = knots.and_then(|knots| knots.last_mut()) else {
                return fault("names modules of no folder");
            };
            members.extend(line.split(',').map(|name| name.trim().to_owned()));
            members.retain(|name| !name.is_empty());
            if !members.is_sorted_by(|one, next| one < next) {
                return fault("is not in alphabetical order");
            }
        }
        Ok(this)
    }

    /// Takes the knots of a folder out of the list.
    pub(crate) fn take(&mut self, folder: &str) -> Vec<Vec<String>> {
        self.by_folder.remove(folder).unwrap_or_default()
    }

    /// Folders whose knots were not taken.
    pub(crate) fn left(&self) -> impl Iterator<Item = &str> {
        self.by_folder.keys().map(String::as_str)
    }
}

/// Differences between the found and the listed knots of a folder, as text for people. `show` formats the cycle of a
/// knot, selected by its position, that contains some of its members.
pub(crate) fn faults(
    folder: &str,
    found: &[&[String]],
    listed: &[Vec<String>],
    show: &dyn Fn(usize, &[String]) -> String,
) -> Vec<String> {
    let shared = |one: &[String], two: &[String]| one.iter().filter(|n| two.contains(n)).count();
    let mut faults = Vec::new();
    for (at, knot) in found.iter().enumerate() {
        let known = listed.iter().max_by_key(|known| shared(known, knot));
        let known = known.filter(|known| shared(known, knot) > 0);
        let new: Vec<String> =
            knot.iter().filter(|name| !known.is_some_and(|k| k.contains(name))).cloned().collect();
        if !new.is_empty() {
            let what = match known {
                Some(_) => format!("the knot grew by {}", new.join(", ")),
                None => "modules use each other in a circle".to_owned(),
            };
            faults.push(format!(
                "{folder}: {what}. Move what several need to below all of them, or hand it over as \
                 an argument:\n{}",
                show(at, &new)
            ));
        }
    }
    for known in listed {
        let parts: Vec<&&[String]> = found.iter().filter(|knot| shared(known, knot) > 0).collect();
        let is_smaller = |knot: &&&[String]| knot.iter().all(|name| known.contains(name));
        match parts[..] {
            [] => faults.push(format!(
                "{folder}: no longer a knot. Remove it from the list: {}",
                known.join(", ")
            )),
            [one] if *one == known => {}
            _ if parts.iter().all(is_smaller) => {
                let entries: Vec<String> = parts.iter().map(|knot| entry(folder, knot)).collect();
                faults.push(format!(
                    "{folder}: the knot is smaller than the list says. Shorten the list to\n{}",
                    entries.concat()
                ));
            }
            // The knot has grown, which is reported above.
            _ => {}
        }
    }
    faults
}

/// Formats a knot like the list.
fn entry(folder: &str, members: &[String]) -> String {
    let mut text = format!("{folder}\n");
    let mut line = String::new();
    for name in members {
        if !line.is_empty() && line.len() + name.len() > 95 {
            text.push_str(&format!("    {},\n", line));
            line.clear();
        }
        line.push_str(if line.is_empty() { "" } else { ", " });
        line.push_str(name);
    }
    text + &format!("    {line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compares the found knots of a folder with the listed ones.
    fn compare(found: &[&str], listed: &[&str]) -> Vec<String> {
        let found: Vec<Vec<String>> = found.iter().map(|text| names(text)).collect();
        let found: Vec<&[String]> = found.iter().map(|knot| &knot[..]).collect();
        let listed: Vec<Vec<String>> = listed.iter().map(|text| names(text)).collect();
        faults("far", &found, &listed, &|at, new| format!("{at} through {}", new.join(" ")))
    }

    #[test]
    fn a_knot_as_listed_is_no_fault() {
        assert_eq!(compare(&["a b", "c d e"], &["c d e", "a b"]), [""; 0]);
    }

    #[test]
    fn a_new_knot_and_one_that_grew_are_shown_by_a_circle_through_what_is_new() {
        let [new] = &compare(&["a b"], &[])[..] else { panic!() };
        assert!(new.starts_with("far: modules use each other in a circle. "), "{new}");
        assert!(new.ends_with("0 through a b"), "{new}");
        let [grown] = &compare(&["a b", "c d e f"], &["c e", "a b"])[..] else { panic!() };
        assert!(grown.starts_with("far: the knot grew by d, f. "), "{grown}");
        assert!(grown.ends_with("1 through d f"), "{grown}");
        let [joined] = &compare(&["a b c d"], &["a b", "c d"])[..] else { panic!() };
        assert!(joined.starts_with("far: the knot grew by "), "{joined}");
        let moved = compare(&["a b d"], &["a b c"]);
        assert!(moved[0].starts_with("far: the knot grew by d. "), "{moved:?}");
    }

    #[test]
    fn a_knot_that_shrank_or_went_is_to_leave_the_list() {
        let [gone] = &compare(&["c d"], &["a b", "c d"])[..] else { panic!() };
        assert_eq!(gone, "far: no longer a knot. Remove it from the list: a, b");
        let [smaller] = &compare(&["a b", "d e"], &["a b c d e"])[..] else { panic!() };
        assert!(smaller.ends_with("list to\nfar\n    a, b\nfar\n    d, e\n"), "{smaller}");
    }

    #[test]
    fn the_list_is_read_as_it_is_proposed() {
        let many: Vec<String> = (100..160).map(|at| format!("module_{at}")).collect();
        let text = entry("a/b", &many) + "\n# why\n" + &entry("c", &names("x y"));
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        let mut listed = Listed::parse(&text).unwrap();
        assert_eq!(listed.take("a/b"), [many]);
        assert_eq!(listed.left().collect::<Vec<_>>(), ["c"]);
        assert_eq!(listed.take("c"), [names("x y")]);
        for text in ["    a, b", "far\n    b, a"] {
            Listed::parse(text).unwrap_err();
        }
    }
}
