//! Rules that neither the compiler nor clippy checks: the places of unsafe code, the reason of each wait, which room imports which,
//! who may name a kind of link, the first word of a doc comment, and what sentences for people name.

mod kinds;
mod layers;
mod nouns;
mod python;
mod sentences;
mod text;
mod waits;

use std::{fs, path::Path};
use text::blank;

/// Unsafe code: a folder ends with `/`.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/comity-base/src/sys/", "calls into the system"),
    ("crates/comity-base/src/view/", "borrowed memory of any type"),
    ("crates/comity-kernel/src/", "vector instructions"),
    ("crates/comity-base/src/lanes/", "one call's memory in several threads, and memory that processes map"),
    ("crates/comity-transport/src/shm/", "memory that two processes map"),
    ("crates/comity-transport/src/verbs/", "slots that a device reads and writes"),
    ("crates/comity/src/backend/nccl/", "addresses of device memory that views promise"),
    ("crates/comity/src/cuda.rs", "the same, for memory of this project's own tools"),
    ("crates/comity/src/turn.rs", "a cell in its loom test"),
    ("crates/comity/tests/forked.rs", "a test's fork"),
    ("crates/comity-candle/src/cuda.rs", "device memory of candle's tensors"),
    ("crates/comity-candle/src/metal.rs", "the same"),
    ("crates/comity-c/src/", "a C interface: names for its functions, and memory that C vouches for"),
    ("crates/comity-py/src/interpreter.rs", "calls that may be unwound"),
    ("crates/comity-py/src/raw.rs", "memory that Python vouches for"),
    ("crates/comity-py/src/shared.rs", "memory that Python borrows"),
    ("tools/bench/src/limit/kernels.rs", "vector instructions"),
    ("tools/softnccl/src/", "a C interface and memory that its callers vouch for, for tests"),
    ("crates/comity-launch/src/host/sys.rs", "fork, and signals to process groups"),
    ("tools/softverbs/src/exports/", "a C interface, for tests"),
    ("tools/softverbs/src/abi.rs", "the same: functions in its tables"),
    ("tools/softverbs/src/memory.rs", "memory that a client of it registered"),
    ("tools/softverbs/src/thread.rs", "poll"),
    ("crates/comity-cli/tests/faults/actor.rs", "a test's fork, which keeps sockets open"),
];

/// Look at all sources under `root`; how many files, or what is wrong, a line each.
///
/// # Errors
/// Also when a file cannot be read.
pub fn check(root: &Path) -> Result<usize, String> {
    let mut files = Vec::new();
    for (folder, kind) in [
        ("crates", "rs"),
        ("tools", "rs"),
        ("xtask", "rs"),
        ("python", "py"),
        ("bench", "py"),
        ("examples", "py"),
        ("examples", "rs"),
        ("tools", "py"),
    ] {
        sources(&root.join(folder), kind, &mut files).map_err(|e| format!("cannot list {folder}: {e}"))?;
    }
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let mut library = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        if name.ends_with(".py") {
            found.extend(python::unexplained(&name, &text));
        } else {
            found.extend(misplaced_unsafe(&name, &text));
            found.extend(waits::unexplained(&name, &text));
            found.extend(nouns::avoided(&name, &text));
            found.extend(sentences::in_rust(&name, &text));
            library.push((name.clone(), text));
        }
        seen.push(name);
    }
    for (entry, _) in UNSAFE {
        if !seen.iter().any(|name| within(name, entry)) {
            found.push(format!(
                "{entry} is on a list of tools/gates/src/lib.rs, but is no file; remove it there"
            ));
        }
    }
    found.extend(layers::CRATES.iter().flat_map(|rooms| layers::misplaced(&library, rooms)));
    let table = "crates/comity-transport/src/lib.rs";
    match library.iter().find(|(name, _)| name == table) {
        Some((_, table)) => {
            found.extend(library.iter().flat_map(|(name, text)| kinds::named(name, text, table)))
        }
        None => found.push(format!("there is no {table}")),
    }
    if found.is_empty() { Ok(files.len()) } else { Err(found.join("\n")) }
}

fn sources(folder: &Path, kind: &str, files: &mut Vec<std::path::PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                sources(&path, kind, files)?;
            }
        } else if path.extension().is_some_and(|e| e == kind) {
            files.push(path);
        }
    }
    Ok(())
}

fn within(name: &str, entry: &str) -> bool {
    name == entry || entry.ends_with('/') && name.starts_with(entry)
}

/// Clippy looks for the SAFETY comments (`undocumented_unsafe_blocks`).
fn misplaced_unsafe(name: &str, text: &str) -> Vec<String> {
    if UNSAFE.iter().any(|(entry, _)| within(name, entry)) {
        return Vec::new();
    }
    let code = blank(text);
    let lines = code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe"));
    let outside = |(i, line): (usize, &str)| {
        format!("{name}:{}: unsafe code outside the places for it: {}", i + 1, line.trim())
    };
    lines.map(outside).collect()
}

/// The line that `says` accepts: that of the statement at line `at`, or one of the comments and attributes right above it.
fn comment_above<'a>(
    lines: &[&'a str],
    code: &[&str],
    at: usize,
    says: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    if says(lines[at]) {
        return Some(lines[at]);
    }
    for i in (0..at).rev() {
        if says(lines[i]) && code[i].trim().is_empty() {
            return Some(lines[i]);
        }
        let code = code[i].trim();
        let comment = code.is_empty() && !lines[i].trim().is_empty();
        let attribute = code.starts_with("#[");
        // A line that ends neither a statement nor a block belongs to the statement below it.
        let ends = code.is_empty() || code.ends_with([';', '{', '}', ',']);
        if ends && !comment && !attribute {
            return None;
        }
    }
    None
}

fn has_word(line: &str, word: &str) -> bool {
    words(line, word).next().is_some()
}

/// Splits `line` before and after each place where `word` stands alone.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(move |(at, _)| (&line[..at], &line[at + word.len()..]))
        .filter(move |(before, after)| !before.ends_with(part) && !after.starts_with(part))
}

#[cfg(test)]
mod tests;
