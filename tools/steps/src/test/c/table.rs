//! Exports of the library and the layout of its structs, against the committed table; and the headers, by every compiler that is here.

use super::{Installed, STRICT, compilers};
use crate::c;
use std::{collections::BTreeSet, fmt::Write};
use tasks::{
    child::Task,
    place::{read, write},
};

/// Number of symbols, all of them right.
pub(super) fn check(installed: &Installed) -> Result<usize, String> {
    let count = exported(installed)?;
    dependencies(installed)?;
    let assertions = assertions(&read(c::TABLE)?);
    for (name, text) in [
        ("plain", "#include <comity.h>\nint main(void) { return COMITY_OK; }\n".to_owned()),
        ("twice", "#include <comity.h>\n#include <comity.h>\nint main(void) { return 0; }\n".into()),
        ("layout", assertions),
    ] {
        for (cc, cxx) in compilers() {
            compile(installed, cc, "-std=c99", &format!("{name}.c"), &text)?;
            compile(installed, cxx, "-std=c++11", &format!("{name}.cc"), &text)?;
        }
    }
    for (_, cxx) in compilers() {
        let text = "#include <comity.hpp>\nint main() { comity::Group none; return none ? 1 : 0; }\n";
        for standard in ["-std=c++11", "-std=c++20"] {
            compile(installed, cxx, standard, "wrapper.cc", text)?;
        }
    }
    Ok(count)
}

/// The dynamic symbols are those of the table, each under the version node.
fn exported(installed: &Installed) -> Result<usize, String> {
    let library = installed.library().join("libcomity.so.0");
    let said = Task::new("nm").args(["-D", "--defined-only"]).args([&library]).run()?;
    let names = said.lines().filter_map(|l| l.split_whitespace().last());
    let found: BTreeSet<String> = names.filter(|n| *n != c::NODE).map(str::to_owned).collect();
    let wanted: BTreeSet<String> = c::symbols()?.into_iter().map(|s| format!("{s}@@{}", c::NODE)).collect();
    if found != wanted {
        let (more, less): (Vec<_>, Vec<_>) =
            (found.difference(&wanted).collect(), wanted.difference(&found).collect());
        return Err(format!(
            "libcomity.so.0 exports what {} does not have: {more:?}; and lacks {less:?}",
            c::TABLE
        ));
    }
    Ok(found.len())
}

/// The system's libraries, and none of C++.
fn dependencies(installed: &Installed) -> Result<(), String> {
    let library = installed.library().join("libcomity.so.0");
    let said = Task::new("readelf").args(["-d"]).args([&library]).run()?;
    let needed = said.lines().filter(|l| l.contains("(NEEDED)")).filter_map(|l| l.split(['[', ']']).nth(1));
    const ALLOWED: [&str; 5] = ["libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "ld-linux"];
    let others: Vec<_> = needed.filter(|n| !ALLOWED.iter().any(|a| n.starts_with(a))).collect();
    if others.is_empty() { Ok(()) } else { Err(format!("libcomity.so.0 needs {}", others.join(", "))) }
}

fn compile(
    installed: &Installed,
    compiler: &str,
    standard: &str,
    file: &str,
    text: &str,
) -> Result<(), String> {
    let path = installed.scratch.join(file);
    write(&path, text)?;
    let task = Task::new(compiler).args([standard, "-fsyntax-only"]).args(STRICT).args([installed.include()]);
    task.args([path]).run().map(drop)
}

/// A program that compiles only where structs lie as the table says, and enums have the size of an int.
fn assertions(table: &str) -> String {
    let mut text = String::from("#include <comity.h>\n");
    let mut current = "";
    let mut n = 0;
    let mut hold = |what: &str| {
        n += 1;
        let _ = writeln!(text, "typedef char holds_{n}[({what}) ? 1 : -1];");
    };
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["struct", name, size] => {
                current = name;
                hold(&format!("sizeof({name}) == {size}"));
            }
            [field, at] if line.starts_with("  ") => hold(&format!("offsetof({current}, {field}) == {at}")),
            ["enum", name, ..] => hold(&format!("sizeof({}) == 4", name.trim_end_matches(':'))),
            _ => {}
        }
    }
    text + "int main(void) { return 0; }\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_assertions() {
        let text =
            assertions("About.\n\nstruct s 16\n  size 0\n  x 8\nenum e: A = 0\nfunction int f(void)\n");
        let holds: Vec<&str> = text.lines().filter(|l| l.starts_with("typedef")).collect();
        assert_eq!(holds.len(), 4, "{text}");
        assert_eq!(holds[2], "typedef char holds_3[(offsetof(s, x) == 8) ? 1 : -1];");
        assert_eq!(holds[3], "typedef char holds_4[(sizeof(e) == 4) ? 1 : -1];");
    }
}
