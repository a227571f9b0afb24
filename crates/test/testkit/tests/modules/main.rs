//! No cycles of modules: within a folder of any crate, no two subfolders or modules use each other, even by way of
//! others. A module and the parts below it are one: parts may use it, except that the root of a crate must not contain
//! items that its modules use. `knots.txt` lists the exceptions, which may only shrink. To see the modules of any
//! folder:
//! `cargo run -p polyrail-testkit --example modules -- crates/cli/src/cmd/bench`.

mod graph;
mod knots;
mod source;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use graph::{Crate, Graph, Level};
use knots::Listed;

const LIST: &str = "crates/test/testkit/tests/modules/knots.txt";

#[test]
fn no_circle_of_modules_is_new_and_none_has_grown() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).ok();
    let mut listed = Listed::parse(include_str!("knots.txt")).unwrap();
    let (mut faults, mut modules) = (Vec::new(), 0);
    for src in sources(&workspace) {
        let (whole, _) = Crate::around(&src, &read).unwrap();
        for names in folders(&whole) {
            let graph = Graph::new(&whole, &names);
            modules += if names.is_empty() { graph.len() } else { 0 };
            let folder = src.join(names.join("/")).display().to_string();
            let folder = folder.trim_end_matches('/');
            let known = listed.take(folder);
            let level = if names.is_empty() { Level::Folders } else { Level::Parts };
            let knots = graph.knots(level);
            let members: Vec<&[String]> = knots.iter().map(|knot| &knot.members[..]).collect();
            let show = |at: usize, through: &[String]| graph.show_knot(&knots[at], level, through);
            faults.extend(knots::faults(folder, &members, &known, &show));
        }
    }
    faults.extend(listed.left().map(|folder| format!("{folder}: no such folder; remove it")));
    assert!(modules > 500, "found no more than {modules} modules");
    assert!(faults.is_empty(), "\n{LIST} does not say what is:\n\n{}", faults.join("\n"));
}

/// Source folder of each crate.
fn sources(workspace: &Path) -> Vec<PathBuf> {
    let inside = |folder: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(workspace.join(&folder)).unwrap();
        let entries = entries.map(|entry| folder.join(entry.unwrap().file_name()));
        entries.filter(|path| workspace.join(path).is_dir()).collect()
    };
    // The command, and groups of crates.
    let mut folders = inside("crates".into());
    folders.extend(folders.clone().into_iter().flat_map(inside));
    folders.retain(|folder| workspace.join(folder).join("Cargo.toml").exists());
    let mut sources: Vec<PathBuf> = folders.iter().map(|folder| folder.join("src")).collect();
    sources.sort();
    sources
}

/// Modules of a crate that have modules below them, by their names from the crate's root on.
fn folders(whole: &Crate) -> BTreeSet<Vec<String>> {
    let graph = Graph::new(whole, &[]);
    let modules = graph.folders().into_iter().flat_map(|folder| graph.modules(&folder));
    let above = |module| {
        let mut names: Vec<String> = graph.name(module).split("::").map(str::to_owned).collect();
        names.pop();
        names
    };
    modules.map(above).collect()
}

/// A crate of these files, with the root `src/lib.rs`.
fn krate(files: &[(&str, &str)]) -> Crate {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let read = |file: &Path| files.get(file.to_str()?).map(|text| (*text).to_owned());
    Crate::around(Path::new("src"), &read).unwrap().0
}

/// Cycles below `root` at a level.
fn circles(files: &[(&str, &str)], root: &[&str], level: Level) -> Vec<String> {
    let root: Vec<String> = root.iter().map(|name| (*name).to_owned()).collect();
    let whole = krate(files);
    let graph = Graph::new(&whole, &root);
    graph.knots(level).iter().map(|knot| graph.show_knot(knot, level, &[])).collect()
}

/// Dependencies between modules, with their lines.
fn uses(files: &[(&str, &str)]) -> Vec<String> {
    let whole = krate(files);
    let graph = Graph::new(&whole, &[]);
    let folders = graph.folders();
    let modules = folders.iter().flat_map(|folder| graph.modules(folder));
    let edges = modules.flat_map(|module| graph.uses(module).collect::<Vec<_>>());
    let mut shown: Vec<String> = edges
        .map(|edge| format!("{}:{} {}", graph.name(edge.from), edge.line, graph.name(edge.to)))
        .collect();
    shown.sort();
    shown
}

#[test]
fn two_folders_that_use_each_other_are_a_circle_with_file_and_line_of_each_step() {
    let found = circles(
        &[
            ("src/lib.rs", "mod far;"),
            ("src/far.rs", "mod a;\nmod b;"),
            ("src/far/a.rs", "mod deep;"),
            ("src/far/a/deep.rs", "\nuse crate::far::b::{self, Thing};"),
            ("src/far/b.rs", "pub struct Thing;\nfn f() {\n    super::a::g();\n}"),
        ],
        &["far"],
        Level::Folders,
    );
    assert_eq!(
        found,
        ["  a → b → a\n    src/far/a/deep.rs:2: a::deep uses b\n    src/far/b.rs:3: b uses a\n"]
    );
}

#[test]
fn a_circle_of_three_is_found_and_one_of_each_knot_is_told() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
        ("src/a.rs", "use crate::b::X;"),
        ("src/b.rs", "use crate::c::X;"),
        ("src/c.rs", "use crate::a::X;"),
        ("src/d.rs", "use crate::{a::Y, e::Z};"),
        ("src/e.rs", "impl crate::d::Trait for () {}"),
    ];
    let found = circles(&files, &[], Level::Folders);
    let heads: Vec<&str> = found.iter().filter_map(|circle| circle.lines().next()).collect();
    assert_eq!(heads, ["  d → e → d", "  a → b → c → a"]);

    let mut tied = files;
    tied[1].1 = "use crate::{b::X, d::Y};";
    tied[5].1 = "use crate::{b::X, d::Y};";
    let found = circles(&tied, &[], Level::Folders);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].lines().nth(1), Some("    in a knot of 5: a, b, c, d, e"), "{}", found[0]);

    let whole = krate(&tied);
    let graph = Graph::new(&whole, &[]);
    let knot = &graph.knots(Level::Folders)[0];
    let through = graph.show_knot(knot, Level::Folders, &["c".to_owned()]);
    assert!(through.starts_with("  a → b → c → a\n"), "{through}");
}

#[test]
fn an_order_has_no_circle_and_is_told_from_the_top() {
    let files = [
        ("src/lib.rs", "mod low; mod mid; mod top; use top::Run;"),
        ("src/top.rs", "use crate::{mid::M, low::L};"),
        ("src/mid.rs", "use super::low::*;"),
        ("src/low.rs", "pub struct L;"),
    ];
    assert_eq!(circles(&files, &[], Level::Folders), [""; 0]);
    assert_eq!(Graph::new(&krate(&files), &[]).folders(), ["self", "top", "mid", "low"]);
}

#[test]
fn what_stays_in_a_folder_is_its_own_matter() {
    let files = [("src/lib.rs", "mod a { mod x { use super::y::Y; } mod y { use super::x::X; } }")];
    assert_eq!(circles(&files, &[], Level::Folders), [""; 0]);
    assert_eq!(circles(&files, &[], Level::Modules), [""; 0]);
}

#[test]
fn parts_of_a_module_may_use_it_and_not_each_other_in_a_circle() {
    let files = [
        ("src/lib.rs", "mod a;"),
        ("src/a.rs", "mod b; mod c; use b::B; pub struct A;"),
        ("src/a/b.rs", "use super::A; use super::c::C; pub struct B;"),
        ("src/a/c.rs", "use crate::a::A; pub struct C;"),
    ];
    assert_eq!(circles(&files, &["a"], Level::Folders).len(), 1);
    assert_eq!(circles(&files, &["a"], Level::Parts), [""; 0]);
    let tied = [files[0], files[1], files[2], ("src/a/c.rs", "use super::b::B; pub struct C;")];
    let found = circles(&tied, &["a"], Level::Parts);
    assert!(found.len() == 1 && found[0].starts_with("  b → c → b\n"), "{found:?}");
}

#[test]
fn by_modules_folders_may_use_each_other_unless_a_module_comes_back_to_itself() {
    let open = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "mod x { use crate::b::x::X; } mod y { pub struct Y; }"),
        ("src/b.rs", "mod x { pub struct X; } mod y { use crate::a::y::Y; }"),
    ];
    assert_eq!(circles(&open, &[], Level::Folders).len(), 1);
    assert_eq!(circles(&open, &[], Level::Modules), [""; 0]);

    let closed = ("src/b.rs", "mod x { use super::y::Z; } mod y { use crate::a::x::W; }");
    let found = circles(&[open[0], open[1], closed], &[], Level::Modules);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("  a::x → b::x → b::y → a::x\n"), "{}", found[0]);
}

#[test]
fn what_is_handed_on_counts_for_who_defines_it() {
    let files = [
        ("src/lib.rs", "pub mod a; mod b; pub use a::Name; pub use a::inner::*;"),
        ("src/a.rs", "pub mod inner; pub use self::inner::Name; pub use std::fmt;"),
        ("src/a/inner.rs", "pub struct Name; pub enum Other { One }"),
        (
            "src/b.rs",
            "use crate::Name;\nuse crate::a as first;\nuse super::Other;\n\
                      fn f() { first::Name; first::fmt::x(); }",
        ),
    ];
    assert_eq!(
        uses(&files),
        ["a:1 a::inner", "b:1 a::inner", "b:4 a", "self:1 a::inner"],
        "an import of a module is no use of it"
    );
}

#[test]
fn paths_are_read_wherever_they_are() {
    let read = |text: &str| {
        let lib = "mod a; mod b; mod c { pub mod d; } mod m;";
        let files = [
            ("src/lib.rs", lib),
            ("src/a.rs", text),
            ("src/b.rs", "pub fn f() {}"),
            ("src/c/d.rs", "pub struct S;"),
            ("src/m/mod.rs", ""),
        ];
        uses(&files).into_iter().filter(|edge| edge.starts_with('a')).collect::<Vec<_>>()
    };
    for (text, edges) in [
        ("use crate::b;\nfn g() { b::f() }", vec!["a:2 b"]),
        ("use crate::{b as other, c::{self, d::{S, T as U}}};", vec!["a:1 c::d"]),
        ("use super::{b::*, m::X as _,};", vec!["a:1 b", "a:1 m"]),
        (
            "fn g() {\n let x = Vec::<crate::b::F>::new();\n super::m::h(x) }",
            vec!["a:2 b", "a:3 m"],
        ),
        (
            "mod inner { use super::super::b::f; use super::T; }",
            vec!["a::inner:1 a", "a::inner:1 b"],
        ),
        ("fn g() { println!(\"{}\", super::b::f()) }", vec!["a:1 b"]),
        ("#[arg(value_parser = super::b::f)]\nstruct T;", vec!["a:1 b"]),
        ("pub(in crate::b) fn g(x: impl super::m::Trait) {}", vec!["a:1 m"]),
        ("pub(super) fn g() -> <super::m::T as Iterator>::Item {}", vec!["a:1 m"]),
        ("use ::b::f; use b::g; fn h(b: &B) { b::f(); x.b::<u8>(); ::m::f(); }", vec![]),
        ("// crate::b::f\n/// [`super::b`]\nconst X: &str = \"crate::b::f()\";", vec![]),
    ] {
        assert_eq!(read(text), edges, "{text}");
    }
}

#[test]
fn what_is_for_tests_only_does_not_count() {
    let read = |text: &str| {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod m;"),
            ("src/a.rs", text),
            ("src/b.rs", ""),
            ("src/m.rs", ""),
        ];
        uses(&files)
    };
    for text in [
        "#[cfg(test)] mod tests { use crate::b::f; }",
        "#[cfg(test)] mod tests;",
        "#[cfg(test)] #[path = \"a_tests.rs\"] pub(crate) mod tests;",
        "#![cfg(test)] use crate::b::f;",
        "#[cfg(all(test, not(loom)))] impl T { fn f<A, B>() { super::b::f() } }",
        "#[cfg(any(test))] use crate::b::{f, g};",
        "#[cfg(test)] const X: T = T { x: super::b::X };",
        "struct S { #[cfg(test)] x: super::b::X, y: u8 }",
        "fn f() { #[cfg(test)] super::b::f(); #[cfg(test)] let x = { super::b::f() }; }",
    ] {
        assert_eq!(read(text), [""; 0], "{text}");
        let after = format!("{text}\nuse crate::m::M;");
        let counts = !text.starts_with("#!");
        assert_eq!(read(&after), vec!["a:2 m"; usize::from(counts)], "{after}");
    }
    for text in [
        "#[cfg(feature = \"x\")] use crate::b::f;",
        "#[cfg(any(test, x))] use crate::b::f;",
        "#[cfg(not(test))] use crate::b::f;",
        "#[test] fn f() { super::b::f() }",
    ] {
        assert_eq!(read(text), ["a:1 b"], "{text}");
    }
}

#[test]
fn modules_are_found_where_the_compiler_finds_them() {
    let files = [
        ("src/lib.rs", "#[path = \"far/away.rs\"] pub(crate) mod near; mod in_place { mod deep; }"),
        ("src/far/away.rs", "mod beside;"),
        ("src/far/beside.rs", "use crate::in_place::deep::D;"),
        ("src/in_place/deep.rs", ""),
        ("src/in_place/not_declared.rs", "use crate::near::N;"),
    ];
    assert_eq!(uses(&files), ["near::beside:1 in_place::deep"]);

    let missing = |file: &Path| (file == Path::new("src/lib.rs")).then(|| "mod a;".to_owned());
    let error = Crate::around(Path::new("src/x"), &missing).err();
    assert_eq!(error.as_deref(), Some("src/a.rs is missing"));
    let error = Crate::around(Path::new("elsewhere"), &missing).err();
    assert!(error.is_some_and(|error| error.starts_with("elsewhere: ")));
}
