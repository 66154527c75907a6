//! `comity cluster config`, `doctor` and `top` with a stand-in for ssh. What its Macs say is written from the documented formats; not run on
//! Apple hardware.

mod common;

use common::{COMITY, Ended, comity, holds, lacks, read_json, wait_for, write_program};
use std::{
    fs,
    process::{Command, Stdio},
};

const MACS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comity-cluster/macs");

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
