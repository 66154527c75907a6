//! Ends, restarts and input of a job on several hosts; with the stand-in for ssh.
use super::harness::*;
use super::hosts::Hosts;
use rustix::process::{Signal, kill_process};
use std::io::Write;
use std::process::Stdio;

#[test]
fn ranks_that_end_early_take_nothing_of_the_others_input() {
    let hosts = Hosts::new();
    let input: Vec<u8> = (0..200_000).flat_map(|i| format!("{i:09}\n").into_bytes()).collect();
    for early in [0, 2] {
        let got = hosts.word("got");
        let say =
            format!("[ $RANK = 1 ] || {{ [ $RANK = {early} ] || sleep 1; exit 0; }}; sleep 0.5; cat > {got}");
        let words = ["--hosts", "a,b,c", "--", "sh", "-c", &say];
        let mut job = hosts.start_with(&words, |command| command.stdin(Stdio::piped()));
        let mut stdin = job.child.stdin.take().unwrap();
        let given = input.clone();
        let writer = std::thread::spawn(move || stdin.write_all(&given));
        job.finish().ends(0);
        writer.join().unwrap().unwrap();
        assert!(std::fs::read(&got).unwrap() == input, "rank {early} ended first");
    }
}

#[test]
fn a_job_begins_again_whatever_number_its_rank_ended_with() {
    let hosts = Hosts::new();
    let events = hosts.word("events");
    let again = ["--hosts", "a,b", "--max-restarts", "1", "--json-events", &events, "--", "sh", "-c"];
    for (rank, code) in [("exit 2", 2), ("exit 124", 124), ("kill -TERM $$", 143), ("kill -INT $$", 130)] {
        let script = format!("[ $RANK = 0 ] || {{ {rank}; }}; echo $RANK; sleep 0.1");
        hosts.run(&[&again[..], &[&script]].concat()).ends(code).says(&["restart 1 of 1 in 1 s"]);
        let text = std::fs::read_to_string(&events).unwrap();
        let count = |event: &str| text.matches(&format!("\"event\":\"{event}\"")).count();
        assert_eq!(["end", "restart"].map(count), [2, 1], "{text}");
    }
    for words in [&["--timeout", "0.5"][..], &["--cwd", "/nowhere"]] {
        let words = [&["--hosts", "a", "--max-restarts", "1"], words, &["--", "sleep", "100"]].concat();
        lacks(&hosts.run(&words).err, &["restart"]);
    }
}

#[test]
fn all_hosts_are_asked_at_once() {
    let hosts = Hosts::new();
    // Each answers when all have been asked.
    let asked = hosts.word("asked");
    let waits =
        hosts.behind(&format!("echo x >> {asked}; until [ $(wc -l < {asked}) -ge 64 ]; do sleep 0.2; done"));
    let names = Vec::from_iter((0..64).map(|n| format!("h{n}"))).join(",");
    let words = ["--ssh", &waits, "--hosts", &names, "--", "sh", "-c", "echo $RANK"];
    assert_eq!(run(&words).ends(0).sorted().len(), 64);
}

#[test]
fn a_host_that_is_away_is_tried_again() {
    let hosts = Hosts::new();
    // The restart finds host b away at first.
    let count = hosts.word("count");
    let away = hosts.behind(&format!(
        "[ $host != b ] || {{ echo x >> {count}; [ $(wc -l < {count}) != 2 ] || {{ echo 'connect to host b port 22: Connection timed out' >&2; exit 255; }}; }}"
    ));
    let script = format!("[ $(wc -l < {count}) = 3 ] || exit 7");
    let words = ["--ssh", &away, "--hosts", "a,b", "--max-restarts", "1", "--", "sh", "-c"];
    let done = run(&[&words[..], &[&script]].concat()).ends(0);
    done.says(&["host b: it cannot be reached", "restart 1 did not come to run"]);
    done.says(&["restart 1 is tried again in 1 s"]);
    lacks(&done.err, &["nothing was run"]);
}

#[test]
fn a_host_that_stays_away_is_given_up() {
    let hosts = Hosts::new();
    let been = hosts.word("been");
    let away = hosts.behind(&format!("[ ! -e {been} ] || exit 255\n: > {been}"));
    let words = ["--ssh", &away, "--hosts", "a", "--max-restarts", "5", "--wait-for-hosts", "0.2"];
    let done = run(&[&words[..], &["--", "sh", "-c", "exit 7"]].concat()).ends(2);
    assert_eq!(
        done.last(),
        "comity launch: given up, because hosts were waited for 0.2 s (--wait-for-hosts)"
    );
    lacks(&done.err, &["restart 2 of"]);
}

#[test]
fn a_rank_knows_which_start_it_is() {
    let hosts = Hosts::new();
    let script = "echo $COMITY_RESTART $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; exit $((1 - COMITY_RESTART))";
    let done = hosts.run(&["--hosts", "a", "--max-restarts", "1", "--", "sh", "-c", script]).ends(0);
    assert_eq!(done.sorted(), ["0 0 1", "1 1 1"]);
    let done = run(&["--", "sh", "-c", "echo $COMITY_RESTART $TORCHELASTIC_MAX_RESTARTS"]);
    assert_eq!(done.out, "0 0\n");
}

#[test]
fn mends_name_what_helps_on_that_host() {
    let hosts = Hosts::new();
    write_program(&hosts.path("home/a/bin/python3"), "");
    for (words, part) in [
        (&["--", "python3", "gone.py"][..], "have it copied to the hosts with --stage gone.py"),
        (&["--", "python9", "gone.py"], "there is a python3 here: write that"),
        (&["--env", "PATH=/nowhere", "--", "python", "x.py"], "by --python PATH before the script"),
    ] {
        hosts.run(&[&["--hosts", "a"], words].concat()).ends(2).says(&[part]);
    }
}

#[test]
fn this_host_by_its_loopback_address_beside_others_has_no_address_of_its_own() {
    let say = "echo ${COMITY_ADDRS:-none}";
    let done = Hosts::new().run(&["--hosts", "127.0.0.1,b", "--", "sh", "-c", say]).ends(0);
    assert_eq!(done.sorted(), ["[0@127.0.0.1] none", "[1@b] none"]);
}

#[test]
fn bad_input_is_found_before_anything_runs() {
    let hosts = Hosts::new();
    let here = hosts.file("file", "");
    let nul = hosts.file(
        "hosts.json",
        r#"{"hosts": [{"ssh": "a"}, {"ssh": "b", "env": {"K": "z\u0000y", "A=B": "x"}}]}"#,
    );
    for (words, parts) in [
        (vec!["--hosts", "a,b", "--log-dir", &here], &["--log-dir '"][..]),
        (
            vec!["--hostfile", &nul],
            &["variable \"K\": its value holds a NUL", "variable \"A=B\": a name holds"],
        ),
        (
            vec!["--hosts", "a:3", "-p", "65534"],
            &["--starting-port 65534: the ranks need 3 ports, and there are 2"],
        ),
        (vec!["--hosts", "a", "--env", "B"], &["of this host without --env"]),
    ] {
        let done = hosts.run(&[&words[..], &["--", "echo", "ran"]].concat()).ends(2);
        assert_eq!(done.says(parts).out, "", "{words:?}");
    }
    let words = ["--hosts", "a,b", "--ssh", "/nowhere/ssh", "--", "true"];
    run(&words).ends(2).says(&["cannot start '/nowhere/ssh'"]);
}

#[test]
fn a_guard_whose_first_process_is_killed_is_a_host_that_was_lost() {
    let hosts = Hosts::new();
    let job = hosts.start(&["--hosts", "a,b", "--", "sleep", "1000"]);
    job.wait_running("sleep", 2);
    kill_process(job.wait_process("comity", "NAMED=b", "guard"), Signal::KILL).unwrap();
    let done = job.finish().ends(1);
    holds(done.last(), &["host b was lost"]);
    lacks(&done.err, &["rank 1 (pid"]);
}
