//! Finds tests that can't fail: no test may end early unless it reports a skip, and each must assert something. Also
//! finds tests that sleep without a reason in a comment. Reads a source's tokens, so that it sees tests inside macros,
//! too.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// First word of a skipped test's line. Split in halves, because this file is a source.
const WORD: (&str, &str) = ("SKIP", "PED");

/// Names of macros and functions that make a test fail.
const FAILING: &[&str] =
    &["panic", "unreachable", "unwrap", "unwrap_err", "expect", "expect_err", "join"];

/// A function of a source, with its relevant attributes.
struct Function {
    name: String,
    line: usize,
    is_test: bool,
    is_ignored: bool,
    /// True if it exists for tests only.
    is_of_tests: bool,
    body: TokenStream,
}

struct Source {
    path: PathBuf,
    text: String,
    functions: Vec<Function>,
}

impl Source {
    fn new(path: PathBuf, text: String) -> Self {
        let mut functions = functions(&text);
        let file = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_of_tests = file.ends_with("tests")
            || path
                .components()
                .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "fuzz");
        let module = text.lines().position(|line| line.trim() == "mod tests {");
        for function in &mut functions {
            function.is_of_tests = is_of_tests || module.is_some_and(|at| function.line > at);
        }
        Self { path, text, functions }
    }
}

fn functions(text: &str) -> Vec<Function> {
    let stream: TokenStream = text.parse().expect("what compiles has tokens");
    let mut found = Vec::new();
    collect_functions(stream, &mut found);
    found
}

fn collect_functions(stream: TokenStream, found: &mut Vec<Function>) {
    let mut attributes: Vec<String> = Vec::new();
    let mut header: Option<(String, usize)> = None;
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            // The name. In a macro it may follow a `$`.
            TokenTree::Ident(word) if word == "fn" => {
                let name = tokens[at + 1..].iter().take(2).find_map(ident);
                header = name.map(|name| (name, word.span().start().line));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let is_attribute = at > 0 && is_punct(&tokens[at - 1], '#');
                if is_attribute {
                    attributes.extend(group.stream().into_iter().next().as_ref().and_then(ident));
                }
                collect_functions(group.stream(), found);
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if let Some((name, line)) = header.take() {
                    let has = |wanted: &str| attributes.iter().any(|name| name == wanted);
                    let (is_test, is_ignored) = (has("test"), has("ignore"));
                    let body = group.stream();
                    let is_of_tests = is_test;
                    found.push(Function { name, line, is_test, is_ignored, is_of_tests, body });
                }
                attributes.clear();
                collect_functions(group.stream(), found);
            }
            TokenTree::Group(group) => collect_functions(group.stream(), found),
            TokenTree::Punct(punct) if punct.as_char() == ';' => {
                header = None;
                attributes.clear();
            }
            _ => {}
        }
    }
}

fn ident(token: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(word) = token { Some(word.to_string()) } else { None }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// True if some call in these tokens, at any depth, has a wanted name. `x.skip(1)` is a method of iterators; only a
/// function without `self` reports a skip.
fn calls(tokens: &[TokenTree], is_wanted: &impl Fn(&str) -> bool) -> bool {
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => calls(&trees(group), is_wanted),
        TokenTree::Ident(word) => {
            let is_method = at > 0 && is_punct(&tokens[at - 1], '.');
            let is_call = matches!(tokens.get(at + 1), Some(TokenTree::Group(group))
                if group.delimiter() == Delimiter::Parenthesis);
            is_call && !is_method && is_wanted(&word.to_string())
        }
        _ => false,
    })
}

fn trees(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

/// True if these tokens read an environment variable whose name is a constant. That is how a test detects that another
/// test has started its process, to play a role in it.
fn asks_for_a_role(tokens: &[TokenTree]) -> bool {
    tokens.iter().enumerate().any(|(at, token)| match (token, tokens.get(at + 1)) {
        (TokenTree::Ident(word), Some(TokenTree::Group(group)))
            if word == "var" || word == "var_os" =>
        {
            let inner = trees(group);
            let name = if let [one] = &inner[..] { ident(one) } else { None };
            name.is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        }
        (TokenTree::Group(group), _) => asks_for_a_role(&trees(group)),
        _ => false,
    })
}

/// Functions of a crate that call a wanted function, directly or through others of the crate.
fn closure(sources: &[Source], comes_to: impl Fn(&[TokenTree]) -> bool) -> HashSet<String> {
    let mut found: HashSet<String> = HashSet::new();
    let all: Vec<(&Function, Vec<TokenTree>)> = sources
        .iter()
        .flat_map(|source| &source.functions)
        .filter(|function| function.is_of_tests && !function.is_test)
        .map(|function| (function, function.body.clone().into_iter().collect()))
        .collect();
    loop {
        let before = found.len();
        for (function, body) in &all {
            if comes_to(body) || calls(body, &|name| found.contains(name)) {
                found.insert(function.name.clone());
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Lines on which a test ends early without a report.
fn silent_ends(body: &[TokenTree], says: &impl Fn(&[TokenTree]) -> bool) -> Vec<usize> {
    let mut found = Vec::new();
    // Start of the statement that contains the token.
    let mut start = 0;
    for (at, token) in body.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "return" => {
                let rest = &body[at..];
                let is_end = |token| is_punct(token, ';') || is_punct(token, ',');
                let end = rest.iter().position(is_end).unwrap_or(rest.len());
                // The skip may come before the return, or be its value.
                if !says(&body[..at]) && !says(&rest[..end]) {
                    found.push(word.span().start().line);
                }
            }
            TokenTree::Group(group) => {
                let is_block = group.delimiter() == Delimiter::Brace;
                // A closure's `return` ends the closure, and a function's that function.
                let is_closure = is_block && at > 0 && is_punct(&body[at - 1], '|');
                let is_function = is_block
                    && body[start..at].iter().any(|token| ident(token).as_deref() == Some("fn"));
                let is_guarded = is_block && says(&body[start..at]);
                if !is_closure && !is_function && !is_guarded {
                    found.extend(silent_ends(&trees(group), says));
                }
                let goes_on = body.get(at + 1).and_then(ident).as_deref() == Some("else");
                if is_block && !goes_on {
                    start = at + 1;
                }
            }
            token if is_punct(token, ';') => start = at + 1,
            _ => {}
        }
    }
    found
}

fn can_fail(tokens: &[TokenTree]) -> bool {
    tokens.iter().any(|token| match token {
        TokenTree::Group(group) => can_fail(&trees(group)),
        TokenTree::Ident(word) => {
            let word = word.to_string();
            word.starts_with("assert")
                || word.starts_with("prop_assert")
                || FAILING.contains(&&*word)
        }
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

fn faults(sources: &[Source]) -> Vec<String> {
    let skips = closure(sources, |body| calls(body, &|name| name == "skip"));
    let says = |tokens: &[TokenTree]| {
        calls(tokens, &|name| name == "skip" || skips.contains(name)) || asks_for_a_role(tokens)
    };
    let failing = closure(sources, can_fail);
    let mut faults = Vec::new();
    for source in sources {
        let path = source.path.display();
        for test in source.functions.iter().filter(|function| function.is_test) {
            let body: Vec<TokenTree> = test.body.clone().into_iter().collect();
            for line in silent_ends(&body, &says) {
                faults.push(format!(
                    "{path}:{line}: `{}` ends early and says nothing: `return skip(why, run)` with \
                     `polyrail_skip::skip`, or write it without `return`",
                    test.name
                ));
            }
            if test.is_ignored && !asks_for_a_role(&body) {
                faults.push(format!(
                    "{path}:{}: `{}` is ignored, which nobody sees: take it out, or skip it",
                    test.line, test.name
                ));
            }
            if !can_fail(&body) && !calls(&body, &|name| failing.contains(name)) {
                faults.push(format!(
                    "{path}:{}: `{}` asserts nothing, so it can't fail but by a panic of what it \
                     calls: assert what must be true afterwards",
                    test.line, test.name
                ));
            }
        }
    }
    faults
}

/// Lines on which tests, or functions that only tests use, sleep without a comment right above.
fn unexplained_sleeps(source: &Source) -> BTreeSet<usize> {
    let of_tests = source.functions.iter().filter(|function| function.is_of_tests);
    let mut lines = BTreeSet::new();
    for function in of_tests {
        lines_of_sleeps(&function.body.clone().into_iter().collect::<Vec<_>>(), &mut lines);
    }
    let text: Vec<&str> = source.text.lines().collect();
    lines.retain(|line| !line.checked_sub(2).is_some_and(|at| text[at].trim().starts_with("//")));
    lines
}

/// Lines, from 1, on which these tokens call `thread::sleep`, imported or not.
fn lines_of_sleeps(tokens: &[TokenTree], lines: &mut BTreeSet<usize>) {
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => lines_of_sleeps(&trees(group), lines),
            TokenTree::Ident(word) if word == "sleep" => {
                let is_method = at > 0 && is_punct(&tokens[at - 1], '.');
                let is_defined = at > 0 && ident(&tokens[at - 1]).as_deref() == Some("fn");
                if !is_method && !is_defined {
                    lines.insert(word.span().start().line);
                }
            }
            _ => {}
        }
    }
}

fn sources_of(folder: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources_of(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push(Source::new(path, text));
        }
    }
    found
}

/// Sources of each crate.
fn crates() -> Vec<(String, Vec<Source>)> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    };
    // The command, and groups of crates.
    let mut folders = inside(Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap());
    folders.extend(folders.clone().iter().flat_map(|group| inside(group)));
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    let name = |folder: &Path| folder.file_name().unwrap().to_str().unwrap().to_owned();
    folders.iter().map(|folder| (name(folder), sources_of(folder))).collect()
}

#[test]
fn every_test_can_fail_and_none_ends_early_without_saying_that_it_is_skipped() {
    let crates = crates();
    let tests = crates.iter().flat_map(|(_, sources)| sources).flat_map(|source| &source.functions);
    let tests = tests.filter(|function| function.is_test).count();
    assert!(tests > 1000, "this found no more than {tests} tests");
    let faults: Vec<String> = crates.iter().flat_map(|(_, sources)| faults(sources)).collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn a_test_that_sleeps_says_why() {
    let sources = crates().into_iter().flat_map(|(_, sources)| sources);
    let faults: Vec<String> = sources
        .flat_map(|source| {
            let path = source.path.display().to_string();
            unexplained_sleeps(&source).into_iter().map(move |line| format!("{path}:{line}"))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "wait for an event with a deadline; where the time itself is what is tested, or where one \
         has to look again and again, say so in a comment right above:\n{}",
        faults.join("\n")
    );
}

#[test]
fn the_word_for_a_skipped_test_is_written_by_one_crate() {
    let word = format!("{}{}", WORD.0, WORD.1);
    let mut with_word = Vec::new();
    for (name, sources) in crates() {
        // The variable that names the file has the word in its name.
        let says = |source: &&Source| {
            source.text.replace(&format!("{word}_TESTS_FILE"), "").contains(&word)
        };
        let paths = sources.iter().filter(says).map(|source| source.path.display().to_string());
        with_word.extend(paths.filter(|_| name != "skip"));
    }
    let remedy = "call `polyrail_skip::skip`, whose line nothing hides";
    assert!(with_word.is_empty(), "{remedy}: {with_word:?}");
}

/// Lines with a fault in the body of a test, in a file that also has helpers.
fn lines_with_faults(test: &str) -> Vec<usize> {
    let text = format!(
        "{test}\n\
         fn root() -> bool {{ let why = || 1; said(why()); false }}\n\
         fn said(why: u32) {{ polyrail_skip::skip(why, \"run\"); }}\n\
         fn check(x: u32) {{ assert_eq!(x, 1); }}\n\
         fn quiet(x: u32) {{ println!(\"{{x}}\"); }}\n"
    );
    let source = Source::new(PathBuf::from("tests/file.rs"), text);
    let line = |fault: String| fault.split(':').nth(1).unwrap().parse().unwrap();
    faults(&[source]).into_iter().map(line).collect()
}

#[test]
fn an_early_end_is_seen_wherever_it_hides_and_a_skip_is_none() {
    for silent in [
        "if x() {\nreturn;\n}",
        "let Some(x) = x() else {\nreturn };",
        "let x = match x() { Ok(x) => x,\nErr(_) => return };",
        "if !root() { return; }\nif x() { return; }",
        "println!(\"no right\");\nreturn quiet(1);",
        "for x in 0..3 { if x == 1 { let y = 1;\nreturn; } }",
        "if env::var(\"CI\").is_err() {\nreturn; }",
        "if xs.iter().skip(1).next().is_none() {\nreturn; }",
    ] {
        let test = format!("#[test] fn a_test() {{ assert!(true); {silent} }}");
        assert_eq!(lines_with_faults(&test), [2], "{silent}");
    }
    for honest in [
        "if x() { return skip(\"why\", \"run\"); }",
        "if !root() { return; }",
        "let Some(x) = x() else { said(1); return };",
        "let x = match x() { Ok(x) => x, Err(_) => return said(1) };",
        "if env::var_os(ROLE).is_some() { return role(); }",
        "let f = |x| { if x { return; } };",
        "fn inner() { return; }",
    ] {
        let test = format!("#[test] fn a_test() {{ assert!(true); {honest} }}");
        assert_eq!(lines_with_faults(&test), [0; 0], "{honest}");
    }
}

#[test]
fn a_test_that_is_ignored_or_asserts_nothing_is_seen_in_macros_too() {
    assert_eq!(lines_with_faults("#[test] fn a() { let _ = parse(1); quiet(1) }"), [1]);
    assert_eq!(lines_with_faults("proptest! { #[test] fn a(x in 0..3) { parse(x); } }"), [1]);
    assert_eq!(lines_with_faults("#[test] #[ignore] fn a() { assert!(x()); }"), [1]);
    assert_eq!(lines_with_faults("#[test] fn a() { check(1) }"), [0; 0]);
    assert_eq!(
        lines_with_faults("proptest! { #[test] fn a(x: u8) { prop_assert!(x < 9); } }"),
        [0; 0]
    );
    assert_eq!(lines_with_faults("m! { #[test] fn $name() { check($x); } }"), [0; 0]);
    assert_eq!(lines_with_faults("fn no_test() { if x() { return; } }"), [0; 0]);
}

#[test]
fn a_sleep_is_seen_wherever_tests_have_it_unless_a_comment_says_why() {
    let sleeps = |path: &str, text: &str| {
        let source = Source::new(PathBuf::from(path), text.to_owned());
        unexplained_sleeps(&source).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(sleeps("tests/a.rs", "fn f() {\nthread::sleep(LONG);\n}"), [2]);
    assert_eq!(sleeps("tests/a.rs", "fn f() { g(|| {\nsleep(LONG) }) }"), [2]);
    assert_eq!(sleeps("tests/a.rs", "fn f() {\nmap(thread::sleep)\n}"), [2]);
    assert_eq!(sleeps("tests/a.rs", "fn f() {\n// Its pace.\nthread::sleep(LONG);\n}"), [0; 0]);
    assert_eq!(sleeps("tests/a.rs", "fn f() {\nx.sleep(LONG);\nfn sleep() {}\n}"), [0; 0]);
    let module = "fn f() { sleep(A) }\n#[cfg(test)]\nmod tests {\nfn g() { sleep(B) }\n}";
    assert_eq!(sleeps("src/a.rs", module), [4]);
}
