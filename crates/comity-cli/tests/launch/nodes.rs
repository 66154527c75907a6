//! Launchers without ssh: each host's own, here both on this one.
use super::given_up::{CALLS, await_rows, detection, process_of};
use super::harness::*;
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

/// Somewhere to meet: nobody listens there, nor at the port behind it.
fn place() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Starts node `node` of `nodes` with a key, and with these words behind the flags.
fn node(dir: &Path, at: &str, node: usize, nodes: usize, words: &[&str]) -> Job {
    let key = dir.join("job.key");
    if !key.exists() {
        Ended::of(comity().args(["key", "new"]).arg(&key)).ends(0);
    }
    let node = node.to_string();
    let nodes = nodes.to_string();
    let flags = ["--nnodes", &nodes, "--node-rank", &node, "--rendezvous", at];
    start_with(&[&flags, words].concat(), |command| {
        command.env("COMITY_KEY_FILE", &key).env("COMITY_JOIN_TIMEOUT", "30")
    })
}

#[test]
fn ranks_are_numbered_by_node_and_meet() {
    let dir = tempfile::tempdir().unwrap();
    let at = place();
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE; \
        exec \"$COMITY\" check --quick --ops all_reduce --dtypes f32 > /dev/null";
    let words = |n: &'static str| ["-n", n, "--", "sh", "-c", script];
    let jobs = [node(dir.path(), &at, 0, 2, &words("2")), node(dir.path(), &at, 1, 2, &words("1"))];
    let [first, second] = jobs.map(|job| job.finish().ends(0));
    assert_eq!(first.sorted(), ["[0] 0 3 0 2", "[1] 1 3 1 2"]);
    assert_eq!(second.sorted(), ["[2] 2 3 0 1"]);
}

#[test]
fn a_rank_that_fails_ends_all_nodes_with_one_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let at = place();
    let script = "[ $RANK = 1 ] && exit 7; setsid sleep 100 & sleep 100";
    let jobs = [0, 1].map(|n| node(dir.path(), &at, n, 2, &["--", "sh", "-c", script]));
    for done in jobs.map(Job::finish_whole) {
        let done = done.ends(7);
        assert!(done.last().ends_with("exited with code 7"), "{}", done.err);
        holds(done.last(), &["rank 1 (pid "]);
        done.says(&["how the ranks ended: 0 "]);
    }
}

#[test]
fn a_stopped_rank_that_another_node_gave_up_ends_all() {
    let dir = tempfile::tempdir().unwrap();
    let at = place();
    let d = format!("D={}", dir.path().display());
    let words = ["--env", &detection(), "--env", &d, "--", "sh", "-c", CALLS];
    let jobs = [0, 1].map(|n| node(dir.path(), &at, n, 2, &words));
    await_rows(dir.path());
    rustix::process::kill_process(process_of(&jobs[1], 1), Signal::STOP).unwrap();
    for done in jobs.map(Job::finish) {
        let done = done.ends(1);
        let end = "fell silent: it was stopped; rank 0 gave it up and exited with code 0";
        assert!(done.last().contains(": rank 1 (pid ") && done.last().ends_with(end), "{}", done.err);
    }
}

#[test]
fn a_launcher_that_is_killed_or_interrupted_ends_the_others() {
    for (signal, code, part) in [(Signal::KILL, 1, "node 1 (host "), (Signal::INT, 130, ": ended by SIGINT")]
    {
        let dir = tempfile::tempdir().unwrap();
        let at = place();
        let jobs = [0, 1].map(|n| node(dir.path(), &at, n, 2, &["--", "sleep", "100"]));
        jobs.iter().for_each(|j| drop(j.wait_running("sleep", 1)));
        // The launcher, or the process that the user started.
        match signal {
            Signal::KILL => jobs[1].running("rank-supervisor").iter().for_each(|p| {
                let _ = rustix::process::kill_process(p.pid, signal);
            }),
            _ => jobs[1].signal(signal),
        }
        let marks = [jobs[0].mark.clone(), jobs[1].mark.clone()];
        let [first, second] = jobs.map(Job::finish);
        assert_eq!(first.code, code, "{}", first.err);
        assert!(first.last().contains(part), "{}", first.err);
        assert_ne!(second.code, 0);
        wait_for("all to be gone", || marks.iter().all(|m| marked(m).is_empty()).then_some(()));
        assert!(first.took < patient(Duration::from_secs(30)));
    }
}

#[test]
fn what_does_not_go_together_is_said_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let at = place();
    let jobs = [("x.sh", 0), ("y.sh", 1)].map(|(s, n)| node(dir.path(), &at, n, 2, &["--", "echo", s]));
    for done in jobs.map(Job::finish) {
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{}", done.err);
        done.says(&["the nodes differ: node 0 (host ", "\"echo y.sh\""]);
    }
    // Two who disagree on how many they are.
    let at = place();
    let jobs = [2, 3].map(|nodes| node(dir.path(), &at, nodes - 2, nodes, &["--", "echo"]));
    for done in jobs.map(Job::finish) {
        assert!(done.code != 0 && done.out.is_empty(), "{}", done.err);
        done.says(&["did not come together"]);
    }
}
