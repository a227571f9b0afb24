//! Every public item that users call has an example, or names an item that has one.

use std::collections::HashMap;
use std::path::Path;

/// Sources with the public items.
const SOURCES: &[&str] = &[
    "api/builder.rs",
    "api/connecting.rs",
    "api/engine.rs",
    "api/exit.rs",
    "api/gone.rs",
    "api/memory.rs",
    "api/notifications.rs",
    "api/peers.rs",
    "api/prepared.rs",
    "api/publish.rs",
    "api/rails.rs",
    "api/register.rs",
    "api/request.rs",
    "api/tasks.rs",
    "api/transfer.rs",
    "api/transfers.rs",
    "engine/joining.rs",
    "engine/peer_handle.rs",
    "memory/access.rs",
    "memory/region.rs",
    "memory/region_core.rs",
    "memory/registry.rs",
    "memory/remote_region.rs",
];

struct Item {
    place: String,
    /// The type that it belongs to, if any.
    owner: String,
    name: String,
    doc: String,
}

/// Public items with the text above them.
fn items(source: &str) -> Vec<Item> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(source);
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    let (mut doc, mut owner, mut is_sealed) = (String::new(), String::new(), false);
    for (number, line) in text.lines().enumerate() {
        let is_top = !line.starts_with([' ', '}']);
        let line = line.trim_start();
        if line.starts_with("mod tests") {
            break;
        }
        if is_top && !line.is_empty() && !line.starts_with(['/', '#']) {
            owner = if line.starts_with("impl") { owner_of(line) } else { String::new() };
            // Items of a private module are not public.
            is_sealed = line.starts_with("mod ");
        }
        let name = ["pub fn ", "pub struct ", "pub enum ", "pub trait ", "pub const "]
            .into_iter()
            .find_map(|kind| line.strip_prefix(kind));
        if let Some(rest) = name.filter(|_| !is_sealed) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let place = format!("{source}:{}", number + 1);
            let (name, doc) = (rest[..end].to_owned(), std::mem::take(&mut doc));
            found.push(Item { place, owner: owner.clone(), name, doc });
        } else if let Some((_, rest)) =
            line.split_once("include_str!(\"").and_then(|(_, path)| path.split_once("../doc/"))
        {
            let file = rest.split('"').next().unwrap();
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("doc").join(file);
            doc.push_str(&std::fs::read_to_string(path).unwrap());
        } else if line.starts_with("///") || line.starts_with("#[") {
            doc.push_str(line);
            doc.push('\n');
        } else {
            doc.clear();
        }
    }
    found
}

/// The type of an `impl`, without parameters.
fn owner_of(line: &str) -> String {
    let rest = line.split_once(" for ").map_or(line, |(_, rest)| rest);
    let rest = rest.trim_start_matches("impl");
    let rest = match rest.strip_prefix('<') {
        Some(rest) => rest.split_once('>').map_or(rest, |(_, rest)| rest),
        None => rest,
    };
    let rest = rest.trim_start();
    rest[..rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())].to_owned()
}

/// Returns whether an example calls the item.
fn calls(doc: &str, name: &str) -> bool {
    [".", "::"].iter().any(|before| {
        doc.split(&format!("{before}{name}"))
            .skip(1)
            .any(|rest| !rest.starts_with(char::is_alphanumeric))
    })
}

/// Names in links, without what they belong to.
fn links(doc: &str) -> impl Iterator<Item = &str> {
    let targets = doc.split("[`").skip(1).filter_map(|rest| rest.split_once("`]"));
    targets.map(|(target, _)| target.rsplit("::").next().unwrap_or(target))
}

#[test]
fn each_public_item_has_an_example_or_names_one_that_has() {
    let all: Vec<Item> = SOURCES.iter().flat_map(|source| items(source)).collect();
    assert!(all.len() > 60, "only {} items were found", all.len());
    let mut examples = HashMap::<&str, String>::new();
    for item in all.iter().filter(|item| item.doc.contains("/// ```")) {
        examples.entry(&item.name).or_default().push_str(&item.doc);
    }
    let is_shown = |item: &&Item| {
        let is_hidden = item.doc.contains("#[doc(hidden)]");
        // The page of a method also shows the example of its type.
        let by_owner = examples.get(&*item.owner).is_some_and(|doc| calls(doc, &item.name));
        let has_own = item.doc.contains("/// ```");
        is_hidden || has_own || by_owner || links(&item.doc).any(|name| examples.contains_key(name))
    };
    let bare: Vec<String> = all
        .iter()
        .filter(|item| !is_shown(item))
        .map(|item| format!("{} {}", item.place, item.name))
        .collect();
    assert!(bare.is_empty(), "no example and no link to one:\n{}", bare.join("\n"));
}
