//! Prints the dependencies of modules below a folder, and the cycles between its subfolders: `cargo run -p
//! polyrail-testkit --example modules -- crates/cli/src/cmd/bench [--modules]`.

#[path = "../tests/modules/graph.rs"]
mod graph;
#[path = "../tests/modules/source.rs"]
mod source;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use graph::{Crate, Graph, Level};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let each = arguments.iter().position(|argument| argument == "--modules");
    let each = each.map(|at| arguments.remove(at)).is_some();
    let [folder] = &arguments[..] else {
        eprintln!(
            "usage: modules FOLDER [--modules], where FOLDER is a folder of a crate's sources"
        );
        return ExitCode::from(2);
    };
    let read = |file: &Path| fs::read_to_string(file).ok();
    match Crate::around(Path::new(folder), &read) {
        Ok((whole, names)) => {
            print!("{}", text(&Graph::new(&whole, &names), each));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("modules: {error}");
            ExitCode::from(2)
        }
    }
}

/// Formats folders from the top, the dependencies of each, and the cycles last.
fn text(graph: &Graph<'_>, each: bool) -> String {
    let folders = graph.folders();
    let mut lines = vec![format!("{} modules in {} folders", graph.len(), folders.len())];
    for folder in &folders {
        let modules = graph.modules(folder);
        lines.push(format!("{folder} ({})", modules.len()));
        for other in folders.iter().filter(|other| *other != folder) {
            let edges = graph.between(folder, other);
            if let Some(first) = edges.first().filter(|_| !each) {
                lines.push(format!("  → {other} ({}): {}", edges.len(), graph.show(first)));
            }
        }
        let edges = modules.iter().flat_map(|module| graph.uses(*module)).filter(|_| each);
        lines.extend(edges.map(|edge| format!("  {}", graph.show(edge))));
    }
    for (level, of) in [
        (Level::Parts, "parts"),
        (Level::Folders, "folders, the module itself among them"),
        (Level::Modules, "modules across folders"),
    ] {
        let knots = graph.knots(level);
        lines.push(format!("circles of {of}: {}", if knots.is_empty() { "none" } else { "" }));
        lines.extend(knots.iter().map(|knot| graph.show_knot(knot, level, &[])));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}
