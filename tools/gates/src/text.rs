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

/// A function: its name, its text from its head to its last brace, and the line of its head, from 0; none of what is no function.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) line: Option<usize>,
}

/// The innermost function around the line at `at`; empty outside any.
pub(crate) fn function(code: &[(usize, &str)], at: usize) -> Function {
    let text: String = code.iter().map(|(_, l)| format!("{l}\n")).collect();
    let start: usize = code[..at].iter().map(|(_, l)| l.len() + 1).sum();
    // A function on one line has its brace there.
    let mut end = start + code[at].1.len();
    let mut depth = 0;
    while let Some(brace) = text[..end].rfind(['{', '}']) {
        end = brace;
        if text[brace..].starts_with('}') {
            depth += i32::from(brace < start);
            continue;
        }
        if depth > 0 {
            depth -= 1;
            continue;
        }
        // As the formatter leaves it: a statement ends its line.
        let head = text[..brace].rfind(['{', '}']).map_or(0, |b| b + 1);
        let head = text[head..brace].rfind(";\n").map_or(head, |s| head + s + 2);
        if let Some(name) = name_of(&text[head..brace]) {
            let head = head + text[head..].find(|c: char| !c.is_whitespace()).unwrap_or(0);
            let line = code.get(text[..head].matches('\n').count()).map(|(i, _)| *i);
            return Function { name, text: text[head..close(&text, brace)].to_owned(), line };
        }
    }
    Function::default()
}

/// The name in the head of a function.
pub(crate) fn name_of(head: &str) -> Option<String> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let at = head.match_indices("fn ").map(|(at, _)| at).find(|&at| !head[..at].ends_with(part))?;
    let name: String = head[at + 3..].chars().take_while(|&c| part(c)).collect();
    (!name.is_empty()).then_some(name)
}

/// Past the brace that closes the one at `open`.
pub(crate) fn close(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return open + at + 1;
        }
    }
    text.len()
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
