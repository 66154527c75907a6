//! `comity check --links`, and groups that choose their plans by what it measured.

use comity::LinkCosts;
use std::{env, fs, process::Command};

/// `comity launch`, without the variables that this test runs under.
fn launch(n: usize) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_comity"));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["COMITY_", "MLX_", "OMPI_", "PMI_", "SLURM_"].iter().any(|p| text.starts_with(p)) {
            c.env_remove(&name);
        }
    }
    c.args(["launch", "--timeout", "60", "--tag-output=never", "-n", &n.to_string(), "--"]);
    c
}

/// Exit code, output, errors.
fn run(c: &mut Command) -> (Option<i32>, String, String) {
    let out = c.output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

const ME: &str = env!("CARGO_BIN_EXE_comity");
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
    let (code, out, errors) = run(launch(3).args([ME, "check", "--links", "--json"]));
    assert_eq!(code, Some(0), "{errors}");
    let costs = LinkCosts::from_json(&out).unwrap();
    assert_eq!(costs.size(), 3);
    let (code, out, errors) = run(launch(3).args([ME, "check", "--links"]).env("COMITY_LINKS", "tcp"));
    assert_eq!(code, Some(0), "{errors}");
    assert!(out.starts_with("# comity") && out.contains("links tcp"), "{out}");
    assert!(out.contains("latency in us, from row to column") && out.contains("bandwidth in GB/s"), "{out}");
    assert_eq!(out.lines().count(), 11, "{out}");
}

#[test]
#[cfg(target_os = "linux")]
fn long_messages_are_read_where_they_lie_unless_told_not_to() {
    let read = |op, size, pull: Option<&str>| {
        let mut bench = launch(2);
        bench.args([ME, "bench", op, "--sizes", size, "--budget", "0.02"]);
        let (code, out, errors) = run(bench.envs(pull.map(|least| ("COMITY_PULL", least))));
        assert_eq!(code, Some(0), "{out}{errors}");
        out.contains("where they lay in the memory of other ranks")
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
        let out = Command::new(ME)
            .args(["plan", "all_reduce", "--ranks", "4", "--bytes", "1M"])
            .args(more)
            .output();
        let text = String::from_utf8(out.unwrap().stdout).unwrap();
        text.lines().find_map(|l| l.split_once(" *").map(|(name, _)| name.to_owned())).unwrap()
    };
    assert_eq!(
        (plan(&[]).as_str(), plan(&["--costs", file.to_str().unwrap()]).as_str()),
        ("two-phase", "halving-doubling")
    );
    // Ranks whose plans differed would be told so: the plan is part of what they compare in each call.
    let (code, out, errors) = run(launch(4).arg(ME).args(CHECK).env("COMITY_COSTS", &file));
    assert!(code == Some(0) && out.trim_end().ends_with("all ok"), "{out}{errors}");
    // Rank 0's file holds.
    let script = format!("[ $COMITY_RANK = 0 ] || COMITY_COSTS=/nowhere; exec {ME} {}", CHECK.join(" "));
    let (code, out, errors) = run(launch(4).args(["sh", "-c", &script]).env("COMITY_COSTS", &file));
    assert!(code == Some(0) && out.trim_end().ends_with("all ok"), "{out}{errors}");
}

#[test]
fn ranks_can_measure_when_they_have_met() {
    let (code, out, errors) = run(launch(3).arg(ME).args(CHECK).env("COMITY_COSTS", "measure"));
    assert!(code == Some(0) && out.trim_end().ends_with("all ok"), "{out}{errors}");
}

#[test]
fn costs_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    for (text, why) in [(far_apart(), "another job"), ("{}".into(), "ranks"), ("no".into(), "JSON")] {
        fs::write(&file, text).unwrap();
        let (code, _, errors) = run(launch(2).arg(ME).args(CHECK).env("COMITY_COSTS", &file));
        assert!(
            code == Some(2) && errors.contains("COMITY_COSTS") && errors.contains(why),
            "{code:?} {errors}"
        );
    }
    let (code, _, errors) = run(launch(2).arg(ME).args(CHECK).env("COMITY_COSTS", "/no/such/file"));
    assert!(code == Some(2) && errors.contains("COMITY_COSTS=/no/such/file"), "{code:?} {errors}");
}
