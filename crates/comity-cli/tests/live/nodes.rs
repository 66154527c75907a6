//! A job of launchers that were started on each host: one that sees a part says so.
use super::{ROLE, acted, ports::free_port, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

/// A launcher with its own folder, as on a host of its own; it is ended with this value.
struct Node(Child);

impl Node {
    fn start(number: &str, at: &str, dir: &Path, key: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        let flags = ["launch", "--nnodes", "2", "--node-rank", number, "--rendezvous", at, "-n", "2", "--"];
        let test = ["nodes::a_part_says_that_it_is_one", "--exact", "--nocapture"];
        command.args(flags).arg(std::env::current_exe().unwrap()).args(test);
        command.env(ROLE, "hang").env("XDG_RUNTIME_DIR", dir).env("COMITY_KEY_FILE", key);
        command.env("COMITY_DETECTION", "100").stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn top(dir: &Path, word: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    command.args([word].into_iter().chain((word == "top").then_some("--once")));
    let done = command.env("XDG_RUNTIME_DIR", dir).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn a_part_says_that_it_is_one() {
    if acted() {
        return;
    }
    for apart in [true, false] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let key = dirs[0].path().join("job.key");
        let made =
            Command::new(env!("CARGO_BIN_EXE_comity")).args(["key", "new"]).arg(&key).output().unwrap();
        assert!(made.status.success());
        let at = format!("127.0.0.1:{}", free_port());
        let second = if apart { &dirs[1] } else { &dirs[0] };
        let _nodes =
            [Node::start("0", &at, dirs[0].path(), &key), Node::start("1", &at, second.path(), &key)];
        let all = "which is in no call";
        if apart {
            let text = wait_for("a part", || {
                let text = top(second.path(), "top");
                text.contains("shown are 2 of 4 ranks, those of host ").then_some(text)
            });
            assert!(text.contains("comity top a,b"), "{text}");
            assert!(top(second.path(), "stacks").contains("shown are 2 of 4 ranks"));
        } else {
            let text = wait_for("all", || {
                let text = top(second.path(), "top");
                (text.contains(all) && text.contains("4 ranks")).then_some(text)
            });
            assert!(text.contains("ranks 0, 2, 3 wait") && !text.contains("shown are"), "{text}");
        }
    }
}
