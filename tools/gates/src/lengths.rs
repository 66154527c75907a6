//! How long files and functions may be, in Rust and in Python. There is no list of exceptions: what grows past a limit is cut.

use super::{python, text};

const FILE: usize = 400;
const FUNCTION: usize = 60;

/// A function: its name, the line of its `fn` or `def` from 1, and its lines from there to its end.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// What is longer than the limits, in a file of either language.
pub(crate) fn too_long(name: &str, text: &str) -> Vec<String> {
    let functions = if name.ends_with(".py") { of_python(text) } else { of_rust(text) };
    let long = functions.into_iter().filter(|f| f.lines > FUNCTION).map(|f| {
        format!(
            "{name}:{}: {} has {} lines; a function past {FUNCTION} is cut into parts",
            f.line, f.name, f.lines
        )
    });
    file(name, text).into_iter().chain(long).collect()
}

fn file(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let why = format!("{name}: {lines} lines; a file past {FILE} becomes a folder of parts");
    (lines > FILE).then_some(why)
}

/// Those with a body.
fn of_rust(source: &str) -> Vec<Function> {
    let code = text::blank(source);
    let heads = code.match_indices("fn ").map(|(at, _)| at);
    heads.filter_map(|at| rust_function(&code, at)).collect()
}

/// The function whose `fn` is at `at`; none for a type, and for one that a trait or a foreign block only declares.
fn rust_function(code: &str, at: usize) -> Option<Function> {
    let name = text::name_of(&code[line_start(code, at)..]).filter(|_| starts_word(code, at))?;
    if !code[at + 3..].starts_with(&name) {
        return None;
    }
    let open = at + body(&code[at..])?;
    let end = text::close(code, open);
    let lines = code[at..end].matches('\n').count() + 1;
    Some(Function { name, line: code[..at].matches('\n').count() + 1, lines })
}

fn line_start(code: &str, at: usize) -> usize {
    code[..at].rfind('\n').map_or(0, |n| n + 1)
}

fn starts_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Where the body begins, in what follows a `fn`. A `;` in brackets is an array's.
fn body(head: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in head.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// All of them, also those within others.
fn of_python(source: &str) -> Vec<Function> {
    let code = python::blank(source);
    let code: Vec<&str> = code.lines().collect();
    let lines: Vec<&str> = source.lines().collect();
    let heads = (0..code.len()).filter_map(|at| Some((at, python_name(code[at])?)));
    heads
        .map(|(at, name)| Function { name, line: at + 1, lines: python_end(&code, &lines, at) - at + 1 })
        .collect()
}

fn python_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("def ")?;
    Some(rest.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect())
}

/// The last line of the function whose `def` is at `at`: what follows is no further in, and in no brackets of it.
fn python_end(code: &[&str], lines: &[&str], at: usize) -> usize {
    let margin = indent(code[at]);
    let (mut depth, mut end) = (brackets(code[at]), at);
    for i in at + 1..code.len() {
        let blank = code[i].trim().is_empty();
        if !blank && depth == 0 && indent(code[i]) <= margin {
            break;
        }
        depth += brackets(code[i]);
        // A line of a text is blank in the code. A comment belongs to what is as far in.
        let outside = lines[i].trim_start().starts_with('#') && indent(lines[i]) <= margin;
        if !(lines[i].trim().is_empty() || blank && outside) {
            end = i;
        }
    }
    end
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// How many more brackets a line opens than it closes.
fn brackets(line: &str) -> i32 {
    line.chars().map(|c| i32::from("([{".contains(c)) - i32::from(")]}".contains(c))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of so many lines.
    fn rust(lines: usize) -> String {
        format!("fn long(\n    x: [u8; 4],\n) {{\n{}}}\n", "    f();\n".repeat(lines - 4))
    }

    fn python(lines: usize) -> String {
        format!("def long(\n    x,\n):\n{}\n\n# next\ny = 1\n", "    f()\n".repeat(lines - 3))
    }

    #[test]
    fn files_stay_short() {
        for kind in ["rs", "py"] {
            let name = format!("a.{kind}");
            assert!(too_long(&name, &"x\n".repeat(400)).is_empty());
            let long = too_long(&name, &"x\n".repeat(401));
            assert!(long.len() == 1 && long[0].starts_with(&format!("{name}: 401 lines")), "{long:?}");
        }
    }

    #[test]
    fn functions_stay_short() {
        for (name, of) in [("a.rs", rust as fn(usize) -> String), ("a.py", python)] {
            assert!(too_long(name, &of(60)).is_empty(), "{name}");
            let long = too_long(name, &format!("\n{}", of(61)));
            assert!(
                long.len() == 1 && long[0].starts_with(&format!("{name}:2: long has 61 lines")),
                "{long:?}"
            );
        }
    }

    fn named(functions: Vec<Function>) -> Vec<(String, usize, usize)> {
        functions.into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    #[test]
    fn functions_of_rust_end_at_their_brace() {
        let source = "trait T {\n    fn declared(&self, x: [u8; 2]);\n    fn given(&self) {\n    }\n}\n\
            type F = fn (u8);\nfn g(f: fn(u8) -> u8) -> String {\n    \"}\".into() // }\n}\n\
            pub(crate) const unsafe extern \"C\" fn h() {}\nfn outer() {\n    fn inner() {\n    }\n}\n// fn no() {\n";
        let want = [("given", 3, 2), ("g", 7, 3), ("h", 10, 1), ("outer", 11, 4), ("inner", 12, 2)];
        assert_eq!(named(of_rust(source)), want.map(|(n, l, k)| (n.to_owned(), l, k)));
    }

    #[test]
    fn functions_of_python_end_where_lines_are_no_further_in() {
        let source = "def a():\n    '''Text\n\nat the margin\n    '''\n\n\n@b\nasync def c(\n    x,\n) -> None:\n    if x:\n        y = '''\n\
            z\n'''\n    return (\n1\n)\n# not of c\n\n\nclass D:\n    def e(self): ...\n\n    # of nobody\n    def f(self):\n        \
            def g():\n            pass\n        # of f\n\n    x = 1\n'''\ndef no():\n'''\n";
        let want = [("a", 1, 5), ("c", 9, 10), ("e", 23, 1), ("f", 26, 4), ("g", 27, 2)];
        assert_eq!(named(of_python(source)), want.map(|(n, l, k)| (n.to_owned(), l, k)));
    }
}
