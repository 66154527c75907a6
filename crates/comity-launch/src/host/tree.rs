//! The processes that descend from this one, also those that left their process group or session.
use rustix::process::{Pid, Signal};

/// Every living process below this one. Only Linux can tell; elsewhere the list is empty.
pub(crate) fn descendants() -> Vec<Pid> {
    below(rustix::process::getpid(), &processes())
}

/// The children of this process that are stopped, or that have a stopped process below them: a rank may be a shell that waits for
/// what it started. Only Linux can tell; elsewhere the list is empty.
pub(crate) fn stopped() -> Vec<Pid> {
    let all = processes();
    let halted: Vec<Pid> = all.iter().filter(|p| p.stopped).map(|p| p.pid).collect();
    if halted.is_empty() {
        return halted;
    }
    let own = rustix::process::getpid();
    let children = all.iter().filter(|p| p.parent == own).map(|p| p.pid);
    children.filter(|c| halted.contains(c) || below(*c, &all).iter().any(|p| halted.contains(p))).collect()
}

/// A process whose first thread has ended while others of its threads have not looks like one that has ended, and still has
/// children: they are below it all the same.
fn below(top: Pid, all: &[Process]) -> Vec<Pid> {
    let mut found = vec![(top, false)];
    let mut at = 0;
    while let Some(&(parent, _)) = found.get(at) {
        found.extend(all.iter().filter(|p| p.parent == parent).map(|p| (p.pid, p.lives)));
        at += 1;
    }
    found.into_iter().filter(|(_, lives)| *lives).map(|(pid, _)| pid).collect()
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    parent: Pid,
    /// It has not ended, as far as its first thread tells.
    lives: bool,
    /// By a signal, or by a debugger.
    stopped: bool,
}

pub(crate) fn signal(pids: &[Pid], signal: Signal) {
    for &pid in pids {
        // One that has just ended is as good as signalled.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(target_os = "linux")]
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter_map(|number| {
            let stat = std::fs::read(format!("/proc/{number}/stat")).ok()?;
            let (state, parent) = state(&stat)?;
            let lives = !matches!(state, "Z" | "X" | "x");
            let stopped = matches!(state, "T" | "t");
            Some(Process { pid: Pid::from_raw(number)?, parent, lives, stopped })
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn processes() -> Vec<Process> {
    Vec::new()
}

/// A process's state and parent out of `/proc/N/stat`.
#[cfg(any(target_os = "linux", test))]
fn state(stat: &[u8]) -> Option<(&str, Pid)> {
    // The name before it may hold anything, also spaces and parentheses.
    let after = stat.get(stat.iter().rposition(|&b| b == b')')? + 1..)?;
    let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
    Some((fields.next()?, Pid::from_raw(fields.next()?.parse().ok()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_past_any_name() {
        assert_eq!(state(b"12 (a) S) ) R 7 12 12 0"), Some("R").zip(Pid::from_raw(7)));
        assert_eq!(state(b"12 (sh) Z 7 12"), Some("Z").zip(Pid::from_raw(7)));
        for bad in [&b""[..], b"12", b"12 (sh", b"12 (sh)", b"12 (sh) S", b"12 (sh) S x", b"1 (init) S 0 1"] {
            assert_eq!(state(bad), None);
        }
    }

    #[test]
    fn children_of_a_process_that_is_ending_are_found() {
        let pid = |n| Pid::from_raw(n).unwrap();
        let process = |n, parent, lives| Process { pid: pid(n), parent: pid(parent), lives, stopped: false };
        let all = [process(5, 4, true), process(4, 3, false), process(7, 6, true), process(3, 2, true)];
        assert_eq!(below(pid(2), &all), [pid(3), pid(5)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_is_found_while_it_lives() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid) && !stopped().contains(&pid));
        signal(&[pid], Signal::STOP);
        let begun = std::time::Instant::now();
        while !stopped().contains(&pid) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it is not stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        signal(&[pid], Signal::KILL);
        child.wait().unwrap();
        assert!(!descendants().contains(&pid));
    }
}
