//! Jobs whose ranks talk over RDMA, on a software device that `COMITY_VERBS` names: what they compute, what they do where devices
//! are missing, and what they say when something breaks. `cargo xtask test --only rdma` builds the device and runs these.
#![cfg(target_os = "linux")]

mod common;

use common::{COMITY, Ended, Meeting, comity, hear};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    process::{Child, Command},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

/// Bound far from [`LONG`]: the promise is the limit on silence and a second, and the machine may do something else for some.
const PROMISE: Duration = Duration::from_secs(20);
/// Longer than anything takes that is to succeed.
const LONG: Duration = Duration::from_secs(120);

/// The command with the software devices and these variables.
fn surrounded(env: &[(&str, &str)]) -> Command {
    let mut c = comity();
    c.env("COMITY_VERBS", std::env::var_os("COMITY_VERBS").expect("COMITY_VERBS names a library"));
    c.env("COMITY_LINKS", "rdma,tcp").env("COMITY_JOIN_TIMEOUT", "60");
    c.env("SOFTVERBS_DEVICES", "soft0=127.0.0.1,soft1=127.0.0.2,soft2=127.0.0.3");
    c.envs(env.iter().copied());
    c
}

/// `comity launch -n N -- comity check ARGS`, with these variables for every rank.
fn run(n: usize, args: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let mut c = surrounded(env);
    c.args(["launch", "-n", &n.to_string(), "--timeout", "110", "--", COMITY, "check"]).args(args);
    let ended = Ended::of(&mut c);
    (ended.code == 0, ended.text())
}

#[track_caller]
fn right(n: usize, args: &[&str], env: &[(&str, &str)], links: &str) {
    let mut env = env.to_vec();
    if links == "rdma" {
        // The first line is about rank 0's links alone: let no pair take another.
        env.push(("COMITY_LINKS", "rdma"));
    }
    let env = &env[..];
    let (good, text) = run(n, args, env);
    assert!(good && text.contains("all ok"), "{env:?}: {text}");
    let header = text.lines().find(|l| l.contains("ranks on 1 host")).unwrap_or_default();
    assert!(header.contains(&format!("links {links},")), "{env:?}: {header}");
}

const MODES: [(&str, &str); 3] = [("COMITY_RDMA", "rc"), ("COMITY_RDMA", "uc"), ("SOFTVERBS_MODE", "apple")];
const SOME: [&str; 3] = ["--quick", "--ops", "all_reduce,all_to_all,send,split"];

#[test]
#[ignore = "needs COMITY_VERBS"]
fn the_selftest_has_a_row_for_devices() {
    let ended = Ended::of(surrounded(&[]).args(["selftest", "--only", "link rdma"])).ends(0);
    ended.shows(&["# 1 passed, 0 failed, 0 not there"]);
    let is_row = |l: &str| l.starts_with("link rdma, 2 ranks") && l.contains("passed");
    assert!(ended.out.lines().any(is_row), "{}", ended.out);
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn two_to_four_ranks_are_right() {
    for (n, words) in [(2, &["--quick"][..]), (3, &SOME), (4, &SOME)] {
        for mode in MODES {
            right(n, words, &[mode], "rdma");
        }
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn every_reported_behaviour_of_providers_is_borne() {
    for quirks in ["recv_needs_rts", "mr_needs_remote", "no_channel", "gid_index=2"] {
        for mode in ["ib", "apple"] {
            right(2, &SOME, &[("SOFTVERBS_MODE", mode), ("SOFTVERBS_QUIRKS", quirks)], "rdma");
        }
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn pairs_without_a_device_take_tcp() {
    // Ranks 0 and 2 have no cable; MLX's form, strings and lists.
    let matrix = r#"[[null, "soft0", null], [["soft1"], null, "soft1"], [null, ["soft2"], null]]"#;
    right(3, &SOME, &[("MLX_IBV_DEVICES", matrix)], "rdma and tcp");
    right(
        3,
        &SOME,
        &[("COMITY_DEVICES", matrix), ("COMITY_LINKS", "rdma,tcp"), ("COMITY_RDMA", "uc")],
        "rdma and tcp",
    );
    // Before shared memory, by the name that MLX has for it.
    right(
        3,
        &SOME,
        &[("COMITY_DEVICES", matrix), ("COMITY_LINKS", "rdma,shm,tcp"), ("COMITY_BACKEND", "jaccl")],
        "rdma and shm",
    );
    let (good, text) = run(3, &SOME, &[("COMITY_DEVICES", matrix), ("COMITY_LINKS", "rdma")]);
    assert!(!good && text.contains("not over RDMA (no device leads to it)"), "{text}");
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn cables_are_found_whatever_the_order_of_names() {
    let env = [
        ("SOFTVERBS_DEVICES", "a1=127.0.1.1,a2=127.0.2.1,b1=127.0.1.2,b2=127.0.2.2"),
        // By address the guess is wrong: it is tried, and then the other.
        ("SOFTVERBS_CABLES", "127.0.1.1-127.0.2.2,127.0.2.1-127.0.1.2"),
        ("COMITY_DEVICES", r#"[[null, ["a1", "a2"]], [["b1", "b2"], null]]"#),
    ];
    right(2, &SOME, &env, "rdma");
    let env = [env[0], ("SOFTVERBS_CABLES", "127.0.1.1-127.0.1.2"), env[2]];
    right(2, &SOME, &env, "rdma");
    // None is on a cable: both ends know, and take the other link.
    let env = [env[0], ("SOFTVERBS_CABLES", "127.0.1.1-127.0.2.1"), env[2]];
    right(2, &SOME, &env, "tcp");
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn what_does_not_fit_on_a_device_takes_tcp() {
    // Six peers would need twelve queue pairs of one device.
    right(7, &["--quick", "--ops", "barrier,broadcast"], &[("SOFTVERBS_MODE", "apple")], "rdma and tcp");
    right(2, &["--quick", "--ops", "barrier"], &[("SOFTVERBS_MAX_MR", "0")], "tcp");
    // One region for the process is enough.
    right(2, &["--quick", "--ops", "barrier"], &[("SOFTVERBS_MAX_MR", "1")], "rdma");
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_group_that_is_split_off_makes_no_queue_pair() {
    // Two to each of three peers, and not one more.
    right(4, &["--quick", "--ops", "split"], &[("SOFTVERBS_MAX_QP", "6")], "rdma");
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn queues_that_take_few_receives_do_not_starve() {
    let one_way = ["--quick", "--ops", "broadcast,send"];
    for mode in ["rc", "uc"] {
        right(2, &one_way, &[("SOFTVERBS_MAX_WR", "3"), ("COMITY_RDMA", mode)], "rdma");
    }
    // Counted in frames: three long ones, less one frame.
    let few = [("SOFTVERBS_MODE", "apple"), ("SOFTVERBS_MAX_WR", "100"), ("SOFTVERBS_MIN_DEPTH", "1")];
    right(2, &one_way, &few, "rdma");
}

/// Ranks that run, each as a child of this test: a launcher would end those that are slow to say what they know.
struct Running {
    ranks: Vec<Child>,
    lines: Receiver<String>,
    heard: Vec<String>,
    _meeting: Meeting,
}

impl Running {
    /// `comity check ARGS` on `n` ranks, with these variables for each.
    fn start(n: usize, args: &[&str], env: &[(&str, &str)]) -> Self {
        let meeting = Meeting::new(n);
        let (send, lines) = channel();
        let mut ranks = Vec::new();
        for rank in 0..n {
            let mut c = surrounded(env);
            meeting.join(rank, &mut c);
            c.env("COMITY_LINKS", "rdma").arg("check").args(args);
            let mut child = c.spawn().unwrap();
            let send = send.clone();
            hear(&mut child, move |line| drop(send.send(format!("[{rank}] {line}"))));
            ranks.push(child);
        }
        Self { ranks, lines, heard: Vec::new(), _meeting: meeting }
    }

    /// Ranks in the middle of many calls.
    fn in_the_middle(n: usize, env: &[(&str, &str)]) -> Self {
        let mut job = Self::start(n, &["--ops", "all_reduce"], env);
        job.hear(|l| l.contains("links rdma,"));
        thread::sleep(Duration::from_millis(300));
        job
    }

    fn hear(&mut self, what: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + LONG;
        loop {
            if let Some(line) = self.heard.iter().find(|l| what(l)) {
                return line.clone();
            }
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.heard.push(line),
                Err(e) => panic!("{e}; said was {:#?}", self.heard),
            }
        }
    }

    fn pid(&self, rank: usize) -> Pid {
        Pid::from_child(&self.ranks[rank])
    }

    /// Error of `rank` when its call fails.
    fn error(&mut self, rank: usize) -> String {
        self.hear(|l| l.starts_with(&format!("[{rank}] comity check: ")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_killed_rank_is_named_by_all() {
    for mode in MODES {
        let mut job = Running::in_the_middle(3, &[mode]);
        let killed = Instant::now();
        kill_process(job.pid(1), Signal::KILL).unwrap();
        for rank in [0, 2] {
            let error = job.error(rank);
            assert!(error.contains("rank 1 "), "{mode:?}: {error}");
        }
        assert!(killed.elapsed() < PROMISE, "{:?}", killed.elapsed());
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_stopped_rank_is_given_up() {
    for mode in [("COMITY_RDMA", "rc"), ("SOFTVERBS_MODE", "apple")] {
        // Ranks that are only slow are not to be given up.
        let mut job = Running::in_the_middle(3, &[mode, ("COMITY_DETECTION", "3")]);
        let stopped = Instant::now();
        kill_process(job.pid(2), Signal::STOP).unwrap();
        for rank in [0, 1] {
            let error = job.error(rank);
            assert!(error.contains("rank 2 ") && error.contains("silent"), "{mode:?}: {error}");
        }
        assert!(stopped.elapsed() < PROMISE, "{:?}", stopped.elapsed());
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_port_that_goes_down_is_named_by_all() {
    for mode in [("COMITY_RDMA", "uc"), ("SOFTVERBS_MODE", "apple")] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("down");
        let mut job =
            Running::in_the_middle(3, &[mode, ("SOFTVERBS_LINK_DOWN_FILE", file.to_str().unwrap())]);
        let down = Instant::now();
        fs::write(&file, "").unwrap();
        for rank in 0..3 {
            let error = job.error(rank);
            assert!(error.contains("RDMA path"), "{mode:?}: {error}");
        }
        assert!(down.elapsed() < PROMISE, "{:?}", down.elapsed());
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn frames_that_are_lost_repeated_or_damaged_are_an_error_that_names_the_wire() {
    for (fault, words) in [
        ("DROP", &["lost a frame", "lost frames"][..]),
        ("DUPLICATE", &["sent a frame twice"]),
        ("CORRUPT", &["damaged on its way", "is no frame of Comity"]),
        ("REORDER", &["lost a frame", "sent a frame twice"]),
    ] {
        let begun = Instant::now();
        let name = format!("SOFTVERBS_{fault}");
        let mut job = Running::start(2, &["--quick"], &[("COMITY_RDMA", "uc"), (&name, "0.002")]);
        for rank in 0..2 {
            let error = job.error(rank);
            assert!(error.contains("RDMA path soft0 (127.0.0.1)"), "{fault}: {error}");
            assert!(words.iter().any(|w| error.contains(w)), "{fault}: {error}");
        }
        assert!(begun.elapsed() < LONG / 2, "{fault}: {:?}", begun.elapsed());
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_completion_that_failed_is_an_error() {
    let (good, text) = run(2, &["--quick"], &[("SOFTVERBS_QUIRKS", "wc_err=900")]);
    assert!(!good && text.contains("status ") && text.contains("RDMA path soft0"), "{text}");
}
