//! A rank that the kernel kills for want of memory is reported as that, and another killed rank is not.
use super::harness::*;
use std::path::{Path, PathBuf};

/// A memory control group of 64 MiB, removed when dropped. What a sanitizer takes for itself comes on top.
struct Group(PathBuf);

impl Group {
    /// Needs the right to make one, in version 1 or 2.
    fn make() -> Result<Self, String> {
        let name = format!("comity-launch-test-{}", std::process::id());
        let mut why = String::new();
        let bytes = if slowness() > 1 { 512u32 << 20 } else { 64 << 20 };
        for (root, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let dir = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() {
                why += &format!("{root}: no control groups; ");
                continue;
            }
            if let Err(e) = std::fs::create_dir(&dir) {
                why += &format!("{}: {e}; ", dir.display());
                continue;
            }
            let group = Self(dir);
            match std::fs::write(group.0.join(limit), bytes.to_string()) {
                Ok(()) => return Ok(group),
                Err(e) => why += &format!("{}: {e}; ", group.0.join(limit).display()),
            }
        }
        Err(why)
    }

    fn run(&self, script: &str) -> Ended {
        let procs = self.0.join("cgroup.procs");
        let line = format!("echo $$ > {} && exec $COMITY launch -n 2 -- sh -c \"$1\"", procs.display());
        start_line(&line, script).finish()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = std::time::Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < deadline() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn out_of_memory_is_said_when_it_was_that_and_only_then() {
    let group = match Group::make() {
        Ok(group) => group,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "cannot make a memory control group: {why}");
            eprintln!("NOT TESTED: cannot make a memory control group: {why}");
            return;
        }
    };
    let done = group.run("[ $RANK = 1 ] && exec tail /dev/zero; exec sleep 30").ends(137);
    assert!(done.last().contains(" rank 1 (pid") && done.last().contains("out of memory"), "{}", done.err);
    let done = group.run("[ $RANK = 1 ] && kill -9 $$; exec sleep 30").ends(137);
    assert!(!done.err.contains("out of memory"), "{}", done.err);
}
