//! Rust source without its comments and texts, so that words in them are not taken for code.

/// Comments and the insides of literals become spaces; lines stay where they are.
pub(super) fn blank(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
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
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

fn line_end(chars: &[char], at: usize) -> usize {
    find(chars, at, |rest| rest[0] == '\n')
}

fn block_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut at) = (0, at);
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
