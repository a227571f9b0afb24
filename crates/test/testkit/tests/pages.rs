//! Pages of the documentation: no link is dead, and the book has every page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders without pages of the repository.
const LEFT_OUT: &[&str] = &[".git", "target", "corpus", "artifacts"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// All files below a folder with this ending, without links to others.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() && !LEFT_OUT.contains(&entry.file_name().to_str().unwrap()) {
            found.extend(files(&path, end));
        } else if kind.is_file() && path.extension().is_some_and(|found| found == end) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Numbered lines of a page that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((at + 1, line))
    })
}

/// Targets of all links and pictures of a line: `[text](target)`.
fn links(line: &str) -> Vec<&str> {
    let after = line.split("](").skip(1);
    after.filter_map(|rest| rest.split([')', ' ']).next()).filter(|link| !link.is_empty()).collect()
}

/// Anchor of a heading, as mdBook and the forges create it.
fn anchor(heading: &str) -> String {
    let mut place = String::new();
    for one in heading.trim().to_lowercase().chars() {
        match one {
            ' ' => place.push('-'),
            one if one.is_alphanumeric() || one == '-' || one == '_' => place.push(one),
            _ => {}
        }
    }
    place
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let first = anchor(line.trim_start_matches('#'));
        let more = (1..).map(|count| format!("{first}-{count}"));
        let free = std::iter::once(first.clone()).chain(more).find(|one| !found.contains(one));
        found.extend(free);
    }
    found
}

/// Removes `.` and `..`. The path need not exist.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                tidy.pop();
            }
            Component::CurDir => {}
            part => tidy.push(part),
        }
    }
    tidy
}

fn fault(page: &Path, link: &str, root: &Path) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, place) =
        link.split_once('#').map_or((link, None), |(file, place)| (file, Some(place)));
    let target = match file {
        "" => page.to_owned(),
        file => tidy(&page.parent()?.join(file)),
    };
    if !target.starts_with(root) || !target.exists() {
        return Some(format!("there is no file {file}"));
    }
    let place = place?;
    let text = fs::read_to_string(&target).ok()?;
    (!anchors(&text).contains(place))
        .then(|| format!("{} has no heading #{place}", target.display()))
}

#[test]
fn no_link_of_a_page_is_dead() {
    let root = repository();
    let mut faults = Vec::new();
    let mut count = 0;
    for page in files(&root, "md") {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            for link in links(line) {
                count += 1;
                let fault = fault(&page, link, &root);
                let place = page.strip_prefix(&root).unwrap().display();
                faults.extend(fault.map(|fault| format!("{place}:{number}: {link}: {fault}")));
            }
        }
    }
    assert!(faults.is_empty(), "{} dead links:\n{}", faults.len(), faults.join("\n"));
    assert!(count > 100, "only {count} links");
}

#[test]
fn the_book_has_every_page_and_no_other() {
    let docs = repository().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let named: BTreeSet<PathBuf> =
        summary.lines().flat_map(links).map(|link| docs.join(link)).collect();
    let mut pages: BTreeSet<PathBuf> = files(&docs, "md").into_iter().collect();
    pages.remove(&docs.join("SUMMARY.md"));
    assert_eq!(named, pages, "docs/SUMMARY.md names what is on the left");
}

#[test]
fn what_pages_include_is_there() {
    let root = repository();
    let mut count = 0;
    for page in files(&root.join("docs"), "md") {
        for line in fs::read_to_string(&page).unwrap().lines() {
            let Some(file) = line.strip_prefix("{{#include ") else { continue };
            let file = page.parent().unwrap().join(file.trim_end_matches("}}"));
            assert!(file.exists(), "{}: {}", page.display(), file.display());
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn dead_links_and_missing_headings_are_seen() {
    assert_eq!(links("a [b](c.md#d) ![e](f.png) `g`"), ["c.md#d", "f.png"]);
    let text = "# A `b` & C\n```sh\n# no heading\n```\n## D\n## D\n";
    assert_eq!(anchors(text), BTreeSet::from(["a-b--c", "d", "d-1"].map(str::to_owned)));
    let root = repository();
    let page = root.join("docs/config.md");
    assert_eq!(fault(&page, "../README.md", &root), None);
    assert_eq!(fault(&page, "#values", &root), None);
    assert!(fault(&page, "../nothing.md", &root).is_some());
    assert!(fault(&page, "../../outside.md", &root).is_some());
    assert!(fault(&page, "#nothing", &root).is_some_and(|fault| fault.contains("no heading")));
}
