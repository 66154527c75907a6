//! One meaning a word: a name that more than one file can see belongs to one thing.
//!
//! What counts is a type (`struct`, `enum`, `union`, `trait`, `type`) with any `pub` before it, since a `pub(super)` one too is met in
//! other files, and a constant or static at the margin of its file that is `pub` or `pub(crate)`. Two of one name in two files are
//! one too many. All of `crates` is one place, because a reader of one crate reads the others with it; each crate of `tools`, and
//! `xtask`, is a place of its own. Two in one file are the forms of one thing on two systems: the compiler sees to the rest. Names
//! without `pub`, those in a trait's or a type's `impl`, and those in tests do not count.
//!
//! `Error` and `Result` are each crate's own, as Rust has it: they are unique within their crate.

use super::text::{blank, without_tests};
use std::collections::{BTreeMap, BTreeSet};

const TYPES: [&str; 5] = ["struct ", "enum ", "union ", "trait ", "type "];
const CONSTANTS: [&str; 2] = ["const ", "static "];
/// What the API guidelines of Rust call the error of a crate.
const OF_EACH_CRATE: [&str; 2] = ["Error", "Result"];

/// Names with more than one meaning, among files of which each is a path and a text.
pub(crate) fn shared(files: &[(String, String)]) -> Vec<String> {
    let mut all: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in files {
        let Some((place, package)) = place(path) else { continue };
        for name in declared(text) {
            let place = if OF_EACH_CRATE.contains(&name.as_str()) { package } else { place };
            all.entry((place, name)).or_default().insert(path);
        }
    }
    let many = all.into_iter().filter(|(_, files)| files.len() > 1);
    many.map(|((_, name), files)| {
        let files: Vec<&str> = files.into_iter().collect();
        format!("{name} has {} meanings; give each a word of its own: {}", files.len(), files.join(", "))
    })
    .collect()
}

/// Within what a file's names are unique, and its crate; none for tests and examples.
fn place(path: &str) -> Option<(&str, &str)> {
    let file = path.rsplit('/').next()?;
    if path.split('/').any(|p| p == "tests" || p == "examples") || file == "tests.rs" {
        return None;
    }
    let package = path.split("/src/").next()?;
    Some((if path.starts_with("crates/") { "crates" } else { package }, package))
}

/// The names that a file declares for others.
fn declared(text: &str) -> BTreeSet<String> {
    let code = blank(text);
    without_tests(&code).into_iter().filter_map(|(_, line)| name(line)).collect()
}

fn name(line: &str) -> Option<String> {
    let margin = line.starts_with("pub");
    let rest = line.trim_start().strip_prefix("pub")?;
    let (seen, rest) = match rest.strip_prefix('(') {
        Some(within) => within.split_once(") ")?,
        None => ("", rest.strip_prefix(' ')?),
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let of = |words: &[&str]| words.iter().find_map(|word| rest.strip_prefix(word));
    let constant = || of(&CONSTANTS).filter(|_| margin && ["", "crate"].contains(&seen));
    let name = of(&TYPES).filter(|_| seen != "self").or_else(constant)?;
    let name = name.strip_prefix("mut ").unwrap_or(name);
    // Not a `const fn`, whose name begins below, and not a macro's `$name`.
    let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    name.starts_with(|c: char| c.is_uppercase()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        shared(&files)
    }

    #[test]
    fn what_others_see_has_one_meaning() {
        for (one, two) in [
            ("pub struct A;", "pub(crate) enum A {}"),
            ("pub(super) trait A {}", "pub(in crate::b) type A<T> = T;"),
            ("pub unsafe trait A {}", "mod inner {\n    pub union A {}\n}"),
            ("pub const A: u8 = 1;", "pub(crate) static mut A: u8 = 1;"),
        ] {
            for other in ["crates/a/src/y/mod.rs", "crates/b/src/x.rs"] {
                let all = found(&[("crates/a/src/x.rs", one), (other, two)]);
                assert!(all.len() == 1 && all[0].starts_with("A has 2 meanings"), "{one} {two} {all:?}");
                assert!(all[0].contains("crates/a/src/x.rs") && all[0].contains(other), "{all:?}");
            }
        }
    }

    #[test]
    fn what_others_do_not_see_may_share_a_name() {
        let one = "pub struct A;\npub const B: u8 = 1;";
        for two in [
            "struct A;",
            "pub(self) struct A;",
            "pub(super) const B: u8 = 1;\nconst B: u8 = 1;",
            "impl X {\n    pub const B: u8 = 1;\n    type A = u8;\n}",
            "// pub struct A;\nlet s = \"\npub struct A;\";",
            "#[cfg(test)]\nmod tests {\n    pub struct A;\n}",
            "pub struct AB;\npub const fn b() {}\npub use other::A;\npub struct $A;",
        ] {
            let all = found(&[("crates/a/src/x.rs", one), ("crates/a/src/y.rs", two)]);
            assert!(all.is_empty(), "{two} {all:?}");
        }
        let twice = "#[cfg(unix)]\npub struct A;\n#[cfg(not(unix))]\npub struct A;";
        assert!(found(&[("crates/a/src/x.rs", twice), ("crates/a/src/x/tests/a.rs", one)]).is_empty());
        assert!(found(&[("crates/a/src/x.rs", one), ("crates/a/tests/a.rs", one)]).is_empty());
    }

    #[test]
    fn a_place_has_its_own_names() {
        let one = "pub struct A;\npub enum Error {}";
        let all = |a, b| found(&[(a, one), (b, one)]).len();
        assert_eq!(all("crates/a/src/x.rs", "tools/b/src/x.rs"), 0);
        assert_eq!(all("tools/b/src/x.rs", "tools/c/src/x.rs"), 0);
        assert_eq!(all("tools/b/src/x.rs", "tools/b/src/y.rs"), 2);
        assert_eq!(all("xtask/src/x.rs", "xtask/src/y/z.rs"), 2);
        // The error of each crate.
        assert_eq!(all("crates/a/src/x.rs", "crates/b/src/x.rs"), 1);
        assert_eq!(all("crates/a/src/x.rs", "crates/a/src/y.rs"), 2);
    }
}
