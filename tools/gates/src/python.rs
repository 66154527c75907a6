//! Waits without a limit in the Python package.

use super::words;

/// Methods that wait without a limit when they get no argument.
const WAITING: &[&str] = &["wait", "acquire", "join", "get", "result"];
const PLACE: &str = "python/comity/";

/// Waits of this file without a limit of which no `# WAIT: ...`, on the line or right above it, says what ends them.
pub(crate) fn unexplained(name: &str, text: &str) -> Vec<String> {
    if !name.starts_with(PLACE) {
        return Vec::new();
    }
    let code = blank(text);
    let lines: Vec<&str> = text.lines().collect();
    let says = |l: &str| l.split_once("# WAIT: ").is_some_and(|(_, why)| !why.trim().is_empty());
    let above = |i: usize| i > 0 && lines[i - 1].trim_start().starts_with('#') && says(lines[i - 1]);
    let waiting = code.lines().enumerate().filter(|(i, l)| waits(l) && !says(lines[*i]) && !above(*i));
    waiting
        .map(|(i, line)| {
            format!("{name}:{}: a wait without a limit and `# WAIT: why`: {}", i + 1, line.trim())
        })
        .collect()
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
