//! Rules that neither the compiler nor clippy checks: the reason of each wait, which room imports which,
//! who may name a kind of link, the first word of a doc comment, and what sentences for people name.

mod layers;
mod text;
mod waits;
mod words;

use std::{fs, io, path::Path};
use text::Source;

/// Look at all sources under `root`; how many files, or what is wrong, a line each.
///
/// # Errors
/// Also when a file cannot be read.
pub fn check(root: &Path) -> Result<usize, String> {
    let mut files = Vec::new();
    for folder in ["crates", "tools", "xtask", "examples"] {
        read(root, &root.join(folder), &mut files).map_err(|e| format!("cannot read {folder}: {e}"))?;
    }
    let rules = [waits::unexplained, words::avoided, words::of_rust, words::kinds];
    let each = files.iter().flat_map(|file| rules.iter().flat_map(|rule| rule(file)));
    let found: Vec<_> =
        each.chain(layers::CRATES.iter().flat_map(|rooms| layers::misplaced(&files, rooms))).collect();
    if found.is_empty() { Ok(files.len()) } else { Err(found.join("\n")) }
}

fn read(root: &Path, folder: &Path, files: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            read(root, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
            files.push(Source::new(&name, &fs::read_to_string(&path)?));
        }
    }
    Ok(())
}
