//! Finds words and openings that make English slow to read, in pages, messages and comments. CONTRIBUTING.md says what
//! to write instead. Pages and messages have none of them, except those that `words.txt` counts; counts may only fall.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

/// Folders without text of this project.
const LEFT_OUT: &[&str] = &[".git", "target", "corpus", "artifacts", "notes"];

/// Slow phrases, in lower case. The spaces around a phrase also stand for punctuation.
const PHRASES: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "anew",
    "for ever",
    "to be had",
    "in place of",
    "by turns",
    "is told",
    "are told",
    "hears of",
    "without a word",
    "mend",
    "mends",
    "mended",
    "all else",
];

/// First words of doc comments that hide the noun. `Whether` is for values that are true or false.
const OPENINGS: &[&str] = &["What", "Who", "Whom", "Whose", "It", "Its", "They", "Their"];

/// Place of a text: pages, messages and comments are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Page,
    Message,
    Comment,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Message => "message",
            Self::Comment => "comment",
        }
    }
}

/// A slow phrase in a text.
struct Hit {
    kind: Kind,
    phrase: &'static str,
    place: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

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
    found
}

/// Words of a text in lower case, with one space before and after each.
fn words(text: &str) -> String {
    let is_inside = |one: char| one.is_alphanumeric() || one == '\'';
    let words = text.split(|one| !is_inside(one)).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |text, word| text + &word.to_lowercase() + " ")
}

/// Slow phrases of a text.
fn slow(text: &str) -> impl Iterator<Item = &'static str> {
    let words = words(text);
    PHRASES.iter().copied().filter(move |phrase| words.contains(&format!(" {phrase} ")))
}

/// Lines of a page outside of blocks of code, without `code` in them.
fn prose(page: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (at, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let outside: Vec<&str> = line.split('`').step_by(2).collect();
            lines.push((at + 1, outside.join(" ")));
        }
    }
    lines
}

/// Comments of a source: each line that is one.
fn comments(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source.lines().enumerate().filter_map(|(at, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        Some((at + 1, comment.trim_start_matches(['/', '!']).trim()))
    })
}

/// Doc comments of a source: number and text of the first line of each.
fn docs(source: &str) -> Vec<(usize, &str)> {
    let is_doc = |line: &str| line.trim_start().starts_with("///");
    let lines: Vec<&str> = source.lines().collect();
    let firsts =
        (0..lines.len()).filter(|&at| is_doc(lines[at]) && (at == 0 || !is_doc(lines[at - 1])));
    firsts.map(|at| (at + 1, lines[at].trim_start().trim_start_matches('/').trim())).collect()
}

/// Literal texts of a source: number of the line and content. Attributes, and so doc comments, are left out.
fn literals(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                if let Some(TokenTree::Punct(mark)) = tokens.peek()
                    && mark.as_char() == '!'
                {
                    tokens.next();
                }
                if matches!(tokens.peek(), Some(TokenTree::Group(_)))
                    && let Some(TokenTree::Group(group)) = tokens.next()
                {
                    attribute_texts(group.stream(), found);
                }
            }
            TokenTree::Group(group) => literals(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    found.push((literal.span().start().line, text));
                }
            }
            _ => {}
        }
    }
}

/// Texts in an attribute that users see, such as `#[error("…")]`.
fn attribute_texts(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    let is_doc =
        matches!(tokens.clone().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc");
    if !is_doc {
        literals(tokens, found);
    }
}

fn hits_of_page(place: &str, text: &str) -> Vec<Hit> {
    let at = |(line, text): (usize, String)| {
        slow(&text)
            .map(|phrase| Hit { kind: Kind::Page, phrase, place: format!("{place}:{line}") })
            .collect::<Vec<_>>()
    };
    prose(text).into_iter().flat_map(at).collect()
}

fn hits_of_source(place: &str, text: &str) -> Vec<Hit> {
    let mut hits = Vec::new();
    let mut add =
        |kind, phrase, line| hits.push(Hit { kind, phrase, place: format!("{place}:{line}") });
    for (line, comment) in comments(text) {
        slow(comment).for_each(|phrase| add(Kind::Comment, phrase, line));
    }
    for (line, doc) in docs(text) {
        let first = doc.split(|one: char| !one.is_alphanumeric()).next().unwrap_or_default();
        let opening = OPENINGS.iter().find(|opening| **opening == first);
        opening.into_iter().for_each(|opening| add(Kind::Comment, opening, line));
    }
    let mut found = Vec::new();
    literals(text.parse().unwrap_or_default(), &mut found);
    for (line, literal) in found {
        slow(&literal).for_each(|phrase| add(Kind::Message, phrase, line));
    }
    hits
}

/// Counts in `words.txt`: lines such as `comment nobody 3`.
fn allowed(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, count) =
                line.rsplit_once(' ').unwrap_or_else(|| panic!("words.txt: {line}"));
            (name.to_owned(), count.parse().unwrap_or_else(|_| panic!("words.txt: {line}")))
        })
        .collect()
}

#[test]
fn pages_messages_and_comments_have_no_more_slow_words_than_before() {
    let root = repository();
    let place = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    let mut hits = Vec::new();
    let pages = files(&root, "md");
    let sources = files(&root, "rs");
    assert!(pages.len() > 30 && sources.len() > 500, "{} {}", pages.len(), sources.len());
    for path in pages.iter().filter(|path| !path.is_symlink()) {
        hits.extend(hits_of_page(&place(path), &fs::read_to_string(path).unwrap()));
    }
    for path in sources.iter().filter(|path| !path.ends_with("testkit/tests/words.rs")) {
        hits.extend(hits_of_source(&place(path), &fs::read_to_string(path).unwrap()));
    }
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for hit in hits {
        seen.entry(format!("{} {}", hit.kind.name(), hit.phrase)).or_default().push(hit.place);
    }
    let list = root.join("crates/test/testkit/tests/words.txt");
    let allowed = allowed(&fs::read_to_string(list).unwrap());
    let mut faults = Vec::new();
    for (name, places) in &seen {
        let most = allowed.get(name).copied().unwrap_or(0);
        if places.len() > most {
            let places = places.join("\n    ");
            faults.push(format!("{name}: words.txt allows {most}\n    {places}"));
        }
    }
    for (name, most) in &allowed {
        let count = seen.get(name).map_or(0, Vec::len);
        if count < *most {
            faults.push(format!("{name}: {count} are left: write that number in words.txt"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn slow_words_are_found_where_people_read() {
    let page = "Nobody waits.\n```\nnobody\n```\nSee `nobody`.\n";
    let places: Vec<String> = hits_of_page("a.md", page).into_iter().map(|hit| hit.place).collect();
    assert_eq!(places, ["a.md:1"]);
    let source = "/// What it is.\n/// It.\nfn whoever() {}\n\n// Mends it.\nconst A: &str = \"for ever\";\n\
                  #[error(\"in place of\")]\nstruct B;\n";
    let hits = hits_of_source("a.rs", source);
    let found: Vec<String> = hits
        .iter()
        .map(|hit| format!("{} {} {}", hit.kind.name(), hit.phrase, hit.place))
        .collect();
    assert_eq!(
        found,
        [
            "comment mends a.rs:5",
            "comment What a.rs:1",
            "message for ever a.rs:6",
            "message in place of a.rs:7"
        ]
    );
}
