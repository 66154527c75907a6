//! Bytes of a program by crate and by section, from its names: of a file that is not stripped.

use std::{collections::BTreeMap, fmt::Write, path::Path};
use tasks::child::Task;

/// Crates of Rust's own library.
const STD: [&str; 6] = ["std", "core", "alloc", "hashbrown", "gimli", "addr2line"];
/// Start of the names in AWS-LC.
const AWS: &str = "aws_lc_";
/// Smallest share that has a line of its own.
const LEAST: u64 = 8_000;

/// Tables of a file in Markdown.
pub(crate) fn of(file: &Path) -> Result<String, String> {
    let names = Task::new("nm").args(["-S", "--defined-only", "--demangle"]).args([file]).run()?;
    let crates = by_crate(&names);
    if crates.is_empty() {
        return Err(format!("{} has no names: it is stripped", file.display()));
    }
    let sections = Task::new("size").args(["-A", "-d"]).args([file]).run()?;
    let sections = sections.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, bytes, _] = words[..] else { return None };
        Some((name.to_owned(), bytes.parse().ok()?))
    });
    // What a debugger reads is not in what is released.
    let sections = sections.filter(|(name, _)| name.starts_with('.') && !name.starts_with(".debug"));
    Ok(format!("{}\n{}", table("crate", crates), table("section", sections.collect())))
}

/// Rows, the largest first; the small ones in one.
fn table(what: &str, rows: BTreeMap<String, u64>) -> String {
    let total: u64 = rows.values().sum();
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut text = format!("| {what} | bytes |\n|---|---:|\n");
    for (name, bytes) in rows.iter().filter(|(_, bytes)| *bytes >= LEAST) {
        let _ = writeln!(text, "| {name} | {bytes} |");
    }
    let small: Vec<u64> = rows.iter().map(|(_, bytes)| *bytes).filter(|bytes| *bytes < LEAST).collect();
    let _ = writeln!(text, "| {} smaller ones | {} |", small.len(), small.iter().sum::<u64>());
    let _ = writeln!(text, "| all | {total} |");
    text
}

/// Bytes of each crate, from the output of `nm`.
fn by_crate(names: &str) -> BTreeMap<String, u64> {
    let mut crates = BTreeMap::new();
    let mut last = "";
    for line in names.lines() {
        let Some((address, rest)) = line.split_once(' ') else { continue };
        let Some((size, rest)) = rest.split_once(' ') else { continue };
        let Some((kind, name)) = rest.split_once(' ') else { continue };
        let Ok(bytes) = u64::from_str_radix(size, 16) else { continue };
        // Several names of one place count once; zeros take no room in a file.
        if address == last || matches!(kind, "b" | "B") {
            continue;
        }
        last = address;
        *crates.entry(owner(name)).or_default() += bytes;
    }
    crates
}

/// Crate of a name: `comity` of `<comity::group::Group as core::fmt::Debug>::fmt`.
fn owner(name: &str) -> String {
    let mut rest = name;
    loop {
        let before = rest;
        for start in ["<", "&", "*const ", "*mut ", "mut ", "dyn ", "[", "(", "impl "] {
            rest = rest.strip_prefix(start).unwrap_or(rest);
        }
        if rest == before {
            break;
        }
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    // A crate in a name of the newer kind has a number after it.
    let after = after.strip_prefix('[').and_then(|a| a.split_once(']')).map_or(after, |(_, a)| a);
    match word {
        _ if word.starts_with(AWS) => "aws-lc-sys (C and assembly)".into(),
        _ if STD.contains(&word) => "std".into(),
        _ if after.starts_with("::") => word.into(),
        _ => "constants, C and names of no crate".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_for_the_crate_that_has_them() {
        let names = "\
0000000000000010 0000000000000020 t <comity::group::Group as core::fmt::Debug>::fmt
0000000000000030 0000000000000008 t comity[4f2c1d]::init
0000000000000030 0000000000000008 t an_other_name_of_it
0000000000000040 0000000000000010 T aws_lc_0_47_0_EVP_sha256
0000000000000060 0000000000001000 b regex::BUFFER
0000000000000070 0000000000000004 t <&mut alloc::vec::Vec<T> as std::io::Write>::write
0000000000000080 t without_size
0000000000000090 0000000000000002 r anon.12.llvm.3
";
        let wanted = [
            ("aws-lc-sys (C and assembly)", 16),
            ("comity", 40),
            ("constants, C and names of no crate", 2),
            ("std", 4),
        ];
        let found = by_crate(names);
        assert!(found.iter().map(|(n, b)| (n.as_str(), *b)).eq(wanted), "{found:?}");
    }
}
