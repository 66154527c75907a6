//! A process and what it has started: who they are, and a signal to one.

use rustix::process::{Pid, Signal, kill_process};
use std::{collections::HashMap, ffi::OsString, fs};

/// Send a signal to a process, if it is there.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Gone already is as good.
        let _ = kill_process(pid, signal);
    }
}

/// Processes that a process has started, itself and by others, with the times they started at. Empty where there is no /proc.
pub(crate) fn descendants(of: u32) -> Vec<(u32, String)> {
    let mut children: HashMap<u32, Vec<(u32, String)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = number(&entry.file_name()) else { continue };
        if let Some((parent, since)) = started(pid) {
            children.entry(parent).or_default().push((pid, since));
        }
    }
    let mut family = Vec::new();
    let mut next = vec![of];
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).into_iter().flatten() {
            next.push(child.0);
            family.push(child);
        }
    }
    family
}

fn number(name: &OsString) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// A process's parent, and when it started.
pub(crate) fn started(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some((parent, fields.nth(17)?.into()))
}
