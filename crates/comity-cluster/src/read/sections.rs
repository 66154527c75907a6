//! The sections of what the script printed.
use crate::facts::Problem;
use std::collections::BTreeMap;

/// A program's output, and its exit code where that was not 0.
#[derive(Debug, Default)]
struct Section {
    text: String,
    failed: Option<i32>,
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(super) struct Sections(BTreeMap<String, Section>);

impl Sections {
    pub(super) fn of(printed: &str) -> Self {
        let mut all = BTreeMap::<String, Section>::new();
        let mut current = None;
        for line in printed.lines() {
            let line = line.trim_end_matches('\r');
            if let Some(name) = line.strip_prefix("@@ ") {
                current = Some(name.trim().to_owned());
                all.entry(name.trim().to_owned()).or_default();
            } else if let Some(section) = current.as_ref().and_then(|name| all.get_mut(name)) {
                match line.strip_prefix("@@! ") {
                    Some(code) => section.failed = Some(code.trim().parse().unwrap_or(1)),
                    None => {
                        section.text.push_str(line);
                        section.text.push('\n');
                    }
                }
            }
        }
        Self(all)
    }

    /// The whole text of a program that succeeded.
    pub(super) fn ok(&self, name: &str) -> Option<&str> {
        self.0.get(name).filter(|s| s.failed.is_none()).map(|s| s.text.trim())
    }

    /// The first line of it.
    pub(super) fn line(&self, name: &str) -> Option<&str> {
        self.ok(name)?.lines().next().map(str::trim)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.line(name)?.parse().ok()
    }

    /// The text of a program that succeeded; else the problem is told, with what mends it.
    pub(super) fn need(
        &self,
        name: &str,
        program: &str,
        mend: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<&str> {
        let why = match self.0.get(name) {
            Some(Section { text, failed: None }) => return Some(text.trim()),
            Some(Section { text, failed: Some(code) }) => {
                let last =
                    text.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or("it said nothing");
                let last = crate::printable(last, 200);
                match code {
                    127 => format!("it has no `{program}`"),
                    126 => format!("`{program}` may not be run: {last}"),
                    code => format!("`{program}` ended with code {code}: {last}"),
                }
            }
            None => format!("`{program}` was not run"),
        };
        problems.push(Problem { about: program.into(), why, mend: mend.into() });
        None
    }
}
