//! Rust source, line by line, with its comments and literals apart, so that words in them are not taken for code.

/// A file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Place in the workspace.
    pub(crate) name: String,
    pub(crate) lines: Vec<Line>,
}

/// A line of a file.
#[derive(Debug)]
pub(crate) struct Line {
    /// The line as it stands there.
    pub(crate) text: String,
    /// The same with spaces for comments and literals.
    pub(crate) code: String,
    /// Literals that begin here.
    pub(crate) literals: Vec<String>,
    /// It is for tests only.
    pub(crate) is_test: bool,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let mut code = String::with_capacity(text.len());
        let mut literals = vec![Vec::new(); text.lines().count() + 1];
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let (end, is_literal) = end_of_token(text, at);
            if is_literal {
                literals[code.matches('\n').count()].push(text[at..end].to_owned());
            }
            if end == at {
                code.push(first);
                at += first.len_utf8();
            } else {
                code.extend(text[at..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
                at = end;
            }
        }
        let of = |((text, code), literals): ((&str, &str), _)| Line {
            text: text.to_owned(),
            code: code.to_owned(),
            literals,
            is_test: false,
        };
        let lines = text.lines().zip(code.lines()).zip(literals).map(of).collect();
        let mut source = Self { name: name.to_owned(), lines };
        source.mark_tests();
        source
    }

    /// Mark the items that are for tests, and all of a file of tests.
    fn mark_tests(&mut self) {
        if ["/tests/", "/examples/", "/conformance"].iter().any(|part| self.name.contains(part))
            || self.name.ends_with("tests.rs")
        {
            self.lines.iter_mut().for_each(|line| line.is_test = true);
        }
        let mut lines = self.lines.iter_mut();
        while let Some(line) = lines.next() {
            let start = line.code.trim_start();
            if !["#[cfg(test", "#[cfg(all(test"].iter().any(|t| start.starts_with(t)) {
                continue;
            }
            line.is_test = true;
            // As the formatter leaves it: an item ends on its line, or with a brace as far in as it begins.
            let close = format!("{}}}", &line.code[..line.code.len() - start.len()]);
            let mut begun = false;
            for line in lines.by_ref() {
                line.is_test = true;
                if !begun && line.code.trim_start().starts_with("#[") {
                    continue;
                }
                let ends_here = !begun && line.code.ends_with([';', ',', '}']);
                begun = true;
                if ends_here || line.code.starts_with(&close) {
                    break;
                }
            }
        }
    }

    /// The lines that are not for tests, with their numbers from 1.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.lines).filter(|(_, line)| !line.is_test)
    }
}

/// The end of the comment or literal that begins there, and whether it is a literal; the place itself where none does.
fn end_of_token(text: &str, at: usize) -> (usize, bool) {
    let rest = &text[at..];
    let until = |from: usize, close: &str| {
        at + rest.get(from..).and_then(|r| r.find(close)).map_or(rest.len(), |i| from + i + close.len())
    };
    let part = |c: char| c.is_alphanumeric() || c == '_';
    match rest.as_bytes() {
        [b'/', b'/', ..] => (at + rest.find('\n').unwrap_or(rest.len()), false),
        [b'/', b'*', ..] => (until(2, "*/"), false),
        [b'"', ..] => {
            let mut escaped = true;
            let close = rest.char_indices().find(|(_, c)| {
                let closes = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                closes
            });
            (at + close.map_or(rest.len(), |(i, _)| i + 1), true)
        }
        // Also the `r` of `br"..."`.
        [b'r', ..] if !text[..at].strip_suffix('b').unwrap_or(&text[..at]).ends_with(part) => {
            let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
            match rest[1 + hashes..].starts_with('"') {
                true => (until(2 + hashes, &format!("\"{}", "#".repeat(hashes))), true),
                false => (at, false),
            }
        }
        [b'\'', b'\\', ..] => (until(3, "'"), true),
        // A character, not a lifetime.
        [b'\'', ..] => match rest.char_indices().nth(2) {
            Some((i, '\'')) => (at + i + 1, true),
            _ => (at, false),
        },
        _ => (at, false),
    }
}

pub(crate) fn has_word(line: &str, word: &str) -> bool {
    split_at_word(line, word).next().is_some()
}

/// Splits `line` before and after each place where `word` stands alone.
pub(crate) fn split_at_word<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(move |(at, _)| (&line[..at], &line[at + word.len()..]))
        .filter(move |(before, after)| !before.ends_with(part) && !after.starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (source, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x y */ b", "a           b"),
            (r#"f("unsafe \" x", 'x', '\'', b)"#, "f(             ,    ,     , b)"),
            ("r#\"a \" b\"# c", "           c"),
            ("fn f<'a>(x: &'a str) -> R", "fn f<'a>(x: &'a str) -> R"),
            ("for x in rr\"y\"", "for x in rr   "),
            ("\"open", "     "),
        ] {
            let lines = Source::new("x.rs", source).lines;
            assert_eq!(
                lines.iter().map(|l| l.code.as_str()).collect::<Vec<_>>().join("\n"),
                code,
                "{source}"
            );
        }
    }

    #[test]
    fn tests_are_marked() {
        for (text, shipped) in [
            ("#[cfg(test)]\nmod tests;\nfn f() {}", &[3][..]),
            ("#[cfg(all(test, loom))]\nmod t {\n    x();\n}\na", &[5]),
            ("#[cfg(test)]\n#[cfg(unix)]\nmod tests {\n    fn f() {\n    }\n}", &[]),
            ("    #[cfg(test)]\n    fn f() {\n        x\n    }\n    a", &[5]),
        ] {
            let source = Source::new("crates/x/src/x.rs", text);
            assert_eq!(source.shipped().map(|(n, _)| n).collect::<Vec<_>>(), shipped, "{text}");
        }
        assert_eq!(Source::new("crates/x/src/x/tests.rs", "a").shipped().count(), 0);
    }
}
