//! The group that this process belongs to, and how it is told in a line.

use comity::{Error, Group, Result};
use std::collections::BTreeSet;

/// The version of this command and of the library in it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The group of the job that the environment tells of; of one where it tells of none.
pub(crate) fn join() -> Result<Group> {
    comity::init()
}

/// Says why `command` could not go on; the exit code.
pub(crate) fn failed(command: &str, e: &Error) -> u8 {
    eprintln!("comity {command}: {e}");
    if matches!(e, Error::Config(_)) { 2 } else { 1 }
}

/// "4 ranks on 2 hosts (a, b), links shm and tcp".
pub(crate) fn world(group: &Group) -> String {
    let n = group.size();
    if n == 1 {
        return "1 rank".into();
    }
    let hosts: BTreeSet<_> = group.members().iter().map(|m| m.host.as_deref()).collect();
    let names: Vec<_> = hosts.iter().flatten().copied().collect();
    let names = match names.len() {
        0 => String::new(),
        1..=4 => format!(" ({})", names.join(", ")),
        more => format!(" ({}, {}, .. {})", names[0], names[1], names[more - 1]),
    };
    let links: BTreeSet<_> = group.link_kinds().into_iter().flatten().map(|k| k.to_string()).collect();
    let links = Vec::from_iter(links).join(" and ");
    let s = if hosts.len() == 1 { "" } else { "s" };
    format!("{n} ranks on {} host{s}{names}, links {links}", hosts.len())
}
