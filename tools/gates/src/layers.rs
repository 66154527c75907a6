//! Imports between the rooms of one crate of the library: only of lower ones, and those that a folder's `//!` names.
//!
//! A room is a folder of a crate's `src`, or a file there. [`CRATES`] has them in an order in which each imports only what stands
//! before it, so there is no circle. A folder says in its head which it imports (`May import: ...`), no more and no less. Tests may
//! import what they like, and every room what crates below its own have: there the compiler says what is above.

use super::text::{blank, without_tests};
use std::collections::{BTreeMap, BTreeSet};

/// Rooms of a crate of the library.
#[derive(Debug)]
pub(crate) struct CrateRooms {
    /// Folder of its sources.
    pub(crate) sources: &'static str,
    /// Lowest first.
    pub(crate) rooms: &'static [&'static str],
}

/// Lowest first.
pub(crate) const CRATES: &[CrateRooms] = &[
    CrateRooms {
        sources: "crates/comity-base/src/",
        rooms: &[
            "fuzz_input",
            "sync",
            "call",
            "error",
            "sys",
            "key",
            "address",
            "view",
            "lanes",
            "stats",
            "root_cause",
        ],
    },
    CrateRooms { sources: "crates/comity-settings/src/", rooms: &["exchange", "settings", "costs"] },
    CrateRooms {
        sources: "crates/comity-job/src/",
        // State of a group is below those who make links, and those who use them.
        rooms: &["status", "control", "links"],
    },
    CrateRooms {
        sources: "crates/comity/src/",
        rooms: &[
            "config", "recorder", "engine", "backend", "turn", "cuda", "group", "warnings", "tools", "fuzz",
        ],
    },
];

/// A file of the library: its place and its text.
pub(crate) type File = (String, String);

/// Lists the misplaced imports of a crate among `files`. One of them is its `lib.rs`.
pub(crate) fn misplaced(files: &[File], CrateRooms { sources, rooms }: &CrateRooms) -> Vec<String> {
    let of = |name: &str| files.iter().find(|(n, _)| *n == format!("{sources}{name}")).map(|(_, text)| text);
    let Some(root) = of("lib.rs") else { return vec![format!("there is no {sources}lib.rs")] };
    let exports = exports(&blank(root));
    let mut found = Vec::new();
    let mut used: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, text) in files {
        let Some(module) = module(name, sources) else { continue };
        let Some(room) = rooms.iter().find(|r| **r == module[0]) else {
            found.push(format!(
                "{name}: {} is no room; give it a place in tools/gates/src/layers.rs",
                module[0]
            ));
            continue;
        };
        let uses = used.entry(room).or_default();
        for (line, path) in imports(text, module.len()) {
            let at = format!("{name}:{}", line + 1);
            let other = match (rooms.iter().find(|r| **r == path), exports.get(&path)) {
                (Some(other), _) => *other,
                (None, Some(Some(head))) => match rooms.iter().find(|r| *r == head) {
                    Some(other) => *other,
                    // Of another crate.
                    None => continue,
                },
                (None, Some(None)) => continue,
                (None, None) => {
                    found.push(format!(
                        "{at}: whose is crate::{path}? It is no room, and lib.rs exports none such"
                    ));
                    continue;
                }
            };
            if other == *room {
                continue;
            }
            uses.insert(other);
            let place = |x: &str| rooms.iter().position(|r| *r == x);
            if place(other) > place(room) {
                found.push(format!("{at}: {room} imports {other} (crate::{path}), which stands above it"));
            }
        }
    }
    for room in *rooms {
        let Some(uses) = used.get(room) else {
            found.push(format!("there is no room {room}; remove it from tools/gates/src/layers.rs"));
            continue;
        };
        let folder = files.iter().any(|(name, _)| name.starts_with(&format!("{sources}{room}/")));
        if folder {
            let head = of(&format!("{room}/mod.rs")).or_else(|| of(&format!("{room}.rs")));
            found.extend(head.and_then(|text| differs(room, text, uses)));
        }
    }
    found
}

/// Lists the heads of folders whose imports are not those of their files.
fn differs(room: &str, text: &str, uses: &BTreeSet<&str>) -> Option<String> {
    let said = promise(text);
    let said: BTreeSet<&str> = said.iter().flatten().map(String::as_str).collect();
    if said == *uses && promise(text).is_some() {
        return None;
    }
    let names: Vec<String> = uses.iter().map(|u| format!("`{u}`")).collect();
    let names = if names.is_empty() { "nothing".into() } else { names.join(", ") };
    Some(format!("{room}: the `//!` of this folder must say what it imports: `//! May import: {names}.`"))
}

/// The names after `May import:`, to the end of that paragraph.
fn promise(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim);
    let first = lines.find_map(|l| l.strip_prefix("May import:"))?;
    let rest = lines.take_while(|l| !l.is_empty());
    let all = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" ");
    Some(all.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// The path of a file's module; none for `lib.rs`, tests and what is not of the crate.
fn module<'a>(name: &'a str, sources: &str) -> Option<Vec<&'a str>> {
    let name = name.strip_prefix(sources)?.strip_suffix(".rs")?;
    let parts: Vec<&str> = name.split('/').filter(|p| *p != "mod").collect();
    (name != "lib" && !parts.contains(&"tests")).then_some(parts)
}

/// Returns the names that the crate's root exports or imports: the first part of its path, or none for what another crate defines.
fn exports(code: &str) -> BTreeMap<String, Option<String>> {
    let mut all = BTreeMap::new();
    for (_, rest) in super::words(code, "use") {
        let path = rest.split(';').next().unwrap_or_default().trim();
        let (head, tail) =
            path.split_once("::").map_or((None, path), |(h, t)| (Some(h.trim().to_owned()), t));
        for leaf in tail.split(['{', '}', ',']).map(str::trim).filter(|l| !l.is_empty() && !l.ends_with("::"))
        {
            let name = leaf.rsplit([' ', ':']).next().unwrap_or_default();
            all.insert(name.to_owned(), head.clone());
        }
    }
    all
}

/// Lists the names of the root that a file, `depth` modules below it, uses, each with its line from 0. Tests in it do not count.
fn imports(text: &str, depth: usize) -> Vec<(usize, String)> {
    let code = blank(text);
    let kept = without_tests(&code);
    let mut all = Vec::new();
    // Of the modules inside this file around a line, how far in each begins.
    let mut inner: Vec<usize> = Vec::new();
    for (at, (line, code)) in kept.iter().enumerate() {
        let indent = code.len() - code.trim_start().len();
        if code.trim_start().starts_with('}') && inner.last() == Some(&indent) {
            inner.pop();
        }
        let depth = depth + inner.len();
        let below = || kept[at + 1..].iter().flat_map(|(_, l)| [*l, "\n"]).collect::<String>();
        for (before, after) in super::words(code, "crate") {
            if let Some(path) = after.trim_start().strip_prefix("::")
                && !before.trim_end().ends_with("::")
            {
                all.extend(heads(path, below).into_iter().map(|h| (*line, h)));
            }
        }
        for (before, after) in super::words(code, "super") {
            let Some(mut path) = after.strip_prefix("::") else { continue };
            if before.ends_with("::") && !before.ends_with("self::") {
                continue;
            }
            let mut up = 1;
            while let Some(more) = path.strip_prefix("super::") {
                (path, up) = (more, up + 1);
            }
            let heads = heads(path, below);
            if up == depth {
                all.extend(heads.into_iter().map(|h| (*line, h)));
            } else if heads.iter().any(|h| h == "super") {
                // Nobody writes so; whoever does is asked not to.
                all.push((*line, "super".into()));
            }
        }
        if super::has_word(code, "mod") && code.trim_end().ends_with('{') {
            inner.push(indent);
        }
    }
    all
}

/// The first names of a path, or of each path in its braces, which may go on below this line.
fn heads(path: &str, below: impl Fn() -> String) -> Vec<String> {
    let name = |p: &str| {
        let p = p.trim_start();
        if p.starts_with('*') {
            return "*".to_owned();
        }
        p.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(inside) = path.trim_start().strip_prefix('{') else { return vec![name(path)] };
    let all = format!("{inside}\n{}", below());
    let mut deep = 0;
    let mut begin = 0;
    let mut found = Vec::new();
    for (i, c) in all.char_indices() {
        match c {
            '{' => deep += 1,
            '}' if deep > 0 => deep -= 1,
            ',' | '}' if deep == 0 => {
                found.push(name(&all[begin..i]));
                begin = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found.retain(|f| !f.is_empty());
    found
}

#[cfg(test)]
mod tests;
