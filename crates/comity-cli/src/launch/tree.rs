//! The processes that descend from this one, also those that left their process group or session.
use rustix::process::{Pid, Signal};

/// Every living process below this one. Only Linux can tell; elsewhere the list is empty.
pub(super) fn descendants() -> Vec<Pid> {
    let all = processes();
    let mut found = vec![rustix::process::getpid()];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(all.iter().filter(|(_, ppid)| *ppid == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

pub(super) fn signal(pids: &[Pid], signal: Signal) {
    for &pid in pids {
        // One that has just ended is as good as signalled.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Every living process with its parent.
#[cfg(target_os = "linux")]
fn processes() -> Vec<(Pid, Pid)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter_map(|number| {
            let stat = std::fs::read(format!("/proc/{number}/stat")).ok()?;
            Some((Pid::from_raw(number)?, living_parent(&stat)?))
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn processes() -> Vec<(Pid, Pid)> {
    Vec::new()
}

/// The parent out of `/proc/N/stat`, unless the process has ended and only waits to be noticed.
#[cfg(any(target_os = "linux", test))]
fn living_parent(stat: &[u8]) -> Option<Pid> {
    // The name before it may hold anything, also spaces and parentheses.
    let after = stat.get(stat.iter().rposition(|&b| b == b')')? + 1..)?;
    let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" | "x" => None,
        _ => Pid::from_raw(fields.next()?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_past_any_name() {
        assert_eq!(living_parent(b"12 (a) S) ) R 7 12 12 0"), Pid::from_raw(7));
        assert_eq!(living_parent(b"12 (sh) Z 7 12"), None);
        for bad in [&b""[..], b"12", b"12 (sh", b"12 (sh)", b"12 (sh) S", b"12 (sh) S x", b"1 (init) S 0 1"] {
            assert_eq!(living_parent(bad), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_is_found_while_it_lives() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid));
        signal(&[pid], Signal::KILL);
        child.wait().unwrap();
        assert!(!descendants().contains(&pid));
    }
}
