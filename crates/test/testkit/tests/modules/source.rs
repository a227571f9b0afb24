//! Content of a source that concerns modules: the modules it declares, the names it imports, and the paths it uses. It
//! is read as tokens, so strings and comments don't count, and paths in macros do. Code for tests only is omitted.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path as written, such as `super::super::error::BenchError`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsedPath {
    pub(crate) segments: Vec<String>,
    /// Line number, from 1.
    pub(crate) line: usize,
}

/// A module that a source declares.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    /// Value of `#[path]`.
    pub(crate) file: Option<String>,
    /// Content, if it is in the same file.
    pub(crate) inline: Option<Source>,
}

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) children: Vec<Child>,
    /// Names that the source defines.
    pub(crate) items: HashSet<String>,
    /// Names that it imports, with their paths.
    pub(crate) imports: HashMap<String, Vec<String>>,
    /// Paths that it imports by `*`.
    pub(crate) globs: Vec<Vec<String>>,
    /// All paths that it names, including those of its imports.
    pub(crate) uses: Vec<UsedPath>,
}

/// Attributes before an item.
#[derive(Default)]
struct Attributes {
    is_for_tests: bool,
    path: Option<String>,
}

impl Source {
    /// Parses a source. Returns `None` if it is not Rust.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let stream: TokenStream = text.parse().ok()?;
        Some(Self::of(stream))
    }

    fn of(stream: TokenStream) -> Self {
        let mut source = Self::default();
        source.scan(&trees(stream), true);
        source
    }

    /// Reads tokens. Only those `at_top` define names of the module.
    fn scan(&mut self, tokens: &[TokenTree], at_top: bool) {
        let mut attributes = Attributes::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            if is_punct(token, '#') {
                let is_inner = tokens.get(at + 1).is_some_and(|next| is_punct(next, '!'));
                let group = tokens.get(at + 1 + usize::from(is_inner)).and_then(bracket);
                if let Some(group) = group {
                    at += 2 + usize::from(is_inner);
                    let tokens = trees(group.stream());
                    self.scan(&tokens, false);
                    attributes.read(&tokens);
                    if is_inner && attributes.is_for_tests {
                        *self = Self::default();
                        return;
                    }
                    continue;
                }
            }
            let of_item = std::mem::take(&mut attributes);
            if of_item.is_for_tests {
                at = after_item(tokens, at);
                continue;
            }
            at += match token {
                TokenTree::Ident(word) => {
                    let rest = &tokens[at..];
                    match word.to_string().as_str() {
                        "use" if !rest.get(1).is_some_and(|next| is_punct(next, '<')) => {
                            let end = rest.iter().position(|token| is_punct(token, ';'));
                            let end = end.unwrap_or(rest.len());
                            self.import(&[], &rest[1..end]);
                            end
                        }
                        "mod" => self.declare(rest, of_item.path),
                        "pub" => {
                            attributes = of_item;
                            1 + usize::from(is_scope(rest.get(1)))
                        }
                        keyword if at_top && DEFINING.contains(&keyword) => {
                            let mut names = rest[1..].iter().take(2).filter_map(name);
                            self.items.extend(names.find(|name| name != "mut"));
                            1
                        }
                        _ if at > 0 && is_punct(&tokens[at - 1], '.') => 1,
                        _ => self.read_path(rest),
                    }
                }
                // A path that begins with `::` belongs to another crate, and the rest of `<T>::name` to a type.
                TokenTree::Punct(_) if is_path_sep(&tokens[at..]) => {
                    let path = segments(&tokens[at + 2..]);
                    2 + (3 * path.len()).saturating_sub(2)
                }
                TokenTree::Group(group) => {
                    self.scan(&trees(group.stream()), false);
                    1
                }
                _ => 1,
            };
        }
    }

    /// Reads the path that begins here, and returns its number of tokens.
    fn read_path(&mut self, tokens: &[TokenTree]) -> usize {
        let path = segments(tokens);
        let length = 3 * path.len() - 2;
        if path.len() > 1 {
            self.uses.push(UsedPath { segments: path, line: line(&tokens[0]) });
        }
        length
    }

    /// Reads `mod name;` or `mod name { … }`, and returns its number of tokens.
    fn declare(&mut self, tokens: &[TokenTree], file: Option<String>) -> usize {
        let Some(name) = tokens.get(1).and_then(name) else { return 1 };
        let inline = tokens.get(2).and_then(brace).map(|group| Self::of(group.stream()));
        self.children.push(Child { name, file, inline });
        3
    }

    /// Reads one tree of imports, `a::{b, c::*}`, below the known part of the path.
    fn import(&mut self, above: &[String], tokens: &[TokenTree]) {
        let mut path = above.to_vec();
        let mut at = 0;
        // `use ::name` refers to another crate.
        if above.is_empty() && is_path_sep(tokens) {
            return;
        }
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(word) if word == "as" => break,
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) => {
                    let inner = trees(group.stream());
                    for tree in inner.split(|token| is_punct(token, ',')) {
                        self.import(&path, tree);
                    }
                    return;
                }
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    self.uses.push(UsedPath { segments: path.clone(), line: line(token) });
                    self.globs.push(path);
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        let Some(first) = tokens.first() else { return };
        // `a::{self}` is `a`; a path may also begin with `self`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let renamed = tokens.get(at + 1).and_then(name);
        let Some(name) = renamed.or_else(|| path.last().cloned()) else { return };
        self.uses.push(UsedPath { segments: path.clone(), line: line(first) });
        self.imports.insert(name, path);
    }
}

/// Keywords before a defined name.
const DEFINING: &[&str] =
    &["const", "enum", "fn", "macro_rules", "static", "struct", "trait", "type", "union"];

/// Items that have a body and no comma outside of it, or that end with a semicolon.
const ITEMS: &[&str] = &["enum", "fn", "impl", "macro_rules", "mod", "struct", "trait", "union"];
const STATEMENTS: &[&str] = &["const", "extern", "let", "static", "type", "use"];

impl Attributes {
    fn read(&mut self, tokens: &[TokenTree]) {
        match (tokens.first().and_then(name).as_deref(), tokens.get(1)) {
            (Some("cfg"), Some(TokenTree::Group(group))) => {
                self.is_for_tests |= is_for_tests(&trees(group.stream()));
            }
            (Some("path"), _) => {
                self.path = tokens.get(2).map(|file| file.to_string().trim_matches('"').to_owned());
            }
            _ => {}
        }
    }
}

/// True if a condition of `cfg` holds in test builds only.
fn is_for_tests(condition: &[TokenTree]) -> bool {
    let [word, rest @ ..] = condition else { return false };
    let word = name(word);
    match (word.as_deref(), rest) {
        (Some("test"), []) => true,
        (Some(kind @ ("all" | "any")), [TokenTree::Group(group)]) => {
            let inner = trees(group.stream());
            let mut parts = inner.split(|token| is_punct(token, ',')).filter(|p| !p.is_empty());
            if kind == "all" { parts.any(is_for_tests) } else { parts.all(is_for_tests) }
        }
        _ => false,
    }
}

/// Position after the item, statement, field or arm that begins at `at`.
fn after_item(tokens: &[TokenTree], at: usize) -> usize {
    let mut ends_at_comma = true;
    let mut ends_at_brace = true;
    for (offset, token) in tokens[at..].iter().enumerate() {
        match token {
            TokenTree::Ident(word) if ends_at_comma => {
                let word = word.to_string();
                // `const fn` and `extern "C" fn` are functions.
                if ITEMS.contains(&word.as_str()) {
                    (ends_at_comma, ends_at_brace) = (false, true);
                } else if STATEMENTS.contains(&word.as_str()) {
                    ends_at_brace = false;
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && ends_at_brace => {
                return at + offset + 1;
            }
            token if is_punct(token, ';') => return at + offset + 1,
            token if is_punct(token, ',') && ends_at_comma && ends_at_brace => {
                return at + offset + 1;
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Names of the path that begins here. The tokens of a path are names and pairs of colons, alternating.
fn segments(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(name) = tokens.get(3 * found.len()).and_then(name) {
        found.push(name);
        if !is_path_sep(&tokens[3 * found.len() - 2..]) {
            break;
        }
    }
    found
}

fn is_path_sep(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, ..] if is_punct(first, ':') && is_punct(second, ':'))
}

/// True for a token that may follow `pub` in parentheses.
fn is_scope(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else { return false };
    let first = group.stream().into_iter().next();
    let word = first.as_ref().and_then(name);
    group.delimiter() == Delimiter::Parenthesis
        && word.is_some_and(|word| ["crate", "in", "self", "super"].contains(&word.as_str()))
}

fn trees(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn name(token: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(word) = token { Some(word.to_string()) } else { None }
}

fn bracket(token: &TokenTree) -> Option<&Group> {
    group(token, Delimiter::Bracket)
}

fn brace(token: &TokenTree) -> Option<&Group> {
    group(token, Delimiter::Brace)
}

fn group(token: &TokenTree, delimiter: Delimiter) -> Option<&Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn line(token: &TokenTree) -> usize {
    token.span().start().line
}
