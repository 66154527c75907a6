//! Libraries of a few files whose imports must pass, and some that must not.

use super::{CrateRooms, File, misplaced};

const ROOMS: CrateRooms = CrateRooms { sources: "crates/comity/src/", rooms: &["low", "middle", "high"] };
const LIB: &str = "mod low;\npub use low::{Thing, deep::{One, Two as Zwei}};\npub use high::High;\npub use half;\npub use other::Far;\nuse below::{cellar, stairs};";

fn library(files: &[(&str, &str)]) -> Vec<String> {
    let all = [("lib.rs", LIB), ("low.rs", ""), ("middle/mod.rs", ""), ("high.rs", "")];
    let all = all.iter().filter(|(name, _)| files.iter().all(|(n, _)| n != name)).chain(files);
    let files: Vec<File> =
        all.map(|(name, text)| (format!("crates/comity/src/{name}"), (*text).to_owned())).collect();
    misplaced(&files, &ROOMS)
}

/// Lists the findings in a file of the middle room.
fn middle(code: &str) -> Vec<String> {
    library(&[("middle/part.rs", &format!("use crate::low;\n{code}"))])
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
    let test = [("middle/part.rs", "use crate::low;"), ("middle/tests/a.rs", "use crate::high::X;")];
    assert_eq!(library(&test), [""; 0]);
}

#[test]
fn an_upward_import_is_found() {
    for (bad, line) in [
        ("use crate::high;", 2),
        ("use crate::high::X;", 2),
        ("use crate::{low::Y, high::X};", 2),
        ("use crate::{\n    low::{A, B},\n    high::{C, D},\n};", 2),
        ("use crate::High;", 2),
        ("\nfn f() -> crate::high::X {}", 3),
        ("fn f(a: &crate::low::A, b: crate::high::B) {}", 2),
        ("#[cfg(test)]\nmod tests {\n    use crate::high;\n}\nuse crate::high;", 6),
    ] {
        let found = middle(bad);
        let place = format!("crates/comity/src/middle/part.rs:{line}: middle imports crate::");
        assert!(
            found.iter().any(|f| f.starts_with(&place) && f.ends_with("which stands above it")),
            "{bad} {found:?}"
        );
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
    let root = library(&[("low.rs", "use super::low::X;")]);
    assert!(root.len() == 1 && root[0].contains("whose is super::"), "{root:?}");
    let extra = library(&[("middle/part.rs", "use crate::low;"), ("attic.rs", "")]);
    assert!(extra.len() == 1 && extra[0].contains("attic is no room"), "{extra:?}");
}
