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

use super::{
    comment_above, has_word,
    text::{blank, function, without_tests},
    words,
};

/// Folders in which each wait has a reason.
const PLACES: [&str; 9] = [
    "crates/comity/src/",
    "crates/comity-base/src/",
    "crates/comity-channel/src/",
    "crates/comity-transport/src/",
    "crates/comity-settings/src/",
    "crates/comity-rendezvous/src/",
    "crates/comity-job/src/",
    "crates/comity-membership/src/",
    "crates/comity-py/src/",
];

/// Calls that can sleep, or are made again and again instead.
const WAITING: &[&str] = &[
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
const WAITING_ALONE: &[&str] = &["join", "recv"];

/// Lists the waits of this file without a reason.
pub(crate) fn unexplained(name: &str, text: &str) -> Vec<String> {
    let test = name.contains("/tests/")
        || name.ends_with("/tests.rs")
        || name.ends_with("_tests.rs")
        || name.contains("/conformance");
    if test || !PLACES.iter().any(|place| name.starts_with(place)) {
        return Vec::new();
    }
    let blanked = blank(text);
    let code = without_tests(&blanked);
    let (lines, all): (Vec<&str>, Vec<&str>) = (text.lines().collect(), blanked.lines().collect());
    let mut found = Vec::new();
    for (at, (i, line)) in code.iter().enumerate().filter(|(_, (_, l))| waits(l)) {
        let inside = function(&code, at).unwrap_or_default();
        let head = inside.first().and_then(|(head, _)| end_of(&lines, &all, *head));
        let said = end_of(&lines, &all, *i).or(head);
        let what = format!("{name}:{}: a wait", i + 1);
        match said {
            None => {
                found.push(format!("{what} without `// WAIT(what ends it): why` above it: {}", line.trim()))
            }
            Some((_, "")) => found.push(format!("{what}, of which WAIT says nothing")),
            Some((Some(end), _)) if !inside.iter().any(|(_, line)| has_word(line, end)) => {
                found.push(format!(
                    "{what} in a function without `{end}`, though WAIT says that it ends by it"
                ));
            }
            Some(_) => {}
        }
    }
    found
}

/// Reads the `WAIT` at the statement of line `at`: the word that ends the wait, if one does, and why.
fn end_of<'a>(lines: &[&'a str], code: &[&str], at: usize) -> Option<(Option<&'a str>, &'a str)> {
    let said = comment_above(lines, code, at, |line| line.contains("// WAIT"))?;
    let rest = said[said.find("// WAIT")? + "// WAIT".len()..].trim_start();
    if let Some(rest) = rest.strip_prefix('(') {
        let (end, why) = rest.split_once(')')?;
        return Some((Some(end), why.strip_prefix(':')?.trim()));
    }
    Some((None, rest.strip_prefix(':')?.trim()))
}

fn waits(line: &str) -> bool {
    WAITING.iter().any(|w| calls(line, w, "(")) || WAITING_ALONE.iter().any(|w| calls(line, w, "()"))
}

/// Returns whether `name`, a function or a field, is called with `given`.
fn calls(line: &str, name: &str, given: &str) -> bool {
    words(line, name).any(|(before, after)| {
        let held = before.ends_with('.') && after.strip_prefix(')').is_some_and(|a| a.starts_with(given));
        (after.starts_with(given) || held) && !before.trim_end().ends_with("fn")
    })
}
