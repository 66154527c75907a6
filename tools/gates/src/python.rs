//! Waits without a limit in the Python package.

use super::words;

/// A file, the line that waits there without a limit, and what ends it.
const UNTIMED: &[(&str, &str, &str)] = &[
    ("_objects.py", "return block.result()", "no wait: an array that is there"),
    ("_request.py", "return self.wait()", "a request that has ended, or whose call has a deadline"),
    ("mlx/_gradients.py", "request.wait()", "a request, whose call has a deadline"),
    ("mlx/_gradients.py", "return request, dst.result()", "no wait: an array that is there"),
    ("torch/work.py", "self.wait()", "a request, as above, or a `Pending`, which has a limit"),
    ("torch/shims.py", "future.wait()", "a future that `done` was asked of: it has a value"),
];
/// Where nothing is given to them.
const WAITING: &[&str] = &["wait", "acquire", "join", "get", "result"];
const PLACE: &str = "python/comity/";

/// What is wrong with the waits of this file, and which entries of the list it needs.
pub(crate) fn misplaced(name: &str, text: &str) -> (Vec<String>, Vec<usize>) {
    let (mut found, mut used) = (Vec::new(), Vec::new());
    let Some(file) = name.strip_prefix(PLACE) else { return (found, used) };
    let code = blank(text);
    for (i, (line, source)) in code.lines().zip(text.lines()).enumerate().filter(|(_, (l, _))| waits(l)) {
        match UNTIMED.iter().position(|(f, l, _)| *f == file && *l == source.trim()) {
            Some(entry) => used.push(entry),
            None => found.push(format!("{name}:{}: a wait without a limit: {}", i + 1, line.trim())),
        }
    }
    (found, used)
}

/// Entries of the list that no file needs.
pub(crate) fn idle(used: &[usize]) -> impl Iterator<Item = String> + '_ {
    let entries = UNTIMED.iter().enumerate().filter(|(i, _)| !used.contains(i));
    entries.map(|(_, (file, line, _))| {
        format!("{PLACE}{file} has no `{line}`; remove it from the list of waits")
    })
}

/// A method that is called with nothing, or with no limit: `wait(timeout=None)`, `get(True)`.
fn waits(line: &str) -> bool {
    let endless = ["()", "(None)", "(timeout=None)", "(True)", "(block=True)", "(blocking=True)"];
    let called = |(before, after): (&str, &str)| {
        before.ends_with('.') && endless.iter().any(|given| after.starts_with(given))
    };
    WAITING.iter().any(|w| words(line, w).any(called))
}

/// Comments become nothing, texts empty ones; lines stay where they are.
pub(super) fn blank(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|q| rest.starts_with(q));
        let end = match quote {
            Some(q) => text_end(rest, q),
            None if c == '#' => rest.find('\n').unwrap_or(rest.len()),
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
        };
        out.push_str(if quote.is_some() { "''" } else { "" });
        out.extend(rest[..end].chars().filter(|&c| c == '\n'));
        rest = &rest[end..];
    }
    out
}

/// Past the text that begins with `quote`.
fn text_end(text: &str, quote: &str) -> usize {
    let mut at = quote.len();
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(quote) {
            return at + quote.len();
        }
        at += c.len_utf8();
        if c == '\\' {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    text.len()
}
