//! Rules that neither the compiler nor clippy checks: the reason of each wait, which room imports which,
//! who may name a kind of link, the first word of a doc comment, and what sentences for people name.

mod kinds;
mod layers;
mod nouns;
mod sentences;
mod text;
mod waits;

use std::{fs, path::Path};

/// Look at all sources under `root`; how many files, or what is wrong, a line each.
///
/// # Errors
/// Also when a file cannot be read.
pub fn check(root: &Path) -> Result<usize, String> {
    let mut files = Vec::new();
    for folder in ["crates", "tools", "xtask", "examples"] {
        sources(&root.join(folder), &mut files).map_err(|e| format!("cannot list {folder}: {e}"))?;
    }
    let mut found = Vec::new();
    let mut library = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        found.extend(waits::unexplained(&name, &text));
        found.extend(nouns::avoided(&name, &text));
        found.extend(sentences::in_rust(&name, &text));
        library.push((name, text));
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

fn sources(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                sources(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
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
