//! Verdicts over what was measured: the rows of `comity doctor`.
mod hosts;
mod links;

pub use hosts::{INSTALL, clock, hosts, idle, rdma};
pub use links::{DialResult, LinkMeasure, Place, cables, links, paths};

use crate::printable;
use serde::Serialize;
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    Passed,
    /// It is not; what mends it is said.
    Failed,
    /// It could not be tried; why is said.
    NotTried,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check: ssh, version, port, ...
    pub check: &'static str,
    /// Place: a host, or two.
    pub at: String,
    pub verdict: CheckVerdict,
    /// Finding, and its remedy.
    pub said: String,
}

impl Check {
    fn of(check: &'static str, at: String, verdict: CheckVerdict, said: &str) -> Self {
        // Words of a host must not move the cursor of a terminal.
        Self { check, at, verdict, said: printable(said, usize::MAX) }
    }

    pub fn passed(check: &'static str, at: impl Into<String>, said: impl Into<String>) -> Self {
        Self::of(check, at.into(), CheckVerdict::Passed, &said.into())
    }

    pub fn failed(check: &'static str, at: impl Into<String>, said: impl Into<String>) -> Self {
        Self::of(check, at.into(), CheckVerdict::Failed, &said.into())
    }

    pub fn not_tried(check: &'static str, at: impl Into<String>, said: impl Into<String>) -> Self {
        Self::of(check, at.into(), CheckVerdict::NotTried, &said.into())
    }

    /// Passed, unless there is something to say.
    pub fn unless(check: &'static str, at: impl Into<String>, problem: Option<String>) -> Self {
        match problem {
            None => Self::passed(check, at, ""),
            Some(said) => Self::failed(check, at, said),
        }
    }
}

/// The order of the rows.
const ORDER: [&str; 17] = [
    "ssh", "version", "name", "address", "clock", "limits", "memlock", "ptrace", "shm", "rdma", "key",
    "cable", "paths", "route", "port", "mtu", "speed",
];

/// The table for people: what passed in a row for each check, what did not in a row of its own.
pub fn table(checks: &[Check]) -> String {
    let mut t = String::new();
    for name in ORDER {
        let of = |verdict| checks.iter().filter(move |c| c.check == name && c.verdict == verdict);
        let passed: Vec<_> = of(CheckVerdict::Passed).collect();
        let said: Vec<_> =
            passed.iter().filter(|c| !c.said.is_empty()).map(|c| format!("{} {}", c.at, c.said)).collect();
        // Writing to a string cannot fail.
        if !passed.is_empty() {
            let places: Vec<_> = passed.iter().filter(|c| c.said.is_empty()).map(|c| c.at.clone()).collect();
            let many = places.len();
            let places = if many > 12 { format!("{many} of them") } else { places.join(", ") };
            let _ = writeln!(t, "passed     {name:<8} {places}");
            said.iter().for_each(|line| t += &format!("{:20}{line}\n", ""));
        }
        for check in of(CheckVerdict::Failed) {
            let _ = writeln!(t, "FAILED     {name:<8} {}: {}", check.at, check.said);
        }
        let mut not_tried: Vec<(&str, Vec<&str>)> = Vec::new();
        for check in of(CheckVerdict::NotTried) {
            match not_tried.iter_mut().find(|(said, _)| *said == check.said) {
                Some((_, places)) => places.push(&check.at),
                None => not_tried.push((&check.said, vec![&check.at])),
            }
        }
        for (said, places) in not_tried {
            let _ = writeln!(t, "not tried  {name:<8} {}: {said}", places.join(", "));
        }
    }
    let count = |v| checks.iter().filter(|c| c.verdict == v).count();
    let [passed, failed, not_tried] =
        [CheckVerdict::Passed, CheckVerdict::Failed, CheckVerdict::NotTried].map(count);
    t + &format!("\n{passed} passed, {failed} failed, {not_tried} not tried\n")
}
