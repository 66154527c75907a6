//! `comity check --links`, and groups that choose their plans by what it measured.

mod common;

use comity::LinkCosts;
use common::{COMITY, Ended, comity, run_comity};
use std::{fs, process::Command};

fn launch(n: usize) -> Command {
    let mut c = comity();
    c.args(["launch", "--timeout", "60", "--tag-output=never", "-n", &n.to_string(), "--"]);
    c
}

#[track_caller]
fn all_ok(c: &mut Command) {
    let out = Ended::of(c).ends(0).out;
    assert!(out.trim_end().ends_with("all ok"), "{out}");
}

const CHECK: [&str; 6] =
    ["check", "--quick", "--dtypes", "f32", "--ops", "all_reduce,broadcast,all_gather,split,barrier"];

/// Four ranks, of which 0 and 3 are far from each other.
fn far_apart() -> String {
    let far = |a: usize, b: usize| (a, b) == (0, 3) || (a, b) == (3, 0);
    let rows = |slow: f64, usual: f64| {
        let cell = |a, b| if far(a, b) { slow } else { usual };
        (0..4).map(|a| (0..4).map(|b| cell(a, b)).collect()).collect::<Vec<Vec<f64>>>()
    };
    serde_json::json!({ "ranks": 4, "latency_s": rows(0.05, 1e-6), "bytes_per_s": rows(1e6, 1e10) })
        .to_string()
}

#[test]
fn every_pair_is_measured_and_told() {
    let out = Ended::of(launch(3).args([COMITY, "check", "--links", "--json"])).ends(0).out;
    let costs = LinkCosts::from_json(&out).unwrap();
    assert_eq!(costs.size(), 3);
    let told = Ended::of(launch(3).args([COMITY, "check", "--links"]).env("COMITY_LINKS", "tcp")).ends(0);
    told.shows(&["links tcp", "latency in us, from row to column", "bandwidth in GB/s"]);
    let out = told.out;
    assert!(out.starts_with("# comity"), "{out}");
    assert_eq!(out.lines().count(), 11, "{out}");
}

#[test]
#[cfg(target_os = "linux")]
fn long_messages_are_read_where_they_lie_unless_told_not_to() {
    let read = |op, size, pull: Option<&str>| {
        let mut bench = launch(2);
        bench.args([COMITY, "bench", op, "--sizes", size, "--budget", "0.02"]);
        let told = Ended::of(bench.envs(pull.map(|least| ("COMITY_PULL", least)))).ends(0);
        told.out.contains("where they lay in the memory of other ranks")
    };
    for (op, size) in [("pingpong", "1M"), ("all_gather", "64K"), ("all_to_all", "64K")] {
        // They are while that is quick: not in each job of a busy machine.
        assert!((0..5).any(|_| read(op, size, None)), "{op}");
        assert!(!read(op, size, Some("0")), "{op}");
    }
    assert!(read("all_reduce", "2M", Some("65536")));
}

#[test]
fn a_slow_pair_changes_the_plan_on_all_ranks_alike() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    fs::write(&file, far_apart()).unwrap();
    let plan = |more: &[&str]| {
        let words = ["plan", "all_reduce", "--ranks", "4", "--bytes", "1M"];
        let text = run_comity(&[&words[..], more].concat()).out;
        text.lines().find_map(|l| l.split_once(" *").map(|(name, _)| name.to_owned())).unwrap()
    };
    assert_eq!(
        (plan(&[]).as_str(), plan(&["--costs", file.to_str().unwrap()]).as_str()),
        ("two-phase", "halving-doubling")
    );
    // Ranks whose plans differed would be told so: the plan is part of what they compare in each call.
    all_ok(launch(4).arg(COMITY).args(CHECK).env("COMITY_COSTS", &file));
    // Rank 0's file holds.
    let script = format!("[ $COMITY_RANK = 0 ] || COMITY_COSTS=/nowhere; exec {COMITY} {}", CHECK.join(" "));
    all_ok(launch(4).args(["sh", "-c", &script]).env("COMITY_COSTS", &file));
}

#[test]
fn ranks_can_measure_when_they_have_met() {
    all_ok(launch(3).arg(COMITY).args(CHECK).env("COMITY_COSTS", "measure"));
}

#[test]
fn costs_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let at = file.to_str().unwrap();
    for (text, at, says) in [
        (far_apart(), at, &["COMITY_COSTS", "another job"][..]),
        ("{}".into(), at, &["COMITY_COSTS", "ranks"]),
        ("no".into(), at, &["COMITY_COSTS", "JSON"]),
        (String::new(), "/no/such/file", &["COMITY_COSTS=/no/such/file"]),
    ] {
        fs::write(&file, text).unwrap();
        Ended::of(launch(2).arg(COMITY).args(CHECK).env("COMITY_COSTS", at)).ends(2).says(says);
    }
}
