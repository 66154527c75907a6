//! The script that a host runs, and readers of what it prints.
mod linux;
mod macos;

use crate::addresses::Subnet;
use crate::facts::{HostFacts, HostSystem, Problem};
use std::collections::BTreeMap;

/// A script for `sh` that prints what [`facts_of`] reads. It changes nothing.
pub const SURVEY: &str = include_str!("survey.sh");

/// The first line that [`SURVEY`] prints.
pub const SURVEY_BEGINS: &str = "@@survey 1";
/// The last one.
pub const SURVEY_ENDS: &str = "@@ end";

/// Reads what [`SURVEY`] printed on the host that ssh calls `ssh`.
pub fn facts_of(ssh: &str, printed: &str) -> HostFacts {
    // What is shown later must not move the cursor of a terminal.
    let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let printed = &printed.chars().filter(plain).collect::<String>();
    let sections = Sections::of(printed);
    let mut facts = HostFacts { ssh: ssh.into(), ..HostFacts::default() };
    facts.release = sections.line("system").unwrap_or_default().into();
    facts.hostname = sections.line("hostname").unwrap_or_default().into();
    facts.system = match facts.release.split(' ').next() {
        Some("Linux") => HostSystem::Linux,
        Some("Darwin") => HostSystem::Macos,
        _ => HostSystem::Other,
    };
    facts.is_root = sections.line("user") == Some("0");
    facts.root = Some(facts.is_root || sections.ok("sudo").is_some());
    facts.cores = sections.number("cores");
    facts.limits.files = sections.line("files").and_then(limit);
    // The shell counts it in KiB.
    facts.limits.memlock =
        sections.line("memlock").and_then(limit).map(|l| l.map(|n| n.saturating_mul(1024)));
    match facts.system {
        HostSystem::Linux => linux::read(&sections, &mut facts),
        HostSystem::Macos => macos::read(&sections, &mut facts),
        HostSystem::Other => facts.problems.push(Problem {
            about: "system".into(),
            why: format!("it runs {:?}, which is neither Linux nor macOS", facts.release),
            mend: "leave this host out".into(),
        }),
    }
    facts.in_use.extend(facts.nics.iter().flat_map(|n| &n.addresses).map(Subnet::network));
    facts.in_use.sort_unstable();
    facts.in_use.dedup();
    if !printed.contains(SURVEY_ENDS) {
        facts.problems.push(Problem {
            about: "survey".into(),
            why: "the host's answer breaks off".into(),
            mend: "is the connection steady? Try again".into(),
        });
    }
    facts
}

fn limit(text: &str) -> Option<Option<u64>> {
    if text == "unlimited" { Some(None) } else { text.parse().ok().map(Some) }
}

/// The hosts that a configuration of ssh names, without patterns.
pub fn hosts_of_ssh_config(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        let (key, rest) = line.split_once([' ', '\t', '=']).unwrap_or((line, ""));
        if !key.eq_ignore_ascii_case("host") {
            continue;
        }
        for name in rest.split_whitespace().map(|w| w.trim_matches('"')) {
            let is_pattern = name.contains(['*', '?', '!']) || name.is_empty();
            if !is_pattern && !names.iter().any(|n| n == name) {
                names.push(name.into());
            }
        }
    }
    names
}

/// A program's output, and its exit code where that was not 0.
#[derive(Debug, Default)]
struct Section {
    text: String,
    failed: Option<i32>,
}

/// All of them, by name.
#[derive(Debug, Default)]
struct Sections(BTreeMap<String, Section>);

impl Sections {
    fn of(printed: &str) -> Self {
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
    fn ok(&self, name: &str) -> Option<&str> {
        self.0.get(name).filter(|s| s.failed.is_none()).map(|s| s.text.trim())
    }

    /// The first line of it.
    fn line(&self, name: &str) -> Option<&str> {
        self.ok(name)?.lines().next().map(str::trim)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.line(name)?.parse().ok()
    }

    /// The text of a program that succeeded; else the problem is told, with what mends it.
    fn need(&self, name: &str, program: &str, mend: &str, problems: &mut Vec<Problem>) -> Option<&str> {
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

#[cfg(test)]
mod tests;
