//! Processes whose last calls differ, and that end without closing their group: the sentence is printed, and the job fails.

mod common;

use common::{Ended, lacks, launch, this_test};

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
    std::process::exit(0)
}

const TEST: &str = "a_last_call_that_differs_is_told_at_the_end";

fn job(role: &str) -> Ended {
    Ended::of(launch(&["-n", "3", "--timeout", "60"], &this_test(TEST)).env(ROLE, role))
}

#[test]
fn a_last_call_that_differs_is_told_at_the_end() {
    if let Ok(role) = std::env::var(ROLE) {
        act(&role);
    }
    for role in ["drop", "forget"] {
        let told = job(role);
        assert_ne!(told.code, 0, "{role}: {}", told.err);
        told.says(&["ranks disagree", "broadcast #2"]);
        lacks(&job(&format!("{role} rightly")).ends(0).err, &["disagree"]);
    }
}
