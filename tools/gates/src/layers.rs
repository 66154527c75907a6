//! Imports between the rooms of one crate of the library: only of lower ones.
//!
//! A room is a folder of a crate's `src`, or a file there. [`CRATES`] has them in an order in which each imports only what stands
//! before it, so there is no circle. Another room is named from `crate::` on. Tests may import what they like, and every room what crates
//! below its own have: there the compiler says what is above.

use super::text::{blank, without_tests};
use std::collections::BTreeMap;

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
    let root = files.iter().find(|(name, _)| *name == format!("{sources}lib.rs"));
    let Some((_, root)) = root else { return vec![format!("there is no {sources}lib.rs")] };
    let exports = exports(&blank(root));
    let place = |room: &str| rooms.iter().position(|r| *r == room);
    let mut found = Vec::new();
    for (name, text) in files {
        let Some(module) = module(name, sources) else { continue };
        let Some(own) = place(module[0]) else {
            found.push(format!(
                "{name}: {} is no room; give it a place in tools/gates/src/layers.rs",
                module[0]
            ));
            continue;
        };
        for (line, path) in imports(text, module.len()) {
            let at = format!("{name}:{}", line + 1);
            let room = match (place(&path), exports.get(&path)) {
                (None, None) => {
                    let whose = format!("whose is {path}? It is no room, and lib.rs exports none such");
                    found.push(format!("{at}: {whose}"));
                    continue;
                }
                (None, Some(head)) => place(head),
                (room, _) => room,
            };
            // None: of another crate.
            if room.is_some_and(|room| room > own) {
                let own = rooms[own];
                found.push(format!("{at}: {own} imports crate::{path}, which stands above it"));
            }
        }
    }
    for room in rooms.iter() {
        if !files.iter().any(|(name, _)| module(name, sources).is_some_and(|m| m[0] == *room)) {
            found.push(format!("there is no room {room}; remove it from tools/gates/src/layers.rs"));
        }
    }
    found
}

/// The path of a file's module; none for `lib.rs`, tests and what is not of the crate.
fn module<'a>(name: &'a str, sources: &str) -> Option<Vec<&'a str>> {
    let name = name.strip_prefix(sources)?.strip_suffix(".rs")?;
    let parts: Vec<&str> = name.split('/').filter(|p| *p != "mod").collect();
    (name != "lib" && !parts.contains(&"tests")).then_some(parts)
}

/// Returns the names that the crate's root exports or imports, each with the first part of its path.
fn exports(code: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (_, rest) in super::words(code, "use") {
        let path = rest.split(';').next().unwrap_or_default().trim();
        let (head, tail) = path.split_once("::").unwrap_or(("", path));
        for leaf in tail.split(['{', '}', ',']).map(str::trim).filter(|l| !l.is_empty() && !l.ends_with("::"))
        {
            let name = leaf.rsplit([' ', ':']).next().unwrap_or_default();
            all.insert(name.to_owned(), head.to_owned());
        }
    }
    all
}

/// Lists the names of the root that a file, `depth` modules below it, uses, each with its line from 0. Tests in it do not count.
fn imports(text: &str, depth: usize) -> Vec<(usize, String)> {
    let code = blank(text);
    let kept = without_tests(&code);
    let mut all = Vec::new();
    for (at, (line, code)) in kept.iter().enumerate() {
        // A way up that goes past the room, or may do so.
        let up = if depth == 1 { "super::" } else { "super::super::" };
        if code.contains(up) {
            all.push((*line, up.to_owned()));
        }
        for (before, after) in super::words(code, "crate") {
            if let Some(path) = after.trim_start().strip_prefix("::")
                && !before.trim_end().ends_with("::")
            {
                let below = || kept[at + 1..].iter().flat_map(|(_, l)| [*l, "\n"]).collect::<String>();
                all.extend(heads(path, below).into_iter().map(|h| (*line, h)));
            }
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
