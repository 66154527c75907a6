//! `--bind-to`: where ranks may run, and what is refused.
#![cfg(target_os = "linux")]
use super::{harness::*, hosts::fleet};

/// The processors that this test may use, in the system's words.
fn own() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().to_owned()
}

/// Script that prints the number of the host's cores, as the launcher gives it to each rank, and the processors that it may use.
const SAY: &str =
    "echo $COMITY_HOST_CORES $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)";

#[test]
fn ranks_get_cores_of_their_own_or_all_as_before() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let off = script(2, &["--tag-output=never"], SAY);
    assert_eq!(off.out, format!("{0}\n{0}\n", own()));
    let complex = script(2, &["--tag-output=never", "--bind-to", "complex"], SAY);
    assert!(
        complex.out.lines().all(|l| l.starts_with(&format!("{cores} "))),
        "{} {}",
        complex.out,
        complex.err
    );
    // A launcher inside a bound rank has one core to give.
    let inner = "exec $COMITY launch -n 1 --tag-output=never --bind-to core -- $COMITY launch -n 2 --bind-to core -- true";
    let one = start_line(inner, "").finish();
    assert_eq!(one.code, 2, "{} {}", one.out, one.err);
    one.says(&["--bind-to core", "2 ranks", "may use 1 core", "--bind-to complex or --bind-to off"]);
    if cores < 2 {
        return;
    }
    let bound = script(2, &["--tag-output=never", "--bind-to", "core"], SAY);
    if bound.code == 2 {
        // Two threads of one core are no two cores.
        assert!(bound.err.contains("2 ranks") && bound.err.contains("1 core (2 threads)"), "{}", bound.err);
        return;
    }
    let lines: Vec<_> = bound.out.lines().collect();
    assert_eq!((bound.code, lines.len()), (0, 2), "{} {}", bound.out, bound.err);
    assert!(lines[0] != lines[1] && lines.iter().all(|l| l.starts_with(&format!("{cores} "))), "{lines:?}");
    // Ranks that see one core each still know that they need not take turns.
    let check = run(&[
        "-n",
        "2",
        "--bind-to",
        "core",
        "--",
        "comity",
        "check",
        "--quick",
        "--ops",
        "all_reduce,barrier",
    ]);
    assert_eq!(check.code, 0, "{} {}", check.out, check.err);
}

#[test]
fn other_words_and_mpi_s_launcher_are_refused() {
    for (flags, why) in [
        (&["--bind-to", "socket"][..], "--bind-to"),
        (&["--bind-to", "core", "--backend", "mpi"], "is not for --backend mpi"),
        (&["-n", "4096", "--bind-to", "core"], "4096 ranks"),
    ] {
        let done = run(&[flags, &["--", "true"]].concat()).ends(2);
        assert!(done.err.contains(why), "{why}: {}", done.err);
    }
}

#[test]
fn each_host_binds_its_own_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let say = ["--bind-to", "core", "--tag-output=never", "--", "sh", "-c", SAY];
    let done = fleet(dir.path(), &[&["--hosts", "a,b"][..], &say].concat()).ends(0);
    // Both stand for this machine, so both begin with its first core.
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
    let done = fleet(dir.path(), &[&["--hosts", "a:1,b:2000"][..], &say].concat());
    assert_eq!((done.code, done.out.as_str()), (2, ""), "{}", done.err);
    assert!(done.err.contains("2000 ranks for this host") && done.err.contains("b"), "{}", done.err);
}
