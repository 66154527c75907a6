//! Each public item of the library has an example, which is run as a doctest.
//!
//! What counts as public is what `lib.rs` and `tools.rs` export, but for `tools::cuda`, whose callers hold raw addresses. A type, a trait, a function or a constant has an example in its own comment. A method
//! has one too, or an example that names the method's type calls it: one example can show the small methods of a type together.

use crate::text::{blank, without_tests};
use std::collections::{BTreeMap, BTreeSet};

/// The library and its root.
const SOURCES: &str = "crates/comity/src/";
const ROOT: &str = "crates/comity/src/lib.rs";
/// What this project's own programs use.
const TOOLS: &str = "crates/comity/src/tools.rs";

/// Public items of the library without an example.
pub(crate) fn missing(files: &[(String, String)]) -> Vec<String> {
    let library: Vec<_> = files.iter().filter(|(name, _)| name.starts_with(SOURCES)).collect();
    let Some((_, root)) = library.iter().find(|(name, _)| name == ROOT) else {
        return vec![format!("there is no {ROOT}")];
    };
    let mut public = exported(root);
    if let Some((_, tools)) = library.iter().find(|(name, _)| name == TOOLS) {
        let code = blank(tools);
        public.extend(code.split("pub mod ").next().map(exported).unwrap_or_default());
        public.extend(code.lines().filter_map(|l| declared(l.strip_prefix("pub ")?)));
    }
    let items: Vec<Item> = library.iter().flat_map(|(name, text)| items(name, text)).collect();
    let mut shown: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (_, text) in &library {
        for example in examples(text) {
            for name in &public {
                if words(&example).any(|w| w == name) {
                    shown.entry(name).or_default().push(example.clone());
                }
            }
        }
    }
    for item in items.iter().filter(|i| i.owner.is_none()) {
        shown.entry(&item.name).or_default().extend(item.examples.iter().cloned());
    }
    let mut found = Vec::new();
    for item in items.iter().filter(|i| public.contains(i.owner.as_deref().unwrap_or(&i.name))) {
        let elsewhere = || {
            let owner = item.owner.as_deref().and_then(|owner| shown.get(owner));
            owner.is_some_and(|all| all.iter().any(|example| calls(example, &item.name)))
        };
        if item.examples.is_empty() && !elsewhere() {
            let owner = item.owner.as_ref().map_or_else(String::new, |o| format!("{o}::"));
            found.push(format!(
                "{}:{}: `{owner}{}` is public and has no example; write one in its comment, or call it in one of its type",
                item.file, item.line, item.name
            ));
        }
    }
    found
}

/// A public declaration.
struct Item {
    file: String,
    line: usize,
    /// The type whose method it is.
    owner: Option<String>,
    name: String,
    /// Those in its own comment.
    examples: Vec<String>,
}

/// The names behind `pub use crate-local::{...};` in the root.
fn exported(root: &str) -> BTreeSet<String> {
    let code = blank(root);
    let uses =
        code.split("pub use ").skip(1).filter_map(|u| u.split(';').next()).filter(|u| u.contains("::"));
    let last = |path: &str| path.rsplit("::").next().unwrap_or_default().trim().to_owned();
    uses.flat_map(|u| match u.split_once('{') {
        Some((_, list)) => list.trim_end_matches('}').split(',').map(last).collect::<Vec<_>>(),
        None => vec![last(u)],
    })
    .filter(|name| !name.is_empty())
    .collect()
}

/// The public declarations of a file, with what is said above them.
fn items(file: &str, text: &str) -> Vec<Item> {
    let (lines, blanked): (Vec<&str>, String) = (text.lines().collect(), blank(text));
    let mut owner = None;
    let mut found = Vec::new();
    for (at, line) in without_tests(&blanked) {
        let inside = line.starts_with("    ");
        if line.starts_with("impl") {
            owner = (!line.contains(" for ")).then(|| type_of(line)).flatten();
        } else if line.starts_with("pub trait ") || line.starts_with("pub unsafe trait ") {
            owner = None;
        }
        let Some(name) = line.trim_start().strip_prefix("pub ").and_then(declared) else { continue };
        if inside && owner.is_none() {
            continue;
        }
        found.push(Item {
            file: file.to_owned(),
            line: at + 1,
            owner: owner.clone().filter(|_| inside),
            name,
            examples: examples(&doc_above(&lines, at)),
        });
    }
    found
}

/// The name that a declaration after `pub ` makes; None for fields and uses.
fn declared(rest: &str) -> Option<String> {
    let mut words = rest.split_whitespace().filter(|w| !["unsafe", "async", "const"].contains(w)).peekable();
    let is_const = rest.starts_with("const ") && !rest.contains(" fn ");
    let kind = if is_const { "const" } else { words.next()? };
    if !["const", "fn", "struct", "enum", "trait", "type"].contains(&kind) {
        return None;
    }
    let name = words.next()?;
    Some(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

/// The type of `impl<'a, T: X> Type<'a, T> {`.
fn type_of(line: &str) -> Option<String> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '<') - i32::from(*c == '>');
            depth == 0
        })?;
        rest = &rest[end.0 + 1..];
    }
    words(rest).next().map(str::to_owned)
}

/// The comment above a line and its attributes.
fn doc_above(lines: &[&str], at: usize) -> String {
    let is_doc = |l: &&&str| l.trim_start().starts_with("///");
    let part = |l: &&&str| is_doc(l) || l.trim_start().starts_with("#[") || l.ends_with(")]");
    let mut doc: Vec<&str> = lines[..at].iter().rev().take_while(part).filter(is_doc).copied().collect();
    doc.reverse();
    doc.join("\n")
}

/// The examples in a file's comments that are compiled and must pass.
fn examples(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        let line = line.trim_start();
        let Some(said) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            open = None;
            continue;
        };
        match (said.trim_start().strip_prefix("```"), open.take()) {
            (Some(kind), None) => open = Some((["", "no_run"].contains(&kind.trim()), String::new())),
            (Some(_), Some((is_run, code))) => found.extend(is_run.then_some(code)),
            (None, Some((is_run, code))) => open = Some((is_run, code + said + "\n")),
            (None, None) => {}
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}

/// Whether the example has `.name` or `::name`.
fn calls(example: &str, name: &str) -> bool {
    let whole = |(at, _): (usize, &str)| {
        let after = example[at + name.len()..].chars().next();
        let before = &example[..at];
        (before.ends_with('.') || before.ends_with("::"))
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    };
    example.match_indices(name).any(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod a;\npub use a::{Group, init};\npub use b::Key;\n";

    fn of(text: &str) -> Vec<String> {
        missing(&[(ROOT.into(), LIB.into()), (format!("{SOURCES}a.rs"), text.into())])
    }

    #[test]
    fn public_items_have_examples() {
        for bad in [
            "/// Does.\npub fn init() {}",
            "/// Does.\n/// ```text\n/// a picture\n/// ```\n\npub struct Group;",
            "impl Group {\n    /// Does.\n    pub fn rank(&self) {}\n}",
            "impl<'a, T: X<'a>> Group<T> {\n    pub const ALL: usize = 1;\n}",
            "impl Group {\n    pub unsafe fn rank(&self) {}\n}\n/// ```\n/// Key::new().rank();\n/// ```\nfn f() {}",
            "impl Group {\n    pub fn rank(&self) {}\n}\n/// ```\n/// Group::new().ranks();\n/// ```\nfn f() {}",
            "/// ```compile_fail\n/// init();\n/// ```\npub fn init() {}",
            "/// ```compile_fail\n/// Group::new().rank();\n/// ```\nfn f() {}\nimpl Group {\n    pub fn rank(&self) {}\n}",
        ] {
            assert_eq!(of(bad).len(), 1, "{bad}: {:?}", of(bad));
        }
        for good in [
            "/// Does.\n///\n/// ```\n/// init();\n/// ```\n#[inline]\npub fn init() {}",
            "impl Group {\n    /// ```\n    /// g.rank();\n    /// ```\n    pub fn rank(&self) {}\n}",
            "impl Group {\n    pub const fn rank(&self) {}\n}\n/// ```\n/// Group::new().rank();\n/// ```\nfn f() {}",
            "/// ```\n/// init().rank();\n/// ```\npub struct Group;\nimpl Group {\n    pub fn rank(&self) {}\n}",
            "impl Group {\n    pub const ALL: usize = 1;\n}\n//! ```\n//! Group::ALL;\n//! ```\n",
            "impl Group {\n    pub(crate) fn rank(&self) {}\n    fn size(&self) {}\n}",
            "pub struct Hidden;\nimpl Hidden {\n    pub fn rank(&self) {}\n}",
            "impl Fault for Group {\n    fn rank(&self) {}\n}",
            "#[cfg(test)]\nmod tests {\n    impl Group {\n        pub fn rank(&self) {}\n    }\n}",
        ] {
            assert!(of(good).is_empty(), "{good}: {:?}", of(good));
        }
        assert!(of("pub struct Group;")[0].contains("a.rs:1: `Group` is public"));
        assert!(of("impl Group {\n    pub fn rank() {}\n}")[0].contains("a.rs:2: `Group::rank` is public"));
    }
}
