//! Rust source without its comments and texts, so that words in them are not taken for code.

/// Comments and the insides of literals become spaces; lines stay where they are.
pub(crate) fn blank(source: &str) -> String {
    split(source).0
}

/// The literals of the source: each with its line, from 0.
pub(crate) fn literals(source: &str) -> Vec<(usize, String)> {
    split(source).1
}

/// The code alone, as [`blank`] has it, and the literals, as [`literals`] has them.
fn split(source: &str) -> (String, Vec<(usize, String)>) {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut literals = Vec::new();
    let mut line = 0;
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => block_end(&chars, at),
            '"' => text_end(&chars, at),
            'r' if starts_word(&chars, at) => raw_end(&chars, at + 1).unwrap_or(at),
            '\'' => char_end(&chars, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            line += usize::from(chars[at] == '\n');
            at += 1;
            continue;
        }
        if chars[at] != '/' {
            literals.push((line, chars[at..end].iter().collect()));
        }
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        line += chars[at..end].iter().filter(|&&c| c == '\n').count();
        at = end;
    }
    (out, literals)
}

fn line_end(chars: &[char], at: usize) -> usize {
    find(chars, at, |rest| rest[0] == '\n')
}

fn block_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut at = at;
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    at
}

fn text_end(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// After an `r`: hashes, and a text that ends with as many.
fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let end = find(chars, at + hashes + 1, |rest| rest.starts_with(&close));
    Some((end + close.len()).min(chars.len()))
}

/// A character, not a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match chars[at + 1..] {
        ['\\', _, ..] => Some((find(chars, at + 3, |rest| rest[0] == '\'') + 1).min(chars.len())),
        [_, '\'', ..] => Some(at + 3),
        _ => None,
    }
}

/// Also the `r` of `br"..."`.
fn starts_word(chars: &[char], at: usize) -> bool {
    let part = |i: usize| chars[i].is_alphanumeric() || chars[i] == '_';
    at == 0 || !part(at - 1) || chars[at - 1] == 'b' && (at == 1 || !part(at - 2))
}

fn find(chars: &[char], from: usize, is: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|&i| is(&chars[i..])).unwrap_or(chars.len())
}

/// The lines, with their numbers from 0, that are not only for tests.
pub(crate) fn without_tests(code: &str) -> Vec<(usize, &str)> {
    let mut lines = code.lines().enumerate();
    let mut kept = Vec::new();
    while let Some((i, line)) = lines.next() {
        let start = line.trim_start();
        if !["#[cfg(test", "#[cfg(all(test"].iter().any(|t| start.starts_with(t)) {
            kept.push((i, line));
            continue;
        }
        // As the formatter leaves it: an item ends on its line, or with a brace as far in as it begins.
        let close = format!("{}}}", &line[..line.len() - start.len()]);
        let mut begun = false;
        for (_, line) in lines.by_ref() {
            if !begun && line.trim_start().starts_with("#[") {
                continue;
            }
            let on_one_line = !begun && (line.ends_with(';') || line.ends_with(',') || line.ends_with('}'));
            begun = true;
            if on_one_line || line.starts_with(&close) {
                break;
            }
        }
    }
    kept
}

/// The innermost function around the line at `at`, as the formatter leaves it: from its head to its last brace.
pub(crate) fn function<'a>(code: &'a [(usize, &'a str)], at: usize) -> Option<&'a [(usize, &'a str)]> {
    let indent = |i: usize| code[i].1.len() - code[i].1.trim_start().len();
    let begins = |&i: &usize| super::has_word(code[i].1, "fn") && (i == at || indent(i) < indent(at));
    (0..=at).rev().filter(begins).find_map(|head| {
        let closes = |&i: &usize| code[i].1.trim_start().starts_with('}') && indent(i) <= indent(head);
        let end = (head + 1..code.len()).find(closes).unwrap_or(code.len() - 1);
        let end = if code[head].1.trim_end().ends_with('}') { head } else { end };
        (end >= at).then(|| &code[head..=end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (source, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("unsafe \" x", 'x', '\'', b)"#, "f(             ,    ,     , b)"),
            ("r#\"a \" b\"# c", "           c"),
            ("fn f<'a>(x: &'a str) -> R", "fn f<'a>(x: &'a str) -> R"),
            ("for x in rr\"y\"", "for x in rr   "),
            ("\"open", "     "),
        ] {
            assert_eq!(blank(source), code, "{source}");
        }
    }
}
