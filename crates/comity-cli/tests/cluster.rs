//! `comity cluster config`, `doctor` and `top` with a stand-in for ssh. What its Macs say is written from the documented formats; not run on
//! Apple hardware.
#![allow(missing_docs)]

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MACS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comity-cluster/macs");

/// Hosts of which there is a record say that; `gone` cannot be reached; any other is this machine, of another name.
fn stand_in(dir: &Path) -> PathBuf {
    let path = dir.join("ssh");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {0}/asked\nwhile [ \"$1\" != -- ]; do shift; done\n\
         [ $2 != gone ] || {{ echo 'ssh: connect to host gone port 22: Connection timed out' >&2; exit 255; }}\n\
         [ ! -e {MACS}/$2.txt ] || {{ cat {MACS}/$2.txt; exec cat > /dev/null; }}\nexec sh -c \"$3\"\n",
        dir.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn comity(dir: &Path, words: &[&str]) -> Output {
    let ssh = stand_in(dir);
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    command.args(words).arg("--ssh").arg(ssh).current_dir(dir).stdin(Stdio::null());
    command.env("XDG_RUNTIME_DIR", dir).env_remove("COMITY_KEY_FILE").output().unwrap()
}

fn told(done: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn three_macs_of_which_one_is_behind_a_hub_get_a_hostfile_a_drawing_and_commands() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--svg", "cables.svg"];
    let (code, out, err) = told(&comity(dir.path(), &words));
    assert_eq!(code, Some(0), "{err}");
    let file: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(file["backend"], "jaccl", "{out}");
    assert_eq!(file["hosts"][1]["rdma"].to_string(), r#"["rdma_en2",null,"rdma_en3"]"#);
    for part in ["3 of 3 cables have no addresses", "m2:\n  sudo ifconfig en2 inet 10.93.0.", "─ m1 "] {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert!(!err.contains('\u{1b}'), "no colours without a terminal: {err}");
    let svg = std::fs::read_to_string(dir.path().join("cables.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("m2"), "{svg}");
    let (code, out, err) = told(&comity(dir.path(), &[&words[..4], &["--over", "thunderbolt"]].concat()));
    let file: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, file["backend"].as_str()), (Some(0), Some("ring")), "{err}");
}

#[test]
fn a_host_that_is_gone_ends_it_or_is_left_out_and_nothing_is_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["cluster", "config", "--hosts", "m0,gone,m1", "--output", "out.json"];
    let (code, _, err) = told(&comity(dir.path(), &words));
    assert!(code == Some(1) && err.contains("host gone: it cannot be reached: is it up"), "{err}");
    assert!(!dir.path().join("out.json").exists());
    let (code, out, err) = told(&comity(dir.path(), &[&words[..], &["--ignore-unreachable"]].concat()));
    assert!(code == Some(0) && err.contains("left out: host gone"), "{err}");
    assert!(out.contains("out.json: 2 hosts, a mesh") && out.contains("comity doctor out.json"), "{out}");
    // Without comity there nobody can run the commands, with or without sudo.
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--auto-setup", "--output", "set.json"];
    let (code, _, err) = told(&comity(dir.path(), &words));
    assert!(code == Some(1) && err.contains("host m2: comity is not installed there"), "{err}");
    let left = ["comity-undo.json", "set.json"].map(|f| dir.path().join(f).exists());
    assert_eq!(left, [false; 2]);
}

#[test]
fn doctor_and_top_take_hosts_without_a_flag_and_reach_them_as_they_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = told(&comity(dir.path(), &["doctor", "gone,m0", "--ssh-arg=-q"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(out.contains("gone") && out.contains("is it up"), "{out}");
    let (code, _, err) = told(&comity(dir.path(), &["top", "gone,x", "--ssh-arg=-v", "--once"]));
    assert!(code == Some(1) && err.contains("host gone: it cannot be reached"), "{err}");
    assert!(err.contains("host x: comity top: no job runs here"), "{err}");
    let (_, _, err) = told(&comity(dir.path(), &["stacks", "gone,x"]));
    assert!(err.contains("host gone"), "{err}");
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    assert!(asked.contains("-T -q -o") && asked.contains("-T -v -o"), "{asked}");
}

#[test]
fn a_mac_that_does_not_tell_its_cables_is_not_given_slow_ones_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{MACS}/m0.txt")).unwrap();
    let begin = text.find("@@ ports").unwrap();
    let end = text.find("@@ ifconfig").unwrap();
    let denied = "@@ ports\nnetworksetup: you must run this as an administrator\n@@! 14\n\n";
    let text = format!("{}{denied}{}", &text[..begin], &text[end..]);
    let ssh = stand_in(dir.path());
    std::fs::write(dir.path().join("d0.txt"), text).unwrap();
    // It looks there first.
    let script = std::fs::read_to_string(&ssh).unwrap().replace(MACS, &dir.path().display().to_string());
    std::fs::write(&ssh, script).unwrap();
    std::fs::copy(format!("{MACS}/m1.txt"), dir.path().join("m1.txt")).unwrap();
    let ask = |over: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(["cluster", "config", "--hosts", "d0,m1", "--output", "out.json"]).args(over);
        told(&command.arg("--ssh").arg(&ssh).current_dir(dir.path()).output().unwrap())
    };
    let (code, _, err) = ask(&[]);
    assert_eq!(code, Some(2), "{err}");
    let wanted = "host d0: `networksetup` ended with code 14: networksetup: you must run this as an administrator, so its Thunderbolt cables";
    assert!(err.contains(wanted) && err.contains("let this user run it"), "{err}");
    assert!(!err.contains("port 1 has no network interface"), "{err}");
    // Both lack comity: that is one note.
    assert_eq!(err.matches("comity is not installed there").count(), 1, "{err}");
    assert!(!dir.path().join("out.json").exists());
    let (code, out, err) = ask(&["--over", "ethernet"]);
    assert!(code == Some(0) && out.contains("2 hosts, one network"), "{out} {err}");
}

#[test]
fn the_words_of_mlx_choose_what_carries_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["cluster", "config", "--hosts", "m0,m1,m2", "--verbose", "--backend"];
    let ask = |more: &[&str]| told(&comity(dir.path(), &[&words[..], more].concat()));
    for (backend, over) in
        [("ring", "auto"), ("jaccl", "thunderbolt"), ("jaccl-ring", "auto"), ("ring", "ethernet")]
    {
        let (code, out, err) = ask(&[backend, "--over", over]);
        assert!(code == Some(0) && err.contains("asking m0, m1, m2 over ssh"), "{err}");
        let file: Value = serde_json::from_str(&out).unwrap();
        let devices = file["hosts"][0]["rdma"].as_array().unwrap().len();
        assert_eq!((file["backend"].as_str(), devices > 0), (Some(backend), backend != "ring"), "{out}");
    }
    let (code, _, err) = ask(&["ring", "--over", "rdma"]);
    assert!(code == Some(2) && err.contains("leave one of them out"), "{err}");
}

#[test]
fn an_agent_that_nobody_reads_ends_though_its_input_stays_open() {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_comity"))
        .arg("agent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(agent.stdout.take());
    let orders = agent.stdin.take();
    // Without orders it ends after 120 s.
    let until = Instant::now() + Duration::from_secs(60);
    let ended = loop {
        match agent.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            ended => break ended,
        }
    };
    drop(orders);
    let _ = agent.kill();
    agent.wait().unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
}
