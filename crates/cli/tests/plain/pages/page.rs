//! Pages of the documentation: their blocks of commands, and the commands within sentences.

use std::fs;
use std::path::{Path, PathBuf};

use super::shell;
use crate::common::repository;

/// Things that a command may need, in the words of the pages. A time such as `30 s` or `10 min` is allowed, too.
const NEEDS: &[&str] = &[
    "root",
    "root or user namespaces",
    "bbr",
    "a GPU",
    "two GPUs",
    "four GPUs",
    "NCCL",
    "a plugin",
    "NIXL",
    "PyTorch",
    "another machine",
    "such an interface",
    "Kubernetes",
    "Slurm",
    "systemd",
    "a build",
    "a running program",
    "earlier results",
    "cargo-fuzz",
    "hwloc",
    "iptables",
    "jq",
    "nft",
    "openssl",
    "podman",
    "the internet",
];

/// Languages of blocks that hold no commands.
const NO_COMMANDS: &[&str] =
    &["c", "ini", "json", "promql", "python", "rust", "text", "toml", "yaml"];

/// A file of the documentation.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) lines: Vec<Line>,
    /// Commands within sentences, with the number of their line.
    pub(crate) spans: Vec<(usize, String)>,
    /// Faults of the page itself.
    pub(crate) faults: Vec<String>,
}

/// A line that the reader types.
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: String,
    /// Set if the page says what the line needs.
    pub(crate) is_marked: bool,
}

/// All pages that tell how to do something now, without the changelog and earlier results.
pub(crate) fn pages() -> Vec<Page> {
    let root = repository();
    let mut files = Vec::new();
    for folder in ["", "docs", "docs/deploy", "fuzz", "crates/faces/nccl/harness"] {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    files.sort();
    let wanted = files.into_iter().filter(|path| !path.ends_with("CHANGELOG.md"));
    wanted.map(|path| Page::read(&root, &path)).collect()
}

impl Page {
    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_owned();
        let mut page = Self { path, lines: Vec::new(), spans: Vec::new(), faults: Vec::new() };
        let mut block: Option<(&str, bool)> = None;
        let mut begun: Option<(usize, String)> = None;
        for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
            if let Some(word) = line.trim_start().strip_prefix("```") {
                block = match block {
                    Some(_) => None,
                    None => Some((word, false)),
                };
                if block.is_some()
                    && !["sh", "console"].contains(&word)
                    && !NO_COMMANDS.contains(&word)
                {
                    page.fault(
                        number,
                        &format!(
                            "the block has the word `{word}`; allowed: sh, console, {}",
                            NO_COMMANDS.join(", ")
                        ),
                    );
                }
                continue;
            }
            let Some((word, is_marked)) = &mut block else {
                let spans =
                    line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("polyrail "));
                page.spans.extend(spans.map(|span| (number, span.to_owned())));
                continue;
            };
            let typed = match *word {
                "sh" => line,
                "console" => match line.split_once("$ ") {
                    Some((host, typed)) if !host.contains(' ') => typed,
                    _ => continue,
                },
                _ if line.starts_with("polyrail ") => {
                    page.fault(number, "a command belongs in a block of `sh` or `console`");
                    continue;
                }
                _ => continue,
            };
            let (from, mut whole) = begun.take().unwrap_or((number, String::new()));
            whole.push_str(typed.trim_end().trim_end_matches('\\'));
            if typed.trim_end().ends_with('\\') {
                begun = Some((from, whole));
                continue;
            }
            let needs = shell::comment(&whole).and_then(|text| text.strip_prefix("needs "));
            if let Some(fault) = needs.and_then(unknown_need) {
                page.fault(from, &fault);
            }
            if whole.trim_start().starts_with('#') {
                *is_marked |= needs.is_some();
            } else if !whole.trim().is_empty() {
                let is_marked = *is_marked || needs.is_some();
                page.lines.push(Line { number: from, text: whole, is_marked });
            }
        }
        page
    }

    fn fault(&mut self, number: usize, fault: &str) {
        self.faults.push(format!("{}:{number}: {fault}", self.path.display()));
    }

    /// The folder in which the reader types: the repository for pages in `docs`, otherwise the page's own.
    pub(crate) fn folder(&self) -> PathBuf {
        let own = self.path.parent().unwrap();
        let is_docs = own.starts_with("docs");
        repository().join(if is_docs { Path::new("") } else { own })
    }
}

/// The fault of the text after `needs`, such as `root, 30 s: what the command does`.
fn unknown_need(text: &str) -> Option<String> {
    let list = text.split([':', ';']).next().unwrap_or_default();
    let is_time = |need: &str| {
        let (count, unit) = need.split_once(' ').unwrap_or_default();
        count.parse::<u32>().is_ok() && ["s", "min"].contains(&unit)
    };
    let unknown = list.split(", ").find(|need| !NEEDS.contains(need) && !is_time(need))?;
    Some(format!("`# needs {unknown}`: allowed: a time like `30 s`, {}", NEEDS.join(", ")))
}

#[test]
fn needs_are_lists_of_known_things() {
    assert_eq!(unknown_need("root, two GPUs, 30 s: and why"), None);
    assert_eq!(unknown_need("10 min"), None);
    assert!(unknown_need("luck").is_some_and(|fault| fault.contains("`# needs luck`")));
    assert!(unknown_need("root and luck").is_some());
}
