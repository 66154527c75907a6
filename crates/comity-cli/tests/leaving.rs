//! Processes whose last calls differ, and that end without closing their group: the sentence is printed, and the job fails.
#![allow(missing_docs)]

use std::process::{self, Command};

const ROLE: &str = "LEAVING_TEST_ROLE";

/// A rank: it makes a call that no other rank waits for, and ends as `role` says.
fn act(role: &str) -> ! {
    let group = comity::init().unwrap();
    group.barrier().unwrap();
    let root = if role.ends_with("rightly") { 0 } else { group.rank() };
    group.broadcast(&mut [1f32; 8], root).unwrap();
    if role.starts_with("drop") {
        drop(group);
    } else {
        // As a language does that does not clean up when it ends.
        std::mem::forget(group);
    }
    process::exit(0)
}

fn job(role: &str) -> (Option<i32>, String) {
    let mut job = Command::new(env!("CARGO_BIN_EXE_comity"));
    job.args(["launch", "-n", "3", "--timeout", "60", "--"]).arg(std::env::current_exe().unwrap());
    let test = "a_last_call_that_differs_is_told_at_the_end";
    let out = job.args([test, "--exact", "--nocapture"]).env(ROLE, role).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_last_call_that_differs_is_told_at_the_end() {
    if let Ok(role) = std::env::var(ROLE) {
        act(&role);
    }
    for role in ["drop", "forget"] {
        let (code, said) = job(role);
        assert_ne!(code, Some(0), "{role}: {said}");
        assert!(said.contains("ranks disagree") && said.contains("broadcast #2"), "{role}: {said}");
        let (code, said) = job(&format!("{role} rightly"));
        assert_eq!(code, Some(0), "{role}: {said}");
        assert!(!said.contains("disagree"), "{role}: {said}");
    }
}
