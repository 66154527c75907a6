//! NCCL's faults, with a library that stands in for NCCL and the driver (`tools/softnccl`).
#![cfg(target_os = "linux")]

use softnccl as _;
use std::{
    env,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

/// The library: it lies beside this test, or one folder up.
fn library() -> PathBuf {
    let me = env::current_exe().unwrap();
    let folders = me.ancestors().skip(1).take(2);
    let mut found = folders.map(|f| f.join("libsoftnccl.so")).filter(|p| p.exists());
    found.next().expect("cargo builds libsoftnccl.so for this test")
}

struct Ended {
    code: Option<i32>,
    text: String,
    took: Duration,
}

/// all_reduce of f32 on `n` ranks, with these variables.
fn check(n: usize, vars: &[(&str, &str)]) -> Ended {
    check_type("f32", n, vars)
}

/// all_reduce of elements of a type on `n` ranks, with these variables.
fn check_type(dtype: &str, n: usize, vars: &[(&str, &str)]) -> Ended {
    let me = env!("CARGO_BIN_EXE_comity");
    let mut c = Command::new(me);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["COMITY_", "MLX_", "OMPI_", "PMI_", "SLURM_", "NCCL_", "CUDA_"]
            .iter()
            .any(|p| text.starts_with(p))
        {
            c.env_remove(&name);
        }
    }
    let limit = ["launch", "--timeout", "60", "-n", &n.to_string(), "--"].map(String::from);
    c.args(limit).arg(me).args([
        "check",
        "--quick",
        "--device",
        "cuda",
        "--ops",
        "all_reduce",
        "--dtypes",
        dtype,
    ]);
    c.env("COMITY_CUDA", library()).env("COMITY_NCCL", library()).envs(vars.iter().copied());
    let start = Instant::now();
    let out = c.output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    Ended {
        code: out.status.code(),
        text: String::from_utf8_lossy(&text).into_owned(),
        took: start.elapsed(),
    }
}

/// The lines in which rank `rank` says why it gave up.
fn words_of(ended: &Ended, rank: usize) -> Vec<&str> {
    let start = format!("[{rank}] comity check: ");
    ended.text.lines().filter_map(|l| l.strip_prefix(start.as_str())).collect()
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    for culprit in [0, 2] {
        for loss in ["silent", "error"] {
            let fault = format!("die@{culprit}:5");
            let ended = check(3, &[("SOFTNCCL_FAULT", fault.as_str()), ("SOFTNCCL_PEER_LOSS", loss)]);
            assert_eq!(ended.code, Some(137), "{}", ended.text);
            let survivors = (0..3).filter(|&r| r != culprit);
            let all: Vec<_> = survivors.flat_map(|r| words_of(&ended, r)).collect();
            // The launcher gives them a second, which on a crowded machine may be too short for one of them.
            assert!(!all.is_empty(), "{loss}: {}", ended.text);
            let blamed = format!("rank {culprit} (host ");
            assert!(all.iter().all(|words| words.starts_with(&blamed)), "{loss}: {}", ended.text);
            let killed = format!("comity launch: rank {culprit} ");
            assert!(ended.text.contains(&killed) && ended.text.contains("SIGKILL"), "{}", ended.text);
            assert!(ended.took < Duration::from_secs(45), "no rank waits for the limit: {:?}", ended.took);
        }
    }
}

#[test]
fn what_never_ends_ends_at_the_limit() {
    // The ranks have to meet within it first.
    let ended = check(2, &[("SOFTNCCL_FAULT", "init-hang@1"), ("COMITY_JOIN_TIMEOUT", "6")]);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    let all: Vec<_> = (0..2).flat_map(|r| words_of(&ended, r)).collect();
    let late =
        |words: &&str| words.contains("by NCCL (ncclCommInitRankConfig; ") && words.contains(" within 6s; ");
    assert!(all.iter().any(late) && !all.iter().any(|words| words.contains("split")), "{}", ended.text);
    assert!((6..50).contains(&ended.took.as_secs()), "{:?}", ended.took);
    let ended = check(2, &[("SOFTNCCL_FAULT", "stall@1:5"), ("COMITY_TIMEOUT", "2")]);
    assert!(ended.code == Some(1) && ended.text.contains("timed out after 2s on rank "), "{}", ended.text);
    assert!(ended.took < Duration::from_secs(45), "{:?}", ended.took);
}

#[test]
fn an_asynchronous_error_ends_the_group_on_all_ranks() {
    let ended = check(3, &[("SOFTNCCL_FAULT", "async@1:5")]);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("unhandled system error (code 2)"), "{}", ended.text);
    for words in [0, 2].into_iter().flat_map(|r| words_of(&ended, r)) {
        assert!(words.starts_with("rank 1 (host "), "{}", ended.text);
    }
}

#[test]
fn a_rank_whose_device_is_slow_makes_no_other_call() {
    // NCCL has no product of complex numbers: it goes through host memory, where the other rank waits for the copy.
    for at in [20, 21, 40] {
        let ended = check_type("c64", 2, &[("SOFTNCCL_FAULT", &format!("slow@1:{at}"))]);
        assert!(ended.code == Some(0) && ended.text.contains("all ok"), "{at}: {}", ended.text);
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
        let ended = check(2, vars);
        assert!(ended.code == Some(1) && ended.text.contains(words), "{vars:?}: {}", ended.text);
        assert!(ended.took < Duration::from_secs(45), "{vars:?}: {:?}", ended.took);
    }
}

#[test]
fn ranks_take_the_devices_that_they_are_given() {
    let me = env!("CARGO_BIN_EXE_comity");
    let script = format!(
        "CUDA_VISIBLE_DEVICES=$((COMITY_RANK + 2)) exec {me} check --quick --device cuda --ops broadcast --dtypes u8"
    );
    let mut c = Command::new(me);
    c.args(["launch", "--timeout", "60", "-n", "2", "--", "sh", "-c", &script]);
    let out = c.env("COMITY_CUDA", library()).env("COMITY_NCCL", library()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.trim_end().ends_with("all ok"), "{text}");
}
