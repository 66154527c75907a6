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
    assert!(within("crates/comity/src/transport/shm/mod.rs", "crates/comity/src/transport/shm/mod.rs"));
    assert!(!within("crates/comity/src/transport/shm/mod.rs.x", "crates/comity/src/transport/shm/mod.rs"));
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

fn misplaced_waits(name: &str, text: &str) -> Vec<String> {
    waits::misplaced(name, text).0
}

#[test]
fn waits_have_their_places() {
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
        assert_eq!(misplaced_waits(OUTSIDE, bad).len(), 1, "{bad}");
        assert_eq!(misplaced_waits("crates/comity-py/src/x.rs", bad).len(), 1, "{bad}");
    }
    for bad in [
        "#[cfg(test)]\nmod tests;\nfn f() { x.wait() }",
        "#[cfg(all(test, loom))]\nmod t {\n    x();\n}\nx.wait()",
    ] {
        assert_eq!(misplaced_waits(OUTSIDE, bad).len(), 1, "{bad}");
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
        assert!(misplaced_waits(OUTSIDE, good).is_empty(), "{good}");
    }
    assert!(misplaced_waits("crates/comity/src/links/tests.rs", "x.wait()").is_empty());
    assert!(misplaced_waits("crates/comity-cli/src/lib.rs", "x.wait()").is_empty());
}

#[test]
fn the_function_that_waits_has_what_ends_it() {
    let engine = "crates/comity/src/engine/progress.rs";
    assert!(misplaced_waits(engine, "fn complete() { x.wait(); watch.failure() }").is_empty());
    for bad in [
        "fn complete() { x.wait(); } // failure",
        "fn other() { x.wait(); watch.failure() }",
        "fn complete() {\n    x.wait();\n}\nfn next() { watch.failure() }",
        "fn before() {\n    failure();\n}\n\nfn complete() {\n    if a {\n        b();\n    }\n    x.wait();\n}",
        "fn complete() {\n    failure();\n    fn inner() {\n        x.wait();\n    }\n}",
        "watch.failure(); x.wait();",
    ] {
        assert_eq!(misplaced_waits(engine, bad).len(), 1, "{bad}");
    }
    let deep = "impl X {\n    fn complete(\n        &self,\n        failure: [u8; 4],\n    ) {\n        match x {\n            \
        A { b } => c(|| {\n                x.wait();\n            }),\n        }\n    }\n}";
    assert!(misplaced_waits(engine, deep).is_empty());
    assert_eq!(misplaced_waits(engine, &deep.replace("failure", "other")).len(), 1);
    // Entries that nothing needs are known by not being used.
    assert!(waits::misplaced(engine, "fn complete() { failure(); }").1.is_empty());
    assert_eq!(waits::misplaced(engine, "fn complete() { failure(x.wait()); }").1.len(), 1);
    assert!(WAITS.iter().all(|w| !w.why.is_empty()));
}

#[test]
fn python_waits_have_a_limit() {
    let wrong = |text: &str| python::misplaced("python/comity/torch/x.py", text).0;
    for bad in [
        "lock.wait()",
        "lock.wait(timeout=None)",
        "with a: b.acquire()",
        "event.acquire(True)",
        "thread.join()",
        "x = queue.get()",
        "queue.get(block=True)",
        "y = future.result()",
        "a('#'); b.wait()",
        "\"\"\"text\"\"\"\nb.wait()",
    ] {
        assert_eq!(wrong(bad).len(), 1, "{bad}");
    }
    assert!(wrong("a = '''\n\n''' + b.wait()")[0].starts_with("python/comity/torch/x.py:3: a wait without"));
    for good in [
        "lock.wait(left)",
        "# lock.wait()",
        "def wait(self): ...",
        "'''\nb.wait()\n'''",
        "d.get('x')",
        "', '.join(names)",
        "f(\"it's b.wait()\")",
        "'\\'b.wait()'",
        "b.await_all()",
    ] {
        assert!(wrong(good).is_empty(), "{good}");
    }
    assert!(python::misplaced("python/tests/x.py", "lock.wait()").0.is_empty());
    let used = python::misplaced("python/comity/torch/work.py", "        self.wait()").1;
    assert_eq!((used.len(), python::idle(&used).count() + 1), (1, python::idle(&[]).count()));
}
