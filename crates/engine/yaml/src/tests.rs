use proptest::prelude::*;

use super::*;

fn fault(text: &str) -> String {
    let fault = parse(text).unwrap_err();
    format!("{}:{}: {fault}", fault.at.line, fault.at.column)
}

/// Collects all values with their paths and positions.
fn walk(node: &Node, path: &str, seen: &mut Vec<(String, usize, usize)>) {
    seen.push((path.to_owned(), node.at.line, node.at.column));
    match &node.value {
        Value::Text { .. } => {}
        Value::List(items) => {
            for (at, item) in items.iter().enumerate() {
                walk(item, &format!("{path}[{at}]"), seen);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                walk(&entry.node, &format!("{path}.{}", entry.name), seen);
            }
        }
    }
}

#[test]
fn values_have_their_places() {
    let node = parse("# note\na: 1\nb:\n  - x\n  - {c: 'y', \"d\": [1]}\n").unwrap().unwrap();
    let mut seen = Vec::new();
    walk(&node, "", &mut seen);
    let seen: Vec<_> =
        seen.iter().map(|(path, line, column)| (&path[..], *line, *column)).collect();
    let expected = [
        ("", 2, 1),
        (".a", 2, 4),
        (".b", 4, 3),
        (".b[0]", 4, 5),
        (".b[1]", 5, 5),
        (".b[1].c", 5, 9),
        (".b[1].d", 5, 19),
        (".b[1].d[0]", 5, 20),
    ];
    assert_eq!(seen, expected);
    let entries = node.map("it").unwrap();
    assert_eq!(entries[0].at, Position { line: 2, column: 1 });
    assert_eq!(entries[0].node.text("a"), Ok("1"));
    assert_eq!(entries[1].node.list("b").unwrap().len(), 2);
}

#[test]
fn quotes_and_their_absence_are_told_apart() {
    let text = |text: &str| match parse(text).unwrap().unwrap().value {
        Value::Text { text, is_plain } => (text, is_plain),
        other => panic!("{other:?}"),
    };
    assert_eq!(text("~"), ("~".to_owned(), true));
    assert_eq!(text("\"~\""), ("~".to_owned(), false));
    assert_eq!(text("\u{feff}'it''s'\r\n"), ("it's".to_owned(), false));
}

#[test]
fn an_empty_file_holds_nothing() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n"] {
        assert_eq!(parse(text), Ok(None), "{text:?}");
    }
    assert!(parse("a: 1\n---\n").unwrap().is_some());
}

#[test]
fn faults_name_the_place_and_the_value() {
    for (text, expected) in [
        ("a: &x 1\nb: *x\n", "1:4: `a` has an anchor, an alias or a tag"),
        ("a: !!int 1\n", "1:4: `a` has an anchor, an alias or a tag"),
        ("a:\n  - b: {c: &x 1}\n", "2:12: `a[0].b.c` has an anchor, an alias or a tag"),
        ("&x a: 1\n", "1:1: has an anchor, an alias or a tag"),
        ("[1]: 2", "1:1: has a list where a name must be"),
        ("a: {{}: 2}", "1:5: `a` has a mapping where a name must be"),
        ("a: 1\nb: 2\na: 1\n", "3:1: `a` is there twice"),
        ("a: 1\n---\nb: 2\n", "3:1: has a second document"),
    ] {
        assert_eq!(fault(text), expected, "{text:?}");
    }
    assert!(fault("a: 'open").contains(": `a` is not YAML: "), "{}", fault("a: 'open"));
    let node = parse("- 1\n").unwrap().unwrap();
    assert_eq!(
        node.map("the map").unwrap_err().to_string(),
        "the map has no names with values; allowed: `name: value` lines"
    );
    assert_eq!(node.text("it").unwrap_err().at, Position::START);
    assert!(node.list("it").unwrap()[0].list("it").is_err());
}

#[test]
fn what_is_nested_too_deeply_is_refused_and_one_level_less_is_not() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(parse(&nested(DEPTH_MAX + 1)).is_ok());
    assert!(fault(&nested(DEPTH_MAX + 2)).contains("is nested too deeply"));
}

#[test]
fn a_huge_or_deep_file_is_refused_at_once() {
    const BYTES: usize = 1 << 20;
    let started = std::time::Instant::now();
    let start = "a: ".to_owned();
    for piece in ["[", "{", "[a,", "- ", "? ", "{a: ", "a:\n ", "\"", "&a ", "!"] {
        let count = (BYTES - start.len()) / piece.len();
        for text in [piece.repeat(count), start.clone() + &piece.repeat(count)] {
            assert!(parse(&text).is_err(), "{piece}");
        }
    }
    let names: String = (0..).map(|i| format!("n{i}: v\n")).take(80_000).collect();
    assert!(parse(&names).is_ok());
    // Far above the normal time, far below that of a quadratic parser.
    assert!(started.elapsed().as_secs() < 30);
}

#[test]
fn a_text_from_outside_is_cut_short_and_made_printable() {
    assert_eq!(excerpt("a\n\u{1b}[31m"), "a\\u000a\\u001b[31m");
    assert_eq!(excerpt(&"x".repeat(1 << 20)).len(), 83);
}

proptest! {
    #[test]
    fn any_text_is_values_inside_it_or_a_fault_inside_it(
        text in "[-a:\\[\\]{}&*?!#, \n\"']{0,60}|\\PC{0,40}",
    ) {
        let lines = text.lines().count() + 1;
        match parse(&text) {
            Ok(Some(node)) => {
                let mut seen = Vec::new();
                walk(&node, "", &mut seen);
                prop_assert!(seen.len() <= text.len() + 2, "{}", seen.len());
                prop_assert!(seen.iter().all(|(_, line, column)| *line <= lines && *column > 0));
            }
            Ok(None) => {}
            Err(fault) => prop_assert!(fault.at.line <= lines && fault.at.column > 0, "{:?}", fault),
        }
    }
}
