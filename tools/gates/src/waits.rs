//! Every wait says what ends it when the other side never comes.
//!
//! ```text
//! // WAIT(until): links being made, to the join deadline
//! poll_until(&mut fds, until)?;
//! ```
//!
//! The comment stands right above the statement that waits, on its line, or above the head of its function. The word in brackets
//! is what ends the wait, and must be in the code of that function. Without brackets nothing there ends it, and the comment says
//! what does: a thread that was told to stop, a call that has a deadline.

use super::text::{Line, Source, has_word, split_at_word};

/// Crates in which each wait has a reason.
const PLACES: [&str; 9] =
    ["", "-base", "-channel", "-transport", "-settings", "-rendezvous", "-job", "-membership", "-py"];

/// Calls that can sleep, or are made again and again instead.
const WAITING: [&str; 12] = [
    "poll",
    "poll_until",
    "park",
    "park_timeout",
    "sleep",
    "wait",
    "wait_while",
    "wait_timeout",
    "wait_timeout_while",
    "recv_timeout",
    "spin_loop",
    "yield_now",
];
/// The same where nothing is given to them: else they join texts and receive for a group.
const WAITING_ALONE: [&str; 2] = ["join", "recv"];

/// Lists the waits of this file without a reason.
pub(crate) fn unexplained(file: &Source) -> Vec<String> {
    if !PLACES.iter().any(|place| file.name.starts_with(&format!("crates/comity{place}/src/"))) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in file.shipped().filter(|(_, line)| waits(&line.code)) {
        let function = function(&file.lines, n - 1);
        let head = function.and_then(|(head, _)| end_of(&file.lines, head));
        let inside = function.map_or(&[][..], |(head, end)| &file.lines[head..=end]);
        let wrong = match end_of(&file.lines, n - 1).or(head) {
            None => "a wait without `// WAIT(what ends it): why` above it".into(),
            Some((_, "")) => "a wait, of which WAIT says nothing".into(),
            Some((Some(end), _)) if !inside.iter().any(|l| !l.is_test && has_word(&l.code, end)) => {
                format!("a wait in a function without `{end}`, though WAIT says that it ends by it")
            }
            Some(_) => continue,
        };
        found.push(format!("{}:{n}: {wrong}: {}", file.name, line.text.trim()));
    }
    found
}

/// First and last line of the innermost function around a line, as the formatter leaves it: from its head to its last brace.
fn function(lines: &[Line], at: usize) -> Option<(usize, usize)> {
    let indent = |i: usize| lines[i].code.len() - lines[i].code.trim_start().len();
    let begins = |&i: &usize| has_word(&lines[i].code, "fn") && (i == at || indent(i) < indent(at));
    (0..=at).rev().filter(begins).find_map(|head| {
        let closes = |&i: &usize| lines[i].code.trim_start().starts_with('}') && indent(i) <= indent(head);
        let end = (head + 1..lines.len()).find(closes).unwrap_or(lines.len() - 1);
        let end = if lines[head].code.trim_end().ends_with('}') { head } else { end };
        (end >= at).then_some((head, end))
    })
}

/// Reads the `WAIT` at the statement of line `at`: the word that ends the wait, if one does, and why.
fn end_of(lines: &[Line], at: usize) -> Option<(Option<&str>, &str)> {
    let said = comment_above(lines, at)?;
    let rest = said[said.find("// WAIT")? + "// WAIT".len()..].trim_start();
    if let Some(rest) = rest.strip_prefix('(') {
        let (end, why) = rest.split_once(')')?;
        return Some((Some(end), why.strip_prefix(':')?.trim()));
    }
    Some((None, rest.strip_prefix(':')?.trim()))
}

/// The line with a `WAIT`: that of the statement at line `at`, or one of the comments right above it.
fn comment_above(lines: &[Line], at: usize) -> Option<&str> {
    for i in (0..=at).rev() {
        let Line { text, code, .. } = &lines[i];
        let code = code.trim();
        if text.contains("// WAIT") && (i == at || code.is_empty()) {
            return Some(text);
        }
        let comment = code.is_empty() && !text.trim().is_empty();
        // A line that ends neither a statement nor a block belongs to the statement below it.
        let ends = code.is_empty() || code.ends_with([';', '{', '}', ',']);
        if i < at && ends && !comment && !code.starts_with("#[") {
            return None;
        }
    }
    None
}

fn waits(code: &str) -> bool {
    WAITING.iter().any(|w| calls(code, w, "(")) || WAITING_ALONE.iter().any(|w| calls(code, w, "()"))
}

/// Returns whether `name`, a function or a field, is called with `given`.
fn calls(code: &str, name: &str, given: &str) -> bool {
    split_at_word(code, name).any(|(before, after)| {
        let held = before.ends_with('.') && after.strip_prefix(')').is_some_and(|a| a.starts_with(given));
        (after.starts_with(given) || held) && !before.trim_end().ends_with("fn")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        unexplained(&Source::new("crates/comity-py/src/x.rs", text)).len()
    }

    #[test]
    fn waits_are_explained() {
        for bad in [
            "poll(&mut fds, None)",
            "thread::park();",
            "self.done.wait(out)",
            "hint::spin_loop()",
            "(self.wait)(fd, until)",
            "let _ = thread.join();",
            "let job = jobs.recv()?;",
            "c.wait_timeout_while(g, t, |x| x.is_none())",
        ] {
            assert_eq!((count(bad), count(&format!("// WAIT: it ends.\n{bad}"))), (1, 0), "{bad}");
        }
        for bad in [
            "// WAIT:\nx.wait()",
            "// WAIT(until)\nx.wait()",
            "// WAIT: it ends.\n\nx.wait()",
            "// WAIT: it ends.\na();\nx.wait()",
            "let s = \"// WAIT: it ends.\";\nx.wait()",
        ] {
            assert_eq!(count(bad), 1, "{bad}");
        }
        for good in [
            "fn wait(&self)",
            "fn join()",
            "// then wait(x)",
            "self.poll_all()",
            "names.join(x)",
            "d.recv(team, 1, buf)",
            "#[cfg(test)]\nmod tests { fn f() { x.wait() } }",
        ] {
            assert_eq!(count(good), 0, "{good}");
        }
        assert!(unexplained(&Source::new("crates/comity-cli/src/lib.rs", "x.wait()")).is_empty());
    }

    #[test]
    fn the_function_that_waits_has_what_ends_it() {
        for good in [
            "fn f() {\n    // WAIT(failure): why\n    x.wait(); status.failure()\n}",
            "/// Does.\n// WAIT(failure): why\n#[inline]\nfn f() {\n    if a {\n        x.wait();\n    }\n    failure();\n    y.wait();\n}",
            "fn f() {\n    failure();\n    // WAIT(failure): why\n    let y =\n        x.wait();\n}",
        ] {
            assert_eq!(count(good), 0, "{good}");
            assert!(count(&good.replace("failure()", "other()")) > 0, "{good}");
        }
        for bad in [
            "fn f() {\n    // WAIT(failure): why\n    x.wait();\n}\nfn next() { status.failure() }",
            "fn before() {\n    failure();\n}\n\n// WAIT(failure): why\nfn f() {\n    x.wait();\n}",
            "// WAIT(failure): why\nfn f() {\n    failure();\n    fn inner() {\n        x.wait();\n    }\n}",
            "status.failure();\n// WAIT(failure): outside any function\nx.wait();",
        ] {
            assert_eq!(count(bad), 1, "{bad}");
        }
    }
}
