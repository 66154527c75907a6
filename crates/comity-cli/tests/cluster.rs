//! `comity cluster`, `doctor` and `top` with a stand-in for ssh, and `cluster config --auto-setup` and `undo` that are cut off, repeated, or
//! cannot write. What its Macs say is written from the documented formats; not run on Apple hardware.

mod common;

use common::{COMITY, Ended, comity, holds, lacks, read_json, wait_for, write_program};
use serde_json::json;
use std::{
    fs,
    process::{Command, Stdio},
};

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

/// A folder with a stand-in for ssh: hosts of which there is a record in `macs` say that; `gone` cannot be reached; any other is this machine,
/// of another name.
struct Place(tempfile::TempDir);

impl Place {
    fn new(macs: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let macs = macs.map_or_else(|| at.to_string(), str::to_owned);
        let script = format!(
            "echo \"$*\" >> {at}/asked\nwhile [ \"$1\" != -- ]; do shift; done\n\
             [ $2 != gone ] || {{ echo 'ssh: connect to host gone port 22: Connection timed out' >&2; exit 255; }}\n\
             [ ! -e {macs}/$2.txt ] || {{ cat {macs}/$2.txt; exec cat > /dev/null; }}\nexec sh -c \"$3\""
        );
        write_program(&dir.path().join("ssh"), &script);
        Self(dir)
    }

    fn run(&self, words: &[&str]) -> Ended {
        let mut command = comity();
        command.args(words).arg("--ssh").arg(self.0.path().join("ssh")).current_dir(self.0.path());
        Ended::of(command.env("XDG_RUNTIME_DIR", self.0.path()))
    }

    fn has(&self, file: &str) -> bool {
        self.0.path().join(file).exists()
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap()
    }

    /// A folder with agents of two Macs.
    fn agents() -> Self {
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

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).unwrap();
    }
}

#[test]
fn three_macs_of_which_one_is_behind_a_hub_get_a_hostfile_a_drawing_and_commands() {
    let place = Place::new(Some(MACS));
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--svg", "cables.svg"];
    let told = place.run(&words).ends(0);
    let file = read_json(&told.out);
    assert_eq!(file["backend"], "jaccl", "{}", told.out);
    assert_eq!(file["hosts"][1]["rdma"].to_string(), r#"["rdma_en2",null,"rdma_en3"]"#);
    told.says(&["3 of 3 cables have no addresses", "m2:\n  sudo ifconfig en2 inet 10.93.0.", "─ m1 "]);
    // No colours without a terminal.
    lacks(&told.err, &["\u{1b}"]);
    let svg = place.text("cables.svg");
    assert!(svg.starts_with("<svg") && svg.contains("m2"), "{svg}");
    let told = place.run(&[&words[..4], &["--over", "thunderbolt"]].concat()).ends(0);
    assert_eq!(read_json(&told.out)["backend"], "ring", "{}", told.err);
}

#[test]
fn a_host_that_is_gone_ends_it_or_is_left_out_and_nothing_is_half_done() {
    let place = Place::new(Some(MACS));
    let words = ["cluster", "config", "--hosts", "m0,gone,m1", "--output", "out.json"];
    place.run(&words).ends(1).says(&["host gone: it cannot be reached: is it up"]);
    assert!(!place.has("out.json"));
    let told = place.run(&[&words[..], &["--ignore-unreachable"]].concat()).ends(0);
    told.says(&["left out: host gone"]).shows(&["out.json: 2 hosts, a mesh", "comity doctor out.json"]);
    // Without comity there nobody can run the commands, with or without sudo.
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--auto-setup", "--output", "set.json"];
    place.run(&words).ends(1).says(&["host m2: comity is not installed there"]);
    assert_eq!(["comity-undo.json", "set.json"].map(|f| place.has(f)), [false; 2]);
}

#[test]
fn doctor_and_top_take_hosts_without_a_flag_and_reach_them_as_they_are_told() {
    let place = Place::new(Some(MACS));
    place.run(&["doctor", "gone,m0", "--ssh-arg=-q"]).ends(1).shows(&["gone", "is it up"]);
    let told = place.run(&["top", "gone,x", "--ssh-arg=-v", "--once"]).ends(1);
    told.says(&["host gone: it cannot be reached", "host x: comity top: no job runs here"]);
    place.run(&["stacks", "gone,x"]).says(&["host gone"]);
    holds(&place.text("asked"), &["-T -q -o", "-T -v -o"]);
}

#[test]
fn a_mac_that_does_not_tell_its_cables_is_not_given_slow_ones_unasked() {
    let place = Place::new(None);
    let text = fs::read_to_string(format!("{MACS}/m0.txt")).unwrap();
    let begin = text.find("@@ ports").unwrap();
    let end = text.find("@@ ifconfig").unwrap();
    let denied = "@@ ports\nnetworksetup: you must run this as an administrator\n@@! 14\n\n";
    fs::write(place.0.path().join("d0.txt"), [&text[..begin], denied, &text[end..]].concat()).unwrap();
    fs::copy(format!("{MACS}/m1.txt"), place.0.path().join("m1.txt")).unwrap();
    let words = ["cluster", "config", "--hosts", "d0,m1", "--output", "out.json"];
    let told = place.run(&words).ends(2);
    let wanted = "host d0: `networksetup` ended with code 14: networksetup: you must run this as an administrator, so its Thunderbolt cables";
    told.says(&[wanted, "let this user run it"]);
    lacks(&told.err, &["port 1 has no network interface"]);
    // Both lack comity: that is one note.
    assert_eq!(told.err.matches("comity is not installed there").count(), 1, "{}", told.err);
    assert!(!place.has("out.json"));
    place.run(&[&words[..], &["--over", "ethernet"]].concat()).ends(0).shows(&["2 hosts, one network"]);
}

#[test]
fn the_words_of_mlx_choose_what_carries_the_data() {
    let place = Place::new(Some(MACS));
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--verbose", "--backend"];
    for (backend, over) in
        [("ring", "auto"), ("jaccl", "thunderbolt"), ("jaccl-ring", "auto"), ("ring", "ethernet")]
    {
        let told = place.run(&[&words[..], &[backend, "--over", over]].concat()).ends(0);
        told.says(&["asking m0, m1, m2 over ssh"]);
        let file = read_json(&told.out);
        let devices = file["hosts"][0]["rdma"].as_array().unwrap().len();
        assert_eq!((file["backend"].as_str(), devices > 0), (Some(backend), backend != "ring"), "{file}");
    }
    let told = place.run(&[&words[..], &["ring", "--over", "rdma"]].concat()).ends(2);
    told.says(&["leave one of them out"]);
}

#[test]
fn an_agent_that_nobody_reads_ends_though_its_input_stays_open() {
    let mut agent = Command::new(COMITY)
        .arg("agent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(agent.stdout.take());
    let orders = agent.stdin.take();
    // Without orders it ends after 120 s.
    let ended = wait_for("the agent", || agent.try_wait().unwrap());
    drop(orders);
    assert_eq!(ended.code(), Some(1));
}

const FIRST: &str = "m0 ifconfig en2 inet 10.93.0.1 netmask 255.255.255.252 alias";
const BACK: &str = "m0 ifconfig en2 inet 10.93.0.1 -alias";

#[test]
fn a_signal_undoes_what_had_been_run() {
    for signal in ["INT", "TERM"] {
        let macs = Place::agents();
        macs.write("signal", signal);
        let told = macs.run(&CONFIG).ends(1);
        told.says(&["it was interrupted, and what had been run was undone"]);
        assert_eq!(macs.ran(), [FIRST, BACK], "{}", told.err);
        assert_eq!(["comity-undo.json", "cluster.json"].map(|f| macs.has(f)), [false; 2], "{}", told.err);
    }
}

#[test]
fn what_a_killed_setup_has_left_is_undone_by_its_file() {
    let macs = Place::agents();
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
    let macs = Place::agents();
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
    let macs = Place::agents();
    macs.run(&["cluster", "config", "--hosts", "m0,m1", "--svg", "c.svg", "--dot"]).ends(0);
    assert!(macs.has("c.svg"));
}

#[test]
fn outputs_that_cannot_be_written_are_told_before_anything_is_run() {
    for flag in ["--output", "--svg", "--undo"] {
        let macs = Place::agents();
        let told = macs.run(&[&CONFIG[..5], &[flag, "/nonexist/x"]].concat()).ends(2);
        told.says(&[&format!("{flag} /nonexist/x: No such file")]);
        assert!(!macs.has("asked"), "no host is asked: {}", told.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_told() {
    let macs = Place::agents();
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
