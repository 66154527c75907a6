//! Test of the forge's workflows: each of their commands is one that a person can type here, with words that the task knows.

use crate::DistChoice;
use std::fs;
use tasks::place::root;

/// Start of each command that a workflow may run. What they do beyond that belongs into a task.
const COMMANDS: [&str; 5] = [
    "bash .ci/run",
    "cargo xtask test --deep ",
    "cargo xtask dist",
    "cargo publish --workspace --dry-run ",
    "gh release create ",
];
/// For network namespaces.
const ROOT: &str = "sudo --preserve-env env \"PATH=$PATH\" ";

#[test]
fn workflows_only_call_tasks() {
    let folder = root().join(".github/workflows");
    let mut commands = 0;
    for file in fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().filter_map(|l| l.trim_start().trim_start_matches("- ").strip_prefix("run:"))
        {
            commands += 1;
            let command = line.trim();
            let command = command.strip_prefix(ROOT).unwrap_or(command);
            assert!(COMMANDS.iter().any(|c| command.starts_with(c)), "{}: {command}", file.display());
            if let Some(words) = command.strip_prefix("cargo xtask dist") {
                let words = words
                    .replace("${{ matrix.target }}", "aarch64-apple-darwin")
                    .replace("\"$URL\"", "https://h");
                let words: Vec<&str> = words.split_whitespace().collect();
                DistChoice::parse(&words).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            }
        }
    }
    assert!(commands >= 8, "only {commands} commands were found");
}
