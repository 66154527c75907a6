//! A job of launchers that were started on each host: one that sees a part says so.
use super::{
    common::{Ended, comity, free_port, holds, lacks, wait_for},
    launcher,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{path::Path, process::Child};

/// A launcher with its own folder, as on a host of its own; it is ended with this value.
struct Node(Child);

impl Node {
    fn start(number: &str, at: &str, dir: &Path, key: &Path) -> Self {
        let flags = ["--nnodes", "2", "--node-rank", number, "--rendezvous", at, "-n", "2"];
        Self(launcher(dir, "hang", &flags).env("COMITY_KEY_FILE", key).spawn().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn top(dir: &Path, words: &[&str]) -> String {
    Ended::of(comity().args(words).env("XDG_RUNTIME_DIR", dir)).out
}

#[test]
fn a_part_says_that_it_is_one() {
    for apart in [true, false] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let key = dirs[0].path().join("job.key");
        Ended::of(comity().args(["key", "new"]).arg(&key)).ends(0);
        let at = format!("127.0.0.1:{}", free_port());
        let second = if apart { &dirs[1] } else { &dirs[0] };
        let _nodes =
            [Node::start("0", &at, dirs[0].path(), &key), Node::start("1", &at, second.path(), &key)];
        let shown = |what: &str, parts: &[&str]| {
            wait_for(what, || {
                let text = top(second.path(), &["top", "--once"]);
                parts.iter().all(|p| text.contains(p)).then_some(text)
            })
        };
        if apart {
            holds(&shown("a part", &["shown are 2 of 4 ranks, those of host "]), &["comity top a,b"]);
            holds(&top(second.path(), &["stacks"]), &["shown are 2 of 4 ranks"]);
        } else {
            let text = shown("all", &["which is in no call", "4 ranks"]);
            holds(&text, &["ranks 0, 2, 3 wait"]);
            lacks(&text, &["shown are"]);
        }
    }
}
