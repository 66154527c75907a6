//! Examples in comments and pages of the Swift package: each must compile.

use super::debian::{Debian, scratch};
use std::{fs, path::Path};
use tasks::place::{read, root, target, write};

/// Around each example: the names that it may use without making them. `do` lets it make them again.
const BEFORE: &str = "throws {\n    var gradients: [Float] = [1]\n    let layers = [gradients]\n    do {\n";

/// Type-check all of them at once; how many.
pub(super) fn compile(debian: &Debian) -> Result<usize, String> {
    let mut found = Vec::new();
    sources(&root().join("swift/Sources"), &mut found)?;
    let mut text = String::from("import Comity\nimport ComitySharding\n");
    for (number, example) in found.iter().enumerate() {
        let waits = if example.contains("await ") { "async " } else { "" };
        text += &format!("\nfunc example{number}(_ group: Group) {waits}{BEFORE}{example}    }}\n}}\n");
    }
    let file = target().join("swift-examples.swift");
    write(&file, text)?;
    let modules = scratch().join("debug/Modules");
    let task = debian.task(&["swiftc", "-typecheck", "-swift-version", "6", "-suppress-warnings", "-I"]);
    let task = task.args([&modules]).args(["-I", "swift/Sources/CComity/include"]).args([file]);
    task.limit(120).run()?;
    Ok(found.len())
}

fn sources(folder: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let failed = |e| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "swift" || e == "md") {
            found.extend(examples(&read(&path)?));
        }
    }
    Ok(())
}

/// Blocks of Swift in comments or in a page, without their imports, which are the file's.
fn examples(text: &str) -> Vec<String> {
    let (mut all, mut open) = (Vec::new(), None::<String>);
    for line in text.lines() {
        let line = line.trim_start().strip_prefix("///").map_or(line, |l| l.strip_prefix(' ').unwrap_or(l));
        match &mut open {
            None if line == "```swift" => open = Some(String::new()),
            Some(_) if line == "```" => all.extend(open.take()),
            Some(example) if !line.starts_with("import ") => *example += &format!("        {line}\n"),
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_comments_and_pages() {
        let text = "/// A\n    /// ```swift\n    /// import Comity\n    /// a()\n    ///   b()\n    /// ```\n```swift\nc()\n```\n```sh\nd\n```\n";
        assert_eq!(examples(text), ["        a()\n          b()\n", "        c()\n"]);
    }
}
