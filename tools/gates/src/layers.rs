//! Imports between the rooms of one crate of the library: only of lower ones.
//!
//! A room is a folder of a crate's `src`, or a file there. [`CRATES`] has them in an order in which each imports only what stands
//! before it, so there is no circle. Another room is named from `crate::` on. Tests may import what they like, and every room what crates
//! below its own have: there the compiler says what is above.

use super::text::{Source, split_at_word};
use std::collections::BTreeMap;

/// Folder of a crate's sources, and its rooms, lowest first.
pub(crate) type CrateRooms = (&'static str, &'static [&'static str]);

/// Lowest first.
pub(crate) const CRATES: &[CrateRooms] = &[
    (
        "crates/comity-base/src/",
        &[
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
    ),
    ("crates/comity-settings/src/", &["exchange", "settings", "costs"]),
    // State of a group is below those who make links, and those who use them.
    ("crates/comity-job/src/", &["status", "control", "links"]),
    (
        "crates/comity/src/",
        &["config", "recorder", "engine", "backend", "turn", "cuda", "group", "warnings", "tools", "fuzz"],
    ),
];

/// Lists the misplaced imports of a crate among `files`. One of them is its `lib.rs`.
pub(crate) fn misplaced(files: &[Source], (sources, rooms): &CrateRooms) -> Vec<String> {
    let Some(root) = files.iter().find(|file| file.name == format!("{sources}lib.rs")) else {
        return vec![format!("there is no {sources}lib.rs")];
    };
    let exports = exports(root);
    let place = |room: &str| rooms.iter().position(|r| *r == room);
    let mut missing = rooms.to_vec();
    let mut found = Vec::new();
    for file in files {
        let Some(module) = module(&file.name, sources) else { continue };
        missing.retain(|room| *room != module[0]);
        let Some(own) = place(module[0]) else {
            let unknown = "is no room; give it a place in tools/gates/src/layers.rs";
            found.push(format!("{}: {} {unknown}", file.name, module[0]));
            continue;
        };
        for (n, path) in imports(file, module.len()) {
            let at = format!("{}:{n}", file.name);
            match (place(&path), exports.get(&path)) {
                (None, None) => {
                    found.push(format!("{at}: whose is {path}? It is no room, and lib.rs exports none such"));
                }
                // None: of another crate.
                (room, head) if room.or_else(|| place(head?)).is_some_and(|room| room > own) => {
                    found.push(format!("{at}: {} imports crate::{path}, which stands above it", rooms[own]));
                }
                _ => {}
            }
        }
    }
    found.extend(
        missing
            .iter()
            .map(|room| format!("there is no room {room}; remove it from tools/gates/src/layers.rs")),
    );
    found
}

/// The path of a file's module; none for `lib.rs`, tests and what is not of the crate.
fn module<'a>(name: &'a str, sources: &str) -> Option<Vec<&'a str>> {
    let name = name.strip_prefix(sources)?.strip_suffix(".rs")?;
    let parts: Vec<&str> = name.split('/').filter(|p| *p != "mod").collect();
    (name != "lib" && !parts.contains(&"tests")).then_some(parts)
}

/// Returns the names that the crate's root exports or imports, each with the first part of its path.
fn exports(root: &Source) -> BTreeMap<String, String> {
    let code: String = root.lines.iter().flat_map(|line| [&line.code, "\n"]).collect();
    let mut all = BTreeMap::new();
    for (_, rest) in split_at_word(&code, "use") {
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

/// Lists the names of the root that a file, `depth` modules below it, uses, each with its line. Tests in it do not count.
fn imports(file: &Source, depth: usize) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let kept: Vec<_> = file.shipped().collect();
    for (at, (n, line)) in kept.iter().enumerate() {
        // A way up that goes past the room, or may do so.
        let up = if depth == 1 { "super::" } else { "super::super::" };
        if line.code.contains(up) {
            all.push((*n, up.to_owned()));
        }
        for (before, after) in split_at_word(&line.code, "crate") {
            if let Some(path) = after.trim_start().strip_prefix("::")
                && !before.trim_end().ends_with("::")
            {
                let below = kept[at + 1..].iter().flat_map(|(_, line)| ["\n", &line.code]);
                all.extend(heads(path, below).into_iter().map(|head| (*n, head)));
            }
        }
    }
    all
}

/// The first names of a path, or of each path in its braces, which may go on below this line.
fn heads<'a>(path: &'a str, below: impl Iterator<Item = &'a str>) -> Vec<String> {
    let name = |p: &str| match p.trim_start() {
        p if p.starts_with('*') => "*".to_owned(),
        p => p.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(),
    };
    let Some(inside) = path.trim_start().strip_prefix('{') else { return vec![name(path)] };
    let all: String = [inside].into_iter().chain(below).collect();
    let mut depth = 1;
    let first = all.split_inclusive(['{', '}', ',']).scan(0, |_, part| {
        let outer = depth;
        depth += match part.chars().last() {
            Some('{') => 1,
            Some('}') => -1,
            _ => 0,
        };
        (outer > 0).then_some((outer, part))
    });
    // What follows a brace that closes belongs to what stood before it.
    let found = first.filter(|(outer, _)| *outer == 1).map(|(_, part)| name(part));
    found.filter(|head| !head.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod low;\npub use low::{Thing, deep::{One, Two as Zwei}};\npub use high::High;\npub use half;\npub use other::Far;\nuse below::{cellar, stairs};";

    /// Lists the findings in a library whose middle room has this file more.
    fn library(more: (&str, &str)) -> Vec<String> {
        let all = [("lib.rs", LIB), ("low.rs", ""), ("middle/mod.rs", ""), ("high.rs", "")];
        let all = all.iter().filter(|(name, _)| *name != more.0).chain([&more]);
        let files: Vec<_> =
            all.map(|(name, text)| Source::new(&format!("crates/comity/src/{name}"), text)).collect();
        misplaced(&files, &("crates/comity/src/", &["low", "middle", "high"]))
    }

    fn middle(code: &str) -> Vec<String> {
        library(("middle/part.rs", &format!("use crate::low;\n{code}")))
    }

    #[test]
    fn lower_rooms_may_be_imported() {
        for good in [
            "use crate::{Thing, One, Zwei};",
            "use crate::{\n    middle::{\n        other::{A, B},\n        C,\n    },\n    low::{self, D},\n};",
            "fn f() { crate::low::f() }",
            "// use crate::high;\nlet s = \"crate::high\";",
            "use super::part::X;\nuse self::high;",
            "#[cfg(test)]\nmod tests {\n    use crate::high;\n}",
            "use crate::{half::f16, Far, cellar::X};\npub(crate) struct X;\npub(in crate::middle) struct Y;",
        ] {
            assert_eq!(middle(good), [""; 0], "{good}");
        }
        assert_eq!(library(("middle/tests/a.rs", "use crate::high::X;")), [""; 0]);
    }

    #[test]
    fn an_upward_import_is_found() {
        for (bad, line) in [
            ("use crate::high;", 2),
            ("use crate::{low::Y, high::X};", 2),
            ("use crate::{\n    low::{A, B},\n    high::{C, D},\n};", 2),
            ("use crate::High;", 2),
            ("\nfn f() -> crate::high::X {}", 3),
            ("fn f(a: &crate::low::A, b: crate::high::B) {}", 2),
            ("#[cfg(test)]\nmod tests {\n    use crate::high;\n}\nuse crate::high;", 6),
        ] {
            let found = middle(bad);
            let place = format!("crates/comity/src/middle/part.rs:{line}: middle imports crate::");
            assert!(found.len() == 1 && found[0].starts_with(&place), "{bad} {found:?}");
        }
    }

    #[test]
    fn what_cannot_be_placed_is_found() {
        for (bad, why) in [
            ("use crate::Nobody;", "whose is Nobody"),
            ("use crate::*;", "whose is *"),
            ("use super::super::high;", "whose is super::super::"),
        ] {
            let found = middle(bad);
            assert!(found.len() == 1 && found[0].contains(why), "{bad} {found:?}");
        }
        for (more, why) in
            [(("low.rs", "use super::low::X;"), "whose is super::"), (("attic.rs", ""), "attic is no room")]
        {
            let found = library(more);
            assert!(found.len() == 1 && found[0].contains(why), "{found:?}");
        }
    }
}
