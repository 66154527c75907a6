//! `comity cluster config --auto-setup` and `undo` that are cut off, repeated, or cannot write; with a stand-in for ssh and for the agents
//! behind it. What its Macs say is written from the documented formats; not run on Apple hardware.
#![allow(missing_docs)]

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const MACS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comity-cluster/macs");
const CONFIG: [&str; 7] =
    ["cluster", "config", "--hosts", "m0,m1", "--auto-setup", "--output", "cluster.json"];

/// Agents of two Macs. They note what they are to run in `ran`; once one has run something it says what is in `HOST.after`. With the file
/// `signal` the first command sends that signal to comity.
const SSH: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
cd DIR
touch asked
say=$2.hello
[ ! -e $2.ran ] || say=$2.after
echo 'comity agent 1'
cat $say
while read -r line; do
    case $line in
    *'"run"'*)
        echo "$2 $line" >> ran
        touch $2.ran
        [ ! -e signal ] || { kill -$(cat signal) $PPID; rm signal; sleep 0.2; }
        echo '{"is_ok":true,"said":""}' ;;
    *'"beacon"'*) echo '{"heard":[],"late":false}' ;;
    *) echo '{"error":"not today"}' ;;
    esac
done
"#;

fn two_macs() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, SSH.replace("DIR", &dir.path().display().to_string())).unwrap();
    fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    for (host, ip) in [("m0", "10.93.0.1"), ("m1", "10.93.0.2")] {
        let text = fs::read_to_string(format!("{MACS}/{host}.txt")).unwrap();
        let cable = "ether 36:00:00:00:00:00\n";
        let given = format!("{cable}\tinet {ip} netmask 0xfffffffc broadcast 10.93.0.3\n");
        for (name, text) in [("hello", text.clone()), ("after", text.replacen(cable, &given, 1))] {
            let hello = json!({ "protocol": 1, "version": env!("CARGO_PKG_VERSION"), "survey": text });
            fs::write(dir.path().join(format!("{host}.{name}")), format!("{hello}\n")).unwrap();
        }
    }
    dir
}

fn comity(dir: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    command.args(words).arg("--ssh").arg(dir.join("ssh")).current_dir(dir).stdin(Stdio::null());
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Commands that were run, as "HOST WORD WORD ...".
fn ran(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("ran")).unwrap_or_default();
    let line = |line: &str| {
        let (host, order) = line.split_once(' ').unwrap();
        let order: Value = serde_json::from_str(order).unwrap();
        let words = order["run"]["words"].as_array().unwrap().iter();
        format!("{host} {}", words.map(|w| w.as_str().unwrap()).collect::<Vec<_>>().join(" "))
    };
    text.lines().map(line).collect()
}

fn is_there(dir: &Path, file: &str) -> bool {
    dir.join(file).exists()
}

const FIRST: &str = "m0 ifconfig en2 inet 10.93.0.1 netmask 255.255.255.252 alias";
const BACK: &str = "m0 ifconfig en2 inet 10.93.0.1 -alias";

#[test]
fn a_signal_undoes_what_had_been_run() {
    for signal in ["INT", "TERM"] {
        let dir = two_macs();
        fs::write(dir.path().join("signal"), signal).unwrap();
        let (code, err) = comity(dir.path(), &CONFIG);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("it was interrupted, and what had been run was undone"), "{err}");
        assert_eq!(ran(dir.path()), [FIRST, BACK], "{err}");
        assert!(!is_there(dir.path(), "comity-undo.json") && !is_there(dir.path(), "cluster.json"), "{err}");
    }
}

#[test]
fn what_a_killed_setup_has_left_is_undone_by_its_file() {
    let dir = two_macs();
    fs::write(dir.path().join("signal"), "KILL").unwrap();
    assert_eq!(comity(dir.path(), &CONFIG).0, None);
    let undo = ["cluster", "undo", "comity-undo.json"];
    // First it is in the way, for m0 still has its address.
    let (code, err) = comity(dir.path(), &CONFIG);
    assert!(code == Some(2) && err.contains("is still there on m0: undo it first"), "{err}");
    let (code, err) = comity(dir.path(), &undo);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("host m1: undone already: ifconfig en2 inet 10.93.0.2"), "{err}");
    assert_eq!(ran(dir.path()), [FIRST, BACK], "{err}");
    assert!(!is_there(dir.path(), "comity-undo.json"));
}

#[test]
fn after_a_restart_the_same_command_sets_up_anew_and_undo_carries_on() {
    let dir = two_macs();
    let (code, err) = comity(dir.path(), &CONFIG);
    assert!(code == Some(0) && err.contains("4 commands were run"), "{err}");
    // All is there: nothing is run, and the file that undoes it stays.
    let (code, err) = comity(dir.path(), &CONFIG);
    assert!(code == Some(0) && err.contains("no command was run"), "{err}");
    assert!(ran(dir.path()).len() == 4 && is_there(dir.path(), "comity-undo.json"));
    let restart = |host: &str| {
        for name in ["hello", "after"] {
            let path = dir.path().join(format!("{host}.{name}"));
            let hello = fs::read_to_string(&path).unwrap();
            fs::write(&path, hello.replace("BOOT-", "BOOT-AGAIN-")).unwrap();
        }
        fs::remove_file(dir.path().join(format!("{host}.ran"))).unwrap();
    };
    restart("m0");
    let undo = ["cluster", "undo", "comity-undo.json", "--dry-run"];
    let (code, err) = comity(dir.path(), &undo);
    assert!(code == Some(0) && err.contains("host m0 was started anew since"), "{err}");
    assert!(is_there(dir.path(), "comity-undo.json"));
    restart("m1");
    let (code, err) = comity(dir.path(), &CONFIG);
    assert!(code == Some(0) && err.contains("has nothing to undo any more"), "{err}");
    assert_eq!(ran(dir.path()).len(), 8, "{err}");
    // One was restarted: the other is undone.
    restart("m0");
    let (code, err) = comity(dir.path(), &undo[..3]);
    assert!(code == Some(0) && !is_there(dir.path(), "comity-undo.json"), "{err}");
    assert_eq!(ran(dir.path())[8..], ["m1 ifconfig en2 inet 10.93.0.2 -alias"], "{err}");
}

#[test]
fn a_drawing_is_written_beside_the_cables_for_graphviz() {
    let dir = two_macs();
    let (code, err) =
        comity(dir.path(), &["cluster", "config", "--hosts", "m0,m1", "--svg", "c.svg", "--dot"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(is_there(dir.path(), "c.svg"));
}

#[test]
fn outputs_that_cannot_be_written_are_told_before_anything_is_run() {
    for flag in ["--output", "--svg", "--undo"] {
        let dir = two_macs();
        let words = [&CONFIG[..5], &[flag, "/nonexist/x"]].concat();
        let (code, err) = comity(dir.path(), &words);
        assert!(code == Some(2) && err.contains(&format!("{flag} /nonexist/x: No such file")), "{err}");
        assert!(!is_there(dir.path(), "asked"), "no host is asked: {err}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_told() {
    let dir = two_macs();
    let ssh = format!("--ssh={}", dir.path().join("ssh").display());
    let hosts = ["--hosts", "m0,m1", &ssh];
    let commands: [&[&str]; 12] = [
        &["plan", "all_reduce"],
        &["plan", "all_reduce", "--svg"],
        &["info"],
        &["info", "--settings", "--json"],
        &["completions", "bash"],
        &["--help"],
        &["bench", "all_reduce", "--sizes", "64", "--budget", "0.01"],
        &["check", "--ops", "barrier"],
        &["check", "--links"],
        &["key", "new", "job.key"],
        &[&["cluster", "config"][..], &hosts].concat(),
        &[&["cluster", "find", "--json"][..], &hosts].concat(),
    ];
    for words in commands {
        let ended = |to: Stdio| {
            let _ = fs::remove_file(dir.path().join("job.key"));
            let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
            command.args(words).current_dir(dir.path()).stdin(Stdio::null()).stdout(to);
            let done = command.stderr(Stdio::piped()).output().unwrap();
            (done.status.code(), String::from_utf8(done.stderr).unwrap())
        };
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, err) = ended(full.into());
        let told = err.lines().filter(|l| l.contains("standard output cannot be written")).count();
        assert_eq!((code, told), (Some(1), 1), "{words:?}: {err}");
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let (code, err) = ended(write.into());
        assert!(code == Some(0) && !err.contains("standard output"), "{words:?}: {err}");
    }
}
