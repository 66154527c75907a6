//! `--bind-to`: where ranks may run, and what is refused.
#![cfg(target_os = "linux")]
use super::{harness::*, hosts::Hosts};

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
    assert!(complex.out.lines().all(|l| l.starts_with(&format!("{cores} "))), "{}", complex.text());
    // A launcher inside a bound rank has one core to give.
    let inner = "exec $COMITY launch -n 1 --tag-output=never --bind-to core -- $COMITY launch -n 2 --bind-to core -- true";
    let one = start_line(inner, "").finish().ends(2);
    one.says(&["--bind-to core", "2 ranks", "may use 1 core", "--bind-to complex or --bind-to off"]);
    if cores < 2 {
        return;
    }
    let bound = script(2, &["--tag-output=never", "--bind-to", "core"], SAY);
    if bound.code == 2 {
        // Two threads of one core are no two cores.
        bound.says(&["2 ranks", "1 core (2 threads)"]);
        return;
    }
    let lines: Vec<_> = bound.out.lines().collect();
    assert_eq!((bound.code, lines.len()), (0, 2), "{} {}", bound.out, bound.err);
    assert!(lines[0] != lines[1] && lines.iter().all(|l| l.starts_with(&format!("{cores} "))), "{lines:?}");
    // Ranks that see one core each still know that they need not take turns.
    let check = ["comity", "check", "--quick", "--ops", "all_reduce,barrier"];
    run(&[&["-n", "2", "--bind-to", "core", "--"], &check[..]].concat()).ends(0);
}

#[test]
fn each_host_binds_its_own_ranks() {
    let hosts = Hosts::new();
    let say = ["--bind-to", "core", "--tag-output=never", "--", "sh", "-c", SAY];
    let done = hosts.run(&[&["--hosts", "a,b"][..], &say].concat()).ends(0);
    // Both stand for this machine, so both begin with its first core.
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
    let done = hosts.run(&[&["--hosts", "a:1,b:2000"][..], &say].concat()).ends(2);
    assert_eq!(done.out, "");
    done.says(&["2000 ranks for this host", "b"]);
}
