//! Jobs whose ranks talk over RDMA, on a software device that `COMITY_VERBS` names: what they compute, what they do where devices
//! are missing, and what they say when something breaks. `cargo xtask test --only rdma` builds the device and runs these.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

const COMITY: &str = env!("CARGO_BIN_EXE_comity");
/// As TCP: the default limit on silence, and a second.
const PROMISE: Duration = Duration::from_secs(6);
/// Longer than anything takes that is to succeed.
const LONG: Duration = Duration::from_secs(120);

/// `comity launch -n N -- comity check ARGS`, with these variables for every rank.
fn job(n: usize, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut c = Command::new(COMITY);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        // What this test runs under is not what it is about.
        let other = ["COMITY_", "MLX_", "JACCL_", "SOFTVERBS_"].iter().any(|p| text.starts_with(p));
        if other && text != "COMITY_VERBS" {
            c.env_remove(&name);
        }
    }
    assert!(std::env::var_os("COMITY_VERBS").is_some(), "COMITY_VERBS names no library");
    c.env("COMITY_LINKS", "rdma,tcp").env("COMITY_JOIN_TIMEOUT", "60");
    c.env("SOFTVERBS_DEVICES", "soft0=127.0.0.1,soft1=127.0.0.2,soft2=127.0.0.3");
    c.envs(env.iter().copied());
    c.args(["launch", "-v", "-n", &n.to_string(), "--timeout", "110", "--", COMITY, "check"]).args(args);
    c.stdin(Stdio::null());
    c
}

fn run(n: usize, args: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let Output { status, stdout, stderr } = job(n, args, env).output().unwrap();
    let text = [stdout, stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    (status.success(), text)
}

#[track_caller]
fn right(n: usize, args: &[&str], env: &[(&str, &str)], links: &str) {
    let (good, text) = run(n, args, env);
    assert!(good && text.contains("all ok"), "{env:?}: {text}");
    let header = text.lines().find(|l| l.contains("ranks on 1 host")).unwrap_or_default();
    assert!(header.contains(&format!("links {links},")), "{env:?}: {header}");
}

const SOME: [&str; 3] = ["--quick", "--ops", "all_reduce,all_to_all,send,split"];

#[test]
#[ignore = "needs COMITY_VERBS"]
fn two_ranks_are_right() {
    right(2, &["--quick"], &[("COMITY_RDMA", "rc")], "rdma");
    right(2, &["--quick"], &[("COMITY_RDMA", "uc")], "rdma");
    right(2, &["--quick"], &[("SOFTVERBS_MODE", "apple")], "rdma");
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn three_and_four_ranks_are_right() {
    for n in [3, 4] {
        for mode in [("COMITY_RDMA", "rc"), ("COMITY_RDMA", "uc"), ("SOFTVERBS_MODE", "apple")] {
            right(n, &SOME, &[mode], "rdma");
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
}

/// A job that runs, with what it says.
struct Running {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl Running {
    fn start(n: usize, env: &[(&str, &str)]) -> Self {
        let mut child = job(n, &["--ops", "all_reduce"], env)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let out: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for out in out {
            let send = send.clone();
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        let mut job = Self { child, lines, heard: Vec::new() };
        job.hear(|l| l.contains("links rdma"));
        // Into the middle of it.
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

    /// The process of a rank, as the launcher tells it.
    fn pid(&mut self, rank: usize) -> rustix::process::Pid {
        let line = self.hear(|l| l.contains(&format!("rank {rank} ")) && l.contains("pid "));
        let pid =
            line.split("pid ").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect::<String>();
        rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()
    }

    /// What `rank` says when its call fails.
    fn error(&mut self, rank: usize) -> String {
        self.hear(|l| l.starts_with(&format!("[{rank}] comity check: ")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_killed_rank_is_named_by_all() {
    for mode in [("COMITY_RDMA", "rc"), ("COMITY_RDMA", "uc"), ("SOFTVERBS_MODE", "apple")] {
        let mut job = Running::start(3, &[mode]);
        let victim = job.pid(1);
        let killed = Instant::now();
        rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
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
        let mut job = Running::start(3, &[mode, ("COMITY_DETECTION", "1")]);
        let victim = job.pid(2);
        let stopped = Instant::now();
        rustix::process::kill_process(victim, rustix::process::Signal::STOP).unwrap();
        for rank in [0, 1] {
            let error = job.error(rank);
            assert!(error.contains("rank 2 ") && error.contains("silent"), "{mode:?}: {error}");
        }
        assert!(stopped.elapsed() < PROMISE, "{:?}", stopped.elapsed());
        rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_port_that_goes_down_is_named_by_all() {
    for mode in [("COMITY_RDMA", "uc"), ("SOFTVERBS_MODE", "apple")] {
        let file = std::env::temp_dir().join(format!("comity-link-down-{}-{}", std::process::id(), mode.1));
        let _clean = Remove(file.clone());
        let mut job = Running::start(3, &[mode, ("SOFTVERBS_LINK_DOWN_FILE", file.to_str().unwrap())]);
        let down = Instant::now();
        fs::write(&file, "").unwrap();
        for rank in 0..3 {
            let error = job.error(rank);
            assert!(error.contains("RDMA wire"), "{mode:?}: {error}");
        }
        assert!(down.elapsed() < PROMISE, "{:?}", down.elapsed());
    }
}

struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
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
        let (good, text) = run(2, &["--quick"], &[("COMITY_RDMA", "uc"), (&name, "0.002")]);
        assert!(!good, "{fault}: {text}");
        for rank in 0..2 {
            let said = |l: &&str| l.starts_with(&format!("[{rank}] comity check: "));
            let error = text.lines().find(said).unwrap_or_default();
            assert!(error.contains("RDMA wire soft0 (127.0.0.1)"), "{fault}: {text}");
            assert!(words.iter().any(|w| error.contains(w)), "{fault}: {text}");
        }
        assert!(begun.elapsed() < LONG / 2, "{fault}: {:?}", begun.elapsed());
    }
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn a_completion_that_failed_is_an_error() {
    let (good, text) = run(2, &["--quick"], &[("SOFTVERBS_QUIRKS", "wc_err=900")]);
    assert!(!good && text.contains("status ") && text.contains("RDMA wire soft0"), "{text}");
}
