//! NCCL's faults, with a library that stands in for NCCL and the driver (`tools/softnccl`).
#![cfg(target_os = "linux")]

mod common;

use common::{COMITY, Ended, comity};
use softnccl as _;
use std::{env, path::PathBuf, time::Duration};

/// The library: it lies beside this test, or one folder up.
fn library() -> PathBuf {
    let me = env::current_exe().unwrap();
    let folders = me.ancestors().skip(1).take(2);
    let mut found = folders.map(|f| f.join("libsoftnccl.so")).filter(|p| p.exists());
    found.next().expect("cargo builds libsoftnccl.so for this test")
}

/// all_reduce of f32 on `n` ranks, with these variables.
fn check(n: usize, vars: &[(&str, &str)]) -> Ended {
    check_type("f32", n, vars)
}

/// all_reduce of elements of a type on `n` ranks, with these variables.
fn check_type(dtype: &str, n: usize, vars: &[(&str, &str)]) -> Ended {
    let flags = ["check", "--quick", "--device", "cuda", "--ops", "all_reduce", "--dtypes", dtype];
    launch(n, &[&[COMITY], &flags[..]].concat(), vars)
}

/// These words as each of `n` ranks, with these variables.
fn launch(n: usize, words: &[&str], vars: &[(&str, &str)]) -> Ended {
    let mut c = comity();
    c.args(["launch", "--timeout", "60", "-n", &n.to_string(), "--"]).args(words);
    c.env("COMITY_CUDA", library()).env("COMITY_NCCL", library());
    Ended::of(c.envs(vars.iter().copied()))
}

/// The lines in which rank `rank` says why it gave up.
fn words_of(ended: &Ended, rank: usize) -> Vec<&str> {
    let start = format!("[{rank}] comity check: ");
    ended.err.lines().filter_map(|l| l.strip_prefix(start.as_str())).collect()
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    for culprit in [0, 2] {
        for loss in ["silent", "error"] {
            let fault = format!("die@{culprit}:5");
            let ended =
                check(3, &[("SOFTNCCL_FAULT", fault.as_str()), ("SOFTNCCL_PEER_LOSS", loss)]).ends(137);
            let survivors = (0..3).filter(|&r| r != culprit);
            let all: Vec<_> = survivors.flat_map(|r| words_of(&ended, r)).collect();
            // The launcher gives them a second, which on a crowded machine may be too short for one of them.
            assert!(!all.is_empty(), "{loss}: {}", ended.err);
            let blamed = format!("rank {culprit} (host ");
            assert!(all.iter().all(|words| words.starts_with(&blamed)), "{loss}: {}", ended.err);
            ended.says(&[&format!("comity launch: rank {culprit} "), "SIGKILL"]);
            assert!(ended.took < Duration::from_secs(45), "no rank waits for the limit: {:?}", ended.took);
        }
    }
}

#[test]
fn what_never_ends_ends_at_the_limit() {
    // The ranks have to meet within it first.
    let ended = check(2, &[("SOFTNCCL_FAULT", "init-hang@1"), ("COMITY_JOIN_TIMEOUT", "6")]).ends(1);
    let all: Vec<_> = (0..2).flat_map(|r| words_of(&ended, r)).collect();
    let late =
        |words: &&str| words.contains("by NCCL (ncclCommInitRankConfig; ") && words.contains(" within 6s; ");
    assert!(all.iter().any(late) && !all.iter().any(|words| words.contains("split")), "{}", ended.err);
    assert!((6..50).contains(&ended.took.as_secs()), "{:?}", ended.took);
    let ended = check(2, &[("SOFTNCCL_FAULT", "stall@1:5"), ("COMITY_TIMEOUT", "2")]).ends(1);
    ended.says(&["timed out after 2s on rank "]);
    assert!(ended.took < Duration::from_secs(45), "{:?}", ended.took);
}

#[test]
fn an_asynchronous_error_ends_the_group_on_all_ranks() {
    let ended = check(3, &[("SOFTNCCL_FAULT", "async@1:5")]).ends(1);
    ended.says(&["unhandled system error (code 2)"]);
    for words in [0, 2].into_iter().flat_map(|r| words_of(&ended, r)) {
        assert!(words.starts_with("rank 1 (host "), "{}", ended.err);
    }
}

#[test]
fn a_rank_whose_device_is_slow_makes_no_other_call() {
    // NCCL has no product of complex numbers: it goes through host memory, where the other rank waits for the copy.
    for at in [20, 21, 40] {
        check_type("c64", 2, &[("SOFTNCCL_FAULT", &format!("slow@1:{at}"))]).ends(0).shows(&["all ok"]);
    }
}

#[test]
fn a_rank_that_cannot_begin_says_why() {
    for (vars, words) in [
        (&[("SOFTNCCL_FAULT", "init-error@1")][..], "NCCL: ncclCommInitRankConfig: internal error (code 3)"),
        (&[("SOFTNCCL_VERSION", "21701")], "is NCCL 2.17.1; NCCL 2.18 or newer is needed"),
        (
            &[("COMITY_NCCL", "libm.so.6")],
            "libm.so.6 has no function ncclGetVersion; NCCL 2.18 or newer is needed",
        ),
        (
            &[("COMITY_NCCL", "/no/such/libnccl.so")],
            "no NCCL library could be loaded: tried /no/such/libnccl.so (",
        ),
        (&[("COMITY_CUDA", "libm.so.6")], "the driver has no function cuInit; CUDA 11.2 or newer is needed"),
        (&[("SOFTCUDA_DEVICES", "0")], "there is no device; CUDA_VISIBLE_DEVICES may hide it"),
        (&[("SOFTCUDA_DEVICES", "1")], "ranks 0 and 1 would share a device"),
        (&[("CUDA_VISIBLE_DEVICES", "3")], "ranks 0 and 1 would share a device"),
    ] {
        let ended = check(2, vars).ends(1);
        ended.says(&[words]);
        assert!(ended.took < Duration::from_secs(45), "{vars:?}: {:?}", ended.took);
    }
}

#[test]
fn ranks_take_the_devices_that_they_are_given() {
    let flags = "check --quick --device cuda --ops broadcast --dtypes u8";
    let script = format!("CUDA_VISIBLE_DEVICES=$((COMITY_RANK + 2)) exec {COMITY} {flags}");
    let text = launch(2, &["sh", "-c", &script], &[]).ends(0).out;
    assert!(text.trim_end().ends_with("all ok"), "{text}");
}
