//! The gates on texts that must pass and texts that must not.

use super::*;

const OUTSIDE: &str = "crates/comity/src/group/x.rs";

#[test]
fn waits_are_explained() {
    for bad in [
        "poll(&mut fds, None)",
        "thread::park();",
        "self.done.wait(out)",
        "c.wait_timeout(g, t)",
        "hint::spin_loop()",
        "poll_until(&mut fds, None)",
        "(self.wait)(fd, until)",
        "let _ = thread.join();",
        "let job = jobs.recv()?;",
        "c.wait_timeout_while(g, t, |x| x.is_none())",
    ] {
        for place in [OUTSIDE, "crates/comity-py/src/x.rs"] {
            assert_eq!(waits::unexplained(place, bad).len(), 1, "{bad}");
            let text = format!("// WAIT: it ends.\n{bad}");
            assert!(waits::unexplained(place, &text).is_empty(), "{bad}");
        }
    }
    for bad in [
        "#[cfg(test)]\nmod tests;\nfn f() { x.wait() }",
        "#[cfg(all(test, loom))]\nmod t {\n    x();\n}\nx.wait()",
        "// WAIT:\nx.wait()",
        "// WAIT(until)\nx.wait()",
        "// WAIT: it ends.\n\nx.wait()",
        "// WAIT: it ends.\na();\nx.wait()",
        "let s = \"// WAIT: it ends.\";\nx.wait()",
    ] {
        assert_eq!(waits::unexplained(OUTSIDE, bad).len(), 1, "{bad}");
    }
    for good in [
        "fn wait(&self)",
        "fn join()",
        "// then wait(x)",
        "self.poll_all()",
        "names.join(x)",
        "d.recv(team, 1, buf)",
        "#[cfg(test)]\nmod tests { fn f() { x.wait() } }",
        "#[cfg(test)]\n#[cfg(unix)]\nmod tests {\n    fn f() {\n        x.wait()\n    }\n}",
        "    #[cfg(test)]\n    fn f() {\n        x.wait()\n    }",
    ] {
        assert!(waits::unexplained(OUTSIDE, good).is_empty(), "{good}");
    }
    assert!(waits::unexplained("crates/comity/src/links/tests.rs", "x.wait()").is_empty());
    assert!(waits::unexplained("crates/comity-cli/src/lib.rs", "x.wait()").is_empty());
}

#[test]
fn the_function_that_waits_has_what_ends_it() {
    for good in [
        "fn f() {\n    // WAIT(failure): why\n    x.wait(); status.failure()\n}",
        "/// Does.\n// WAIT(failure): why\n#[inline]\nfn f() {\n    if a {\n        x.wait();\n    }\n    failure();\n    y.wait();\n}",
        "fn f() {\n    failure();\n    // WAIT(failure): why\n    let y =\n        x.wait();\n}",
    ] {
        assert!(waits::unexplained(OUTSIDE, good).is_empty(), "{good}");
        assert!(!waits::unexplained(OUTSIDE, &good.replace("failure()", "other()")).is_empty(), "{good}");
    }
    for bad in [
        "fn f() {\n    // WAIT(failure): why\n    x.wait();\n}\nfn next() { status.failure() }",
        "fn before() {\n    failure();\n}\n\n// WAIT(failure): why\nfn f() {\n    x.wait();\n}",
        "// WAIT(failure): why\nfn f() {\n    failure();\n    fn inner() {\n        x.wait();\n    }\n}",
        "status.failure();\n// WAIT(failure): outside any function\nx.wait();",
    ] {
        assert_eq!(waits::unexplained(OUTSIDE, bad).len(), 1, "{bad}");
    }
}
