//! `comity cluster config --auto-setup` and `undo` that are cut off, repeated, or cannot write; with a stand-in for ssh and for the agents
//! behind it. What its Macs say is written from the documented formats; not run on Apple hardware.

mod common;

use common::{Ended, comity, read_json, write_program};
use serde_json::json;
use std::{fs, process::Stdio};
use tempfile::TempDir;

const MACS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comity-cluster/macs");
const CONFIG: [&str; 7] =
    ["cluster", "config", "--hosts", "m0,m1", "--auto-setup", "--output", "cluster.json"];

/// Agents of two Macs. They note what they are to run in `ran`; once one has run something it says what is in `HOST.after`. With the file
/// `signal` the first command sends that signal to comity.
const SSH: &str = r#"while [ "$1" != -- ]; do shift; done
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
done"#;

/// A folder with those agents.
struct Macs(TempDir);

impl Macs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = SSH.replace("DIR", &dir.path().display().to_string());
        write_program(&dir.path().join("ssh"), &script);
        for (host, ip) in [("m0", "10.93.0.1"), ("m1", "10.93.0.2")] {
            let text = fs::read_to_string(format!("{MACS}/{host}.txt")).unwrap();
            let cable = "ether 36:00:00:00:00:00\n";
            let given = format!("{cable}\tinet {ip} netmask 0xfffffffc broadcast 10.93.0.3\n");
            for (name, text) in [("hello", text.clone()), ("after", text.replacen(cable, &given, 1))] {
                let hello = json!({ "protocol": 1, "version": env!("CARGO_PKG_VERSION"), "survey": text });
                fs::write(dir.path().join(format!("{host}.{name}")), format!("{hello}\n")).unwrap();
            }
        }
        Self(dir)
    }

    fn run(&self, words: &[&str]) -> Ended {
        let mut command = comity();
        command.args(words).arg("--ssh").arg(self.0.path().join("ssh"));
        Ended::of(command.current_dir(self.0.path()))
    }

    /// Commands that were run, as "HOST WORD WORD ...".
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join("ran")).unwrap_or_default();
        let line = |line: &str| {
            let (host, order) = line.split_once(' ').unwrap();
            let order = read_json(order);
            let words = order["run"]["words"].as_array().unwrap().iter();
            format!("{host} {}", words.map(|w| w.as_str().unwrap()).collect::<Vec<_>>().join(" "))
        };
        text.lines().map(line).collect()
    }

    fn has(&self, file: &str) -> bool {
        self.0.path().join(file).exists()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).unwrap();
    }
}

const FIRST: &str = "m0 ifconfig en2 inet 10.93.0.1 netmask 255.255.255.252 alias";
const BACK: &str = "m0 ifconfig en2 inet 10.93.0.1 -alias";

#[test]
fn a_signal_undoes_what_had_been_run() {
    for signal in ["INT", "TERM"] {
        let macs = Macs::new();
        macs.write("signal", signal);
        let told = macs.run(&CONFIG).ends(1);
        told.says(&["it was interrupted, and what had been run was undone"]);
        assert_eq!(macs.ran(), [FIRST, BACK], "{}", told.err);
        assert_eq!(["comity-undo.json", "cluster.json"].map(|f| macs.has(f)), [false; 2], "{}", told.err);
    }
}

#[test]
fn what_a_killed_setup_has_left_is_undone_by_its_file() {
    let macs = Macs::new();
    macs.write("signal", "KILL");
    macs.run(&CONFIG).ends(137);
    // First it is in the way, for m0 still has its address.
    macs.run(&CONFIG).ends(2).says(&["is still there on m0: undo it first"]);
    let told = macs.run(&["cluster", "undo", "comity-undo.json"]).ends(0);
    told.says(&["host m1: undone already: ifconfig en2 inet 10.93.0.2"]);
    assert_eq!(macs.ran(), [FIRST, BACK], "{}", told.err);
    assert!(!macs.has("comity-undo.json"));
}

#[test]
fn after_a_restart_the_same_command_sets_up_anew_and_undo_carries_on() {
    let macs = Macs::new();
    macs.run(&CONFIG).ends(0).says(&["4 commands were run"]);
    // All is there: nothing is run, and the file that undoes it stays.
    macs.run(&CONFIG).ends(0).says(&["no command was run"]);
    assert!(macs.ran().len() == 4 && macs.has("comity-undo.json"));
    let restart = |host: &str| {
        for name in ["hello", "after"] {
            let file = format!("{host}.{name}");
            let hello = fs::read_to_string(macs.0.path().join(&file)).unwrap();
            macs.write(&file, &hello.replace("BOOT-", "BOOT-AGAIN-"));
        }
        fs::remove_file(macs.0.path().join(format!("{host}.ran"))).unwrap();
    };
    restart("m0");
    let undo = ["cluster", "undo", "comity-undo.json", "--dry-run"];
    macs.run(&undo).ends(0).says(&["host m0 was started anew since"]);
    assert!(macs.has("comity-undo.json"));
    restart("m1");
    macs.run(&CONFIG).ends(0).says(&["has nothing to undo any more"]);
    assert_eq!(macs.ran().len(), 8);
    // One was restarted: the other is undone.
    restart("m0");
    macs.run(&undo[..3]).ends(0);
    assert!(!macs.has("comity-undo.json"));
    assert_eq!(macs.ran()[8..], ["m1 ifconfig en2 inet 10.93.0.2 -alias"]);
}

#[test]
fn a_drawing_is_written_beside_the_cables_for_graphviz() {
    let macs = Macs::new();
    macs.run(&["cluster", "config", "--hosts", "m0,m1", "--svg", "c.svg", "--dot"]).ends(0);
    assert!(macs.has("c.svg"));
}

#[test]
fn outputs_that_cannot_be_written_are_told_before_anything_is_run() {
    for flag in ["--output", "--svg", "--undo"] {
        let macs = Macs::new();
        let told = macs.run(&[&CONFIG[..5], &[flag, "/nonexist/x"]].concat()).ends(2);
        told.says(&[&format!("{flag} /nonexist/x: No such file")]);
        assert!(!macs.has("asked"), "no host is asked: {}", told.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_told() {
    let macs = Macs::new();
    let dir = macs.0.path();
    let ssh = format!("--ssh={}", dir.join("ssh").display());
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
            let _ = fs::remove_file(dir.join("job.key"));
            let mut child = comity();
            let child = child.args(words).current_dir(dir).stdout(to).stderr(Stdio::piped()).spawn();
            let done = child.unwrap().wait_with_output().unwrap();
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
