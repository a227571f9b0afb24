//! Dependencies between modules of a crate, and their cycles.
//!
//! A path counts for the module that defines the named item: a module that only re-exports a name by `pub use` is
//! passed through. So a folder's own module may offer the items of the folder. Methods have no path: a call counts only
//! if the module also names the type.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::source::{Source, UsedPath};

/// The modules of a crate.
pub(crate) struct Crate {
    modules: Vec<Module>,
    by_path: HashMap<Vec<String>, usize>,
    edges: Vec<Edge>,
}

struct Module {
    /// Names from the crate's root on. Empty for the root.
    path: Vec<String>,
    file: PathBuf,
    source: Source,
}

/// Use of a module by another one, at the first place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) line: usize,
}

/// Level at which cycles are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// No two folders use each other, even by way of others: folders have an order.
    Folders,
    /// The same, except for the folder's own module: its parts may use it.
    Parts,
    /// No two modules of different folders use each other: folders may, by different modules.
    Modules,
}

/// Modules of a crate below a folder, grouped by subfolder: each belongs to the subfolder that it is in or named as,
/// and the folder's own module is separate.
pub(crate) struct Graph<'c> {
    of: &'c Crate,
    root: Vec<String>,
    members: BTreeSet<usize>,
    edges: Vec<Edge>,
}

/// Folders or modules that use each other: from each of them a path leads to each other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Knot {
    pub(crate) members: Vec<String>,
    /// Cycles among them: the shortest one of each dependency, sorted by length.
    circles: Vec<Vec<String>>,
}

impl Crate {
    /// Reads the crate that a folder of modules belongs to. Returns it with the names that lead to the folder.
    ///
    /// # Errors
    ///
    /// A file is missing or is not Rust.
    pub(crate) fn around(
        folder: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<(Self, Vec<String>), String> {
        for src in folder.ancestors() {
            let roots = ["lib.rs", "main.rs"].map(|file| src.join(file));
            if let Some(root) = roots.iter().find(|root| read(root).is_some()) {
                let names = folder.strip_prefix(src).unwrap_or(folder).components();
                let names = names.map(|name| name.as_os_str().to_string_lossy().into_owned());
                return Ok((Self::read(root, read)?, names.collect()));
            }
        }
        Err(format!("{}: no folder around it has a lib.rs or main.rs", folder.display()))
    }

    /// Reads a crate from its root on, like the compiler, by the declared modules.
    fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self, String> {
        let mut this = Self { modules: Vec::new(), by_path: HashMap::new(), edges: Vec::new() };
        let source = parse(root, read)?;
        this.add(Vec::new(), root, root.parent().unwrap_or(root), source, read)?;
        this.edges = this.find_edges();
        Ok(this)
    }

    /// Adds a module, and those in it, which are in a separate folder.
    fn add(
        &mut self,
        path: Vec<String>,
        file: &Path,
        folder: &Path,
        mut source: Source,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<(), String> {
        let mut children = Vec::new();
        for child in &mut source.children {
            let inner = folder.join(&child.name);
            let (file, folder, source) = match (child.inline.take(), &child.file) {
                (Some(source), _) => (file.to_owned(), inner, source),
                (None, Some(said)) => {
                    let beside = file.parent().unwrap_or(folder);
                    let file = beside.join(said);
                    let folder = file.parent().unwrap_or(folder).to_owned();
                    let source = parse(&file, read)?;
                    (file, folder, source)
                }
                (None, None) => {
                    let files = [inner.with_extension("rs"), inner.join("mod.rs")];
                    let found = files.iter().find(|file| read(file).is_some());
                    let file = found.ok_or_else(|| format!("{} is missing", files[0].display()))?;
                    (file.clone(), inner, parse(file, read)?)
                }
            };
            let path = [path.as_slice(), std::slice::from_ref(&child.name)].concat();
            children.push((path, file, folder, source));
        }
        self.by_path.insert(path.clone(), self.modules.len());
        self.modules.push(Module { path, file: file.to_owned(), source });
        for (path, file, folder, source) in children {
            self.add(path, &file, &folder, source, read)?;
        }
        Ok(())
    }

    /// Finds the other modules that each module uses.
    fn find_edges(&self) -> Vec<Edge> {
        let mut found: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            for UsedPath { segments, line } in &module.source.uses {
                let to = match self.resolve(from, segments, &mut HashSet::new()) {
                    Some(Found::Item(to)) => to,
                    // Importing a module only gives it a name; the uses of its items count separately.
                    Some(Found::Module(to)) if module.source.globs.contains(segments) => to,
                    Some(Found::Module(_)) | None => continue,
                };
                if to != from {
                    let first = found.entry((from, to)).or_insert(*line);
                    *first = (*first).min(*line);
                }
            }
        }
        found.into_iter().map(|((from, to), line)| Edge { from, to, line }).collect()
    }

    /// Resolves a path in a module. `None` if it belongs to another crate.
    fn resolve(
        &self,
        within: usize,
        segments: &[String],
        seen: &mut HashSet<(usize, String)>,
    ) -> Option<Found> {
        let here = &self.modules[within].path;
        let (first, mut rest) = segments.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => within,
            "super" => self.by_path[&here[..here.len().checked_sub(1)?]],
            name => match self.named(within, name, seen)? {
                Found::Module(module) => module,
                item @ Found::Item(_) => return Some(item),
            },
        };
        while let Some((name, after)) = rest.split_first() {
            rest = after;
            let path = &self.modules[at].path;
            at = match name.as_str() {
                "super" => self.by_path[&path[..path.len().checked_sub(1)?]],
                name => match self.named(at, name, seen) {
                    Some(Found::Module(module)) => module,
                    Some(item @ Found::Item(_)) => return Some(item),
                    // Re-exported from another crate, or made by a macro: the module whose name is used counts.
                    None => return Some(Found::Item(at)),
                },
            };
        }
        Some(Found::Module(at))
    }

    /// Resolves a name in a module, if it is a module or known to come from one.
    fn named(
        &self,
        within: usize,
        name: &str,
        seen: &mut HashSet<(usize, String)>,
    ) -> Option<Found> {
        let module = &self.modules[within];
        let path: Vec<&str> = module.path.iter().map(String::as_str).chain([name]).collect();
        let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
        if let Some(child) = self.by_path.get(&path) {
            return Some(Found::Module(*child));
        }
        if module.source.items.contains(name) {
            return Some(Found::Item(within));
        }
        if !seen.insert((within, name.to_owned())) {
            return None;
        }
        if let Some(path) = module.source.imports.get(name) {
            return self.resolve(within, path, seen);
        }
        module.source.globs.iter().find_map(|glob| match self.resolve(within, glob, seen)? {
            Found::Module(module) => self.named(module, name, seen),
            Found::Item(_) => None,
        })
    }
}

/// Target of a path.
enum Found {
    Module(usize),
    /// An item defined by this module.
    Item(usize),
}

fn parse(file: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Source, String> {
    let text = read(file).ok_or_else(|| format!("{} is missing", file.display()))?;
    Source::parse(&text).ok_or_else(|| format!("{} is no Rust", file.display()))
}

impl<'c> Graph<'c> {
    /// Creates the graph of the modules below `root`, which is a list of names from the crate's root to a folder.
    pub(crate) fn new(of: &'c Crate, root: &[String]) -> Self {
        let is_member = |at: &usize| of.modules[*at].path.starts_with(root);
        let members: BTreeSet<usize> = (0..of.modules.len()).filter(is_member).collect();
        let is_inside = |edge: &Edge| members.contains(&edge.from) && members.contains(&edge.to);
        let edges = of.edges.iter().filter(|edge| is_inside(edge)).cloned().collect();
        Self { of, root: root.to_vec(), members, edges }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Name of a module below the root. The root's own module is `self`.
    pub(crate) fn name(&self, module: usize) -> String {
        let below = &self.of.modules[module].path[self.root.len()..];
        if below.is_empty() { "self".to_owned() } else { below.join("::") }
    }

    /// Folder of a module.
    pub(crate) fn folder(&self, module: usize) -> String {
        let below = self.of.modules[module].path.get(self.root.len());
        below.map_or("self", String::as_str).to_owned()
    }

    /// Modules of a folder.
    pub(crate) fn modules(&self, folder: &str) -> Vec<usize> {
        self.members.iter().copied().filter(|module| self.folder(*module) == folder).collect()
    }

    /// Dependencies of a module.
    pub(crate) fn uses(&self, module: usize) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == module)
    }

    /// Dependencies of one folder on another, by module.
    pub(crate) fn between(&self, from: &str, to: &str) -> Vec<&Edge> {
        let is = |edge: &&Edge| self.folder(edge.from) == from && self.folder(edge.to) == to;
        self.edges.iter().filter(is).collect()
    }

    /// The folders, users before the used ones as far as such an order exists.
    pub(crate) fn folders(&self) -> Vec<String> {
        let mut left: BTreeSet<String> = self.members.iter().map(|at| self.folder(*at)).collect();
        let mut ordered = Vec::new();
        while !left.is_empty() {
            let users = |folder: &&String| {
                let others = left.iter().filter(|other| other != folder);
                others.filter(|other| !self.between(other, folder).is_empty()).count()
            };
            let Some(next) = left.iter().min_by_key(users).cloned() else { break };
            left.remove(&next);
            ordered.push(next);
        }
        ordered
    }

    /// Knots of folders, or of modules of several folders, sorted by their shortest cycle.
    pub(crate) fn knots(&self, level: Level) -> Vec<Knot> {
        let labels = self.labels(level);
        let mut used: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut crossing: BTreeSet<(&str, &str)> = BTreeSet::new();
        for edge in &self.edges {
            let (from, to) = (labels[edge.from].as_str(), labels[edge.to].as_str());
            if from.is_empty() || to.is_empty() {
                continue;
            }
            if from != to {
                used.entry(from).or_default().insert(to);
            }
            if self.folder(edge.from) != self.folder(edge.to) {
                crossing.insert((from, to));
            }
        }
        let mut circles: Vec<Vec<&str>> =
            crossing.iter().filter_map(|(from, to)| way(&used, to, from)).collect();
        for circle in &mut circles {
            let first = (0..circle.len()).min_by_key(|at| circle[*at]).unwrap_or(0);
            circle.rotate_left(first);
        }
        circles.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        circles.dedup();
        let mut knots: Vec<Knot> = Vec::new();
        for circle in circles.iter().filter(|circle| !circle.is_empty()) {
            let owned = circle.iter().map(|node| (*node).to_owned()).collect();
            match knots.iter_mut().find(|knot| knot.has(circle[0])) {
                Some(knot) => knot.circles.push(owned),
                None => {
                    let nodes = used.keys().copied();
                    let members = nodes
                        .filter(|node| way(&used, circle[0], node).is_some())
                        .filter(|node| way(&used, node, circle[0]).is_some());
                    let members = members.map(str::to_owned).collect();
                    knots.push(Knot { members, circles: vec![owned] });
                }
            }
        }
        knots
    }

    /// Name of each module of the crate at a level. Empty if it does not count.
    fn labels(&self, level: Level) -> Vec<String> {
        let is_own = |module: usize| self.of.modules[module].path == self.root;
        let label = |module| match level {
            Level::Parts if is_own(module) => String::new(),
            Level::Folders | Level::Parts if self.members.contains(&module) => self.folder(module),
            Level::Modules if self.members.contains(&module) => self.name(module),
            _ => String::new(),
        };
        (0..self.of.modules.len()).map(label).collect()
    }

    /// Formats the shortest cycle of a knot that contains one of these names: all members of the knot, and the places
    /// of each step.
    pub(crate) fn show_knot(&self, knot: &Knot, level: Level, through: &[String]) -> String {
        let goes_through = |circle: &&Vec<String>| circle.iter().any(|one| through.contains(one));
        let circle = knot.circles.iter().find(goes_through).unwrap_or(&knot.circles[0]);
        let labels = self.labels(level);
        let mut text = format!("  {} → {}\n", circle.join(" → "), circle[0]);
        if knot.members.len() > circle.len() {
            let (count, members) = (knot.members.len(), knot.members.join(", "));
            let _ = writeln!(text, "    in a knot of {count}: {members}");
        }
        for (at, from) in circle.iter().enumerate() {
            let to = &circle[(at + 1) % circle.len()];
            let is = |edge: &&Edge| labels[edge.from] == *from && labels[edge.to] == *to;
            for edge in self.edges.iter().filter(is) {
                let _ = writeln!(text, "    {}", self.show(edge));
            }
        }
        text
    }

    /// Formats a dependency with its place.
    pub(crate) fn show(&self, edge: &Edge) -> String {
        let file = self.of.modules[edge.from].file.display();
        format!("{file}:{}: {} uses {}", edge.line, self.name(edge.from), self.name(edge.to))
    }
}

impl Knot {
    fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member == name)
    }
}

/// Shortest path from one node to another.
fn way<'n>(
    used: &BTreeMap<&'n str, BTreeSet<&'n str>>,
    from: &'n str,
    to: &'n str,
) -> Option<Vec<&'n str>> {
    let mut before: HashMap<&str, &str> = HashMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(node) = next.pop_front() {
        if node == to {
            let mut path = vec![to];
            while path.last() != Some(&from) {
                path.push(before[path[path.len() - 1]]);
            }
            path.reverse();
            return Some(path);
        }
        for other in used.get(node).into_iter().flatten() {
            if *other != from && !before.contains_key(other) {
                before.insert(other, node);
                next.push_back(other);
            }
        }
    }
    None
}
