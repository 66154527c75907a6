//! Files of a release, and their table.

use std::{
    fmt::{self, Write},
    fs,
    path::{Path, PathBuf},
};

/// Largest command, stripped.
const COMMAND: u64 = 8_000_000;
/// Largest wheel.
const WHEEL: u64 = 5_000_000;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Python package.
    Wheel,
    /// Command with its manual.
    Command,
    /// Library for C.
    Library,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Wheel, Self::Command, Self::Library];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wheel => "wheel",
            Self::Command => "command",
            Self::Library => "libcomity",
        })
    }
}

/// File of a release, and the checks that it has passed.
#[derive(Debug)]
pub(crate) struct Artefact {
    pub(crate) file: PathBuf,
    /// Bytes of the program or library in it, where that has a limit of its own.
    pub(crate) inner: Option<u64>,
    /// True if something of it was run, rather than only looked at.
    pub(crate) ran: bool,
    /// Checks, in a few words.
    pub(crate) checks: String,
}

/// Line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) target: &'static str,
    pub(crate) kind: Kind,
    pub(crate) outcome: Result<Artefact, String>,
}

/// Size of a file in bytes.
pub(crate) fn size(file: &Path) -> Result<u64, String> {
    fs::metadata(file).map(|m| m.len()).map_err(|e| format!("{}: {e}", file.display()))
}

/// Hold a size to the limit of its kind.
pub(crate) fn hold(kind: Kind, bytes: u64) -> Result<(), String> {
    let limit = match kind {
        Kind::Wheel => WHEEL,
        Kind::Command => COMMAND,
        Kind::Library => u64::MAX,
    };
    if bytes > limit {
        return Err(format!("the {kind} has {} MB, more than {} MB", megabytes(bytes), megabytes(limit)));
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{:02}", bytes / 1_000_000, bytes % 1_000_000 / 10_000)
}

/// The rows in Markdown.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from("| target | kind | file | MB | of it the program | state | checks |\n");
    text += "|---|---|---|---:|---:|---|---|\n";
    for row in rows {
        let target = row.target;
        let kind = row.kind;
        let _ = match &row.outcome {
            Ok(a) => {
                let file = a.file.file_name().unwrap_or_default().display();
                let mb = size(&a.file).map_or_else(|e| e, megabytes);
                let inner = a.inner.map_or_else(|| "-".into(), megabytes);
                let state = if a.ran { "run" } else { "built" };
                writeln!(text, "| {target} | {kind} | `{file}` | {mb} | {inner} | {state} | {} |", a.checks)
            }
            Err(why) => {
                let why = brief(why).replace('|', "\\|");
                writeln!(text, "| {target} | {kind} | - | - | - | not built: {why} | - |")
            }
        };
    }
    text
}

/// A failure in one line: of a command only its program, and of what that wrote the last line.
pub(crate) fn brief(why: &str) -> String {
    let mut lines = why.lines().filter(|l| !l.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let Some((before, command, after)) = first.split_once('`').and_then(|(before, rest)| {
        let (command, after) = rest.rsplit_once('`')?;
        Some((before, command, after))
    }) else {
        return first.into();
    };
    let program = command.split(' ').find(|word| !word.contains('=')).unwrap_or(command);
    let program = program.rsplit('/').next().unwrap_or(program);
    let last = lines.next_back().unwrap_or_default().trim();
    format!("{before}{program}{} {last}", after.trim_end_matches(':')).trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_refused() {
        assert_eq!(hold(Kind::Command, 8_000_000), Ok(()));
        let e = hold(Kind::Wheel, 5_010_000).unwrap_err();
        assert_eq!(e, "the wheel has 5.01 MB, more than 5.00 MB");
    }

    #[test]
    fn a_failed_command_is_told_in_a_line() {
        let why = "no wheel: `A=b /x/bin/maturin build --out /y` failed (exit status: 1):\nmuch\nno linker\n";
        assert_eq!(brief(why), "no wheel: maturin failed (exit status: 1) no linker");
        assert_eq!(brief("`/x/twine check` did not end within 5s"), "twine did not end within 5s");
        assert_eq!(brief("too large\nby far"), "too large");
    }

    #[test]
    fn a_failure_is_a_row_of_the_table() {
        let outcome = Err("no linker | for it\nand more".into());
        let shown = table(&[Row { target: "t", kind: Kind::Wheel, outcome }]);
        assert_eq!(
            shown.lines().last(),
            Some("| t | wheel | - | - | - | not built: no linker \\| for it | - |")
        );
    }
}
