//! Evidence that the kernel killed a rank for want of memory: its counters of such kills.
use std::path::{Path, PathBuf};

/// Counters of the kernel, each with the kills that it had counted.
#[derive(Debug)]
pub(crate) struct Kills {
    counters: Vec<Counter>,
}

#[derive(Debug)]
struct Counter {
    file: PathBuf,
    count: u64,
    /// Counts the kills of this job's control group only, not of the whole machine.
    own: bool,
}

impl Kills {
    /// The counters as they are now.
    pub(crate) fn watch() -> Self {
        let own = control_group_files().into_iter().map(|file| (file, true));
        let mut counters: Vec<Counter> = own.filter_map(|(file, own)| Counter::at(file, own)).collect();
        if counters.is_empty() {
            counters.extend(Counter::at("/proc/vmstat".into(), false));
        }
        Self { counters }
    }

    /// Evidence that lack of memory caused a SIGKILL that was noticed now.
    pub(crate) fn evidence(&mut self) -> Option<&'static str> {
        let mut own = None;
        for counter in &mut self.counters {
            let Some(count) = read(&counter.file) else { continue };
            if count > counter.count {
                counter.count = count;
                own = own.max(Some(counter.own));
            }
        }
        own.map(|own| match own {
            true => "out of memory (the kernel counted a kill in the memory control group of this job)",
            false => "out of memory, it seems (the kernel killed a process of this machine for it just now)",
        })
    }
}

impl Counter {
    fn at(file: PathBuf, own: bool) -> Option<Self> {
        read(&file).map(|count| Self { file, count, own })
    }
}

fn read(file: &Path) -> Option<u64> {
    count(&std::fs::read_to_string(file).ok()?)
}

/// `memory.events`, `memory.oom_control` and `vmstat` all have a line "oom_kill N".
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn control_group_files() -> Vec<PathBuf> {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    candidates(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// The files that may count this process's control group: version 2's, and version 1's memory controller.
fn candidates(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (kind, name) = match controllers {
            "" => ("cgroup2", "memory.events"),
            c if c.split(',').any(|c| c == "memory") => ("cgroup", "memory.oom_control"),
            _ => continue,
        };
        for mount in mounts.lines() {
            let Some((before, after)) = mount.split_once(" - ") else { continue };
            let mut after = after.split(' ');
            let is_kind = after.next() == Some(kind);
            let options = after.nth(1).unwrap_or_default();
            if !is_kind || (kind == "cgroup" && !options.split(',').any(|o| o == "memory")) {
                continue;
            }
            let mut fields = before.split(' ').skip(3);
            let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
            // In a container the mount shows a subtree, and the group's name may count from above it.
            let below = Path::new(group).strip_prefix(root).unwrap_or_else(|_| Path::new(""));
            files.push(Path::new(point).join(below).join(name));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_all_three_files() {
        assert_eq!(count("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(count("oom_kill_disable 0\n"), None);
        assert_eq!(count("oom_kill x\n"), None);
    }

    #[test]
    fn the_files_of_both_versions_are_found() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            candidates("0::/user.slice/job.scope", v2),
            [PathBuf::from("/sys/fs/cgroup/user.slice/job.scope/memory.events")]
        );
        let v1 = "33 23 0:28 /docker/abc /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                  34 23 0:29 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu";
        assert_eq!(
            candidates("5:memory:/docker/abc\n4:cpu:/\n0::/", v1),
            [PathBuf::from("/sys/fs/cgroup/memory/memory.oom_control")]
        );
        assert!(candidates("garbage\n1:memory", "- cgroup\nx - ").is_empty());
    }

    #[test]
    fn only_a_count_that_grew_is_evidence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.events");
        std::fs::write(&file, "oom_kill 4\n").unwrap();
        let mut kills = Kills { counters: Vec::from_iter(Counter::at(file.clone(), true)) };
        assert_eq!(kills.evidence(), None);
        std::fs::write(&file, "oom_kill 5\n").unwrap();
        assert!(kills.evidence().is_some_and(|e| e.contains("control group")));
        assert_eq!(kills.evidence(), None);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(kills.evidence(), None);
    }
}
