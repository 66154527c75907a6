//! The gates on texts that must pass and texts that must not.

use super::*;

const INSIDE: &str = "crates/comity/src/sys/x.rs";
const OUTSIDE: &str = "crates/comity/src/group/x.rs";

#[test]
fn unsafe_code_has_its_places() {
    let block = "// SAFETY: it is.\nunsafe { f() };\n";
    assert!(misplaced_unsafe(INSIDE, block).is_empty());
    let found = misplaced_unsafe(OUTSIDE, block);
    assert!(
        found.len() == 1 && found[0].starts_with("crates/comity/src/group/x.rs:2: unsafe code outside"),
        "{found:?}"
    );
    let words = "// unsafe\nlet s = \"unsafe\";\n#![deny(unsafe_op_in_unsafe_fn)]\n";
    assert!(misplaced_unsafe(OUTSIDE, words).is_empty());
    assert!(within("crates/comity/src/link/shm.rs", "crates/comity/src/link/shm.rs"));
    assert!(!within("crates/comity/src/link/shm.rs.x", "crates/comity/src/link/shm.rs"));
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    for good in [
        "// SAFETY: a\n// b\nunsafe { f() };",
        "let x = 1;\n// SAFETY: a\nlet y =\n    unsafe { f() };",
        "unsafe { f() } // SAFETY: a",
        "/// Does.\n///\n/// # Safety\n/// The caller must.\n#[inline]\npub unsafe fn f() {}",
    ] {
        assert!(misplaced_unsafe(INSIDE, good).is_empty(), "{good}");
    }
    for bad in [
        "unsafe { f() };",
        "// SAFETY: a\nf();\nunsafe { g() };",
        "// SAFETY: a\n\nunsafe { g() };",
        "let s = \"SAFETY:\";\nunsafe { g() };",
        "// why not\nunsafe impl Send for X {}",
    ] {
        assert_eq!(misplaced_unsafe(INSIDE, bad).len(), 1, "{bad}");
    }
}

#[test]
fn waits_have_their_places() {
    for bad in [
        "poll(&mut fds, None)",
        "thread::park();",
        "self.done.wait(out)",
        "c.wait_timeout(g, t)",
        "hint::spin_loop()",
    ] {
        assert_eq!(misplaced_waits(OUTSIDE, bad).len(), 1, "{bad}");
        assert_eq!(misplaced_waits("crates/comity-py/src/x.rs", bad).len(), 1, "{bad}");
    }
    for bad in [
        "#[cfg(test)]\nmod tests;\nfn f() { x.wait() }",
        "#[cfg(all(test, loom))]\nmod t {\n    x();\n}\nx.wait()",
    ] {
        assert_eq!(misplaced_waits(OUTSIDE, bad).len(), 1, "{bad}");
    }
    // Where waits may stand they must have an end.
    let engine = "crates/comity/src/engine/run.rs";
    assert!(misplaced_waits(engine, "x.wait(); watch.failure()").is_empty());
    assert!(misplaced_waits(engine, "x.wait(); // failure").len() == 1);
    for good in [
        "fn wait(&self)",
        "// then wait(x)",
        "self.poll_all()",
        "#[cfg(test)]\nmod tests { fn f() { x.wait() } }",
        "#[cfg(test)]\n#[cfg(unix)]\nmod tests {\n    fn f() {\n        x.wait()\n    }\n}",
        "    #[cfg(test)]\n    fn f() {\n        x.wait()\n    }",
    ] {
        assert!(misplaced_waits(OUTSIDE, good).is_empty(), "{good}");
    }
    assert!(misplaced_waits("crates/comity/src/boot/tests.rs", "x.wait()").is_empty());
    assert!(misplaced_waits("crates/comity-cli/src/lib.rs", "x.wait()").is_empty());
}

#[test]
fn files_stay_short() {
    assert!(too_long("a.rs", &"x\n".repeat(700)).is_none());
    assert!(too_long("a.rs", &"x\n".repeat(701)).unwrap().starts_with("a.rs: 701 lines"));
}
