//! Sizes, offsets and values in a Rust file against those of `infiniband/verbs.h`.
//!
//! The file is read for the names in it. A C program that includes the header and a Rust program that includes the file print what
//! they make of these names, and the lines must be equal. Names that the header lacks do not compile.

use std::{fmt::Write, fs, path::Path};
use tasks::{child::Task, place::Scratch};

/// The names of one file that mean something in the header.
#[derive(Debug, Default, PartialEq)]
struct Names {
    structures: Vec<Structure>,
    constants: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct Structure {
    name: String,
    fields: Vec<String>,
    /// Not only its beginning.
    whole: bool,
}

/// Number of lines that were compared.
pub(super) fn check(file: &Path, scratch: &Scratch) -> Result<usize, String> {
    let source = fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let names = names(&source);
    if names.structures.is_empty() || names.constants.is_empty() {
        return Err(format!("{} names too little of the interface: {names:?}", file.display()));
    }
    let c = scratch.join("layout.c");
    let rust = scratch.join("layout.rs");
    let write = |to: &Path, text: String| {
        fs::write(to, text).map_err(|e| format!("cannot write {}: {e}", to.display()))
    };
    write(&c, in_c(&names))?;
    write(&rust, in_rust(&names, file))?;
    let by_c = scratch.join("layout-c");
    let by_rust = scratch.join("layout-rust");
    Task::new("cc").args(["-w", "-o"]).args([&by_c, &c]).limit(120).run()?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Task::new(rustc)
        .args(["--edition", "2024", "-Awarnings", "-o"])
        .args([&by_rust, &rust])
        .limit(120)
        .run()?;
    let theirs = Task::new(by_c).run()?;
    let ours = Task::new(by_rust).run()?;
    let differ = theirs.lines().zip(ours.lines()).find(|(t, o)| t != o);
    match differ {
        Some((theirs, ours)) => Err(format!("{}: {ours}, but the header says: {theirs}", file.display())),
        None if theirs.lines().count() == ours.lines().count() => Ok(ours.lines().count()),
        None => Err(format!("{}: the two programs print different things", file.display())),
    }
}

/// In declarations `struct name {`, or `whole name {` and `begin name {` in a macro; and `IBV_NAME: type = value;`.
fn names(source: &str) -> Names {
    let mut names = Names::default();
    let mut inside = false;
    let word = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '#');
    for line in source.lines().take_while(|l| !l.starts_with("#[cfg(test)]")) {
        let mut plain = line.trim();
        for prefix in ["pub(crate) ", "pub ", "const "] {
            plain = plain.strip_prefix(prefix).unwrap_or(plain);
        }
        let opened = ["struct ", "whole ", "begin "].into_iter().find_map(|kind| {
            let name = plain.strip_prefix(kind)?.strip_suffix(" {")?;
            name.starts_with("ibv_").then(|| (name, kind != "begin "))
        });
        if let Some((name, whole)) = opened {
            inside = true;
            names.structures.push(Structure { name: name.into(), fields: Vec::new(), whole });
        } else if plain.starts_with('}') {
            inside = false;
        } else if let Some((name, _)) = plain.split_once(": ").filter(|(name, _)| word(name)) {
            match names.structures.last_mut() {
                Some(last) if inside && name != "_private" => last.fields.push(name.into()),
                _ if name.starts_with("IBV_") => names.constants.push(name.into()),
                _ => {}
            }
        }
    }
    // Known by pointer only.
    names.structures.retain(|s| !s.fields.is_empty());
    names
}

fn in_c(names: &Names) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    for Structure { name, fields, whole } in &names.structures {
        let kind = if name == "ibv_gid" { "union" } else { "struct" };
        if *whole {
            let all = "size %zu align %zu";
            let _ = writeln!(
                text,
                "printf(\"{name} {all}\\n\", sizeof({kind} {name}), _Alignof({kind} {name}));"
            );
        }
        for field in fields {
            let plain = field.trim_start_matches("r#");
            let _ = writeln!(
                text,
                "printf(\"{name}.{field} %zu size %zu\\n\", offsetof({kind} {name}, {plain}), \
                 sizeof((({kind} {name} *)0)->{plain}));"
            );
        }
    }
    for name in &names.constants {
        let _ = writeln!(text, "printf(\"{name} %lld\\n\", (long long)({name}));");
    }
    text + "return 0;\n}\n"
}

fn in_rust(names: &Names, file: &Path) -> String {
    let mut text = format!(
        "#[path = {:?}]\nmod abi;\nuse abi::*;\n\
         fn size<S, F>(_: impl Fn(*const S) -> *const F) -> usize {{ size_of::<F>() }}\n\
         fn main() {{\n",
        file.display().to_string()
    );
    for Structure { name, fields, whole } in &names.structures {
        let _ = writeln!(
            text,
            "if {whole} {{ println!(\"{name} size {{}} align {{}}\", size_of::<{name}>(), align_of::<{name}>()); }}"
        );
        for field in fields {
            let _ = writeln!(
                text,
                "println!(\"{name}.{field} {{}} size {{}}\", std::mem::offset_of!({name}, {field}), \
                 size(|s: *const {name}| unsafe {{ &raw const (*s).{field} }}));"
            );
        }
    }
    for name in &names.constants {
        let _ = writeln!(text, "println!(\"{name} {{}}\", {name} as i64);");
    }
    text + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_others_left_out() {
        let source = "\
//! a: b
use x::y;
pub(crate) const IBV_A: u32 = 1;
const OWN: u32 = 2;
constants! {
    IBV_B: c_int = 1 << 4;
}
#[repr(C)]
pub(crate) struct ibv_x {
    /// Where: here.
    pub(crate) one: u8,
    pub two: Option<fn(a: u8)>,
}
structs! {
    begin ibv_y {
        three: u8,
    }
}
struct ibv_z {
    _private: [u8; 0],
}
struct Own {
    four: u8,
}
#[cfg(test)]
const IBV_C: u32 = 3;
";
        let found = names(source);
        assert_eq!(found.constants, ["IBV_A", "IBV_B"]);
        let structure = |name: &str, fields: &[&str], whole| Structure {
            name: name.into(),
            fields: fields.iter().map(|f| (*f).into()).collect(),
            whole,
        };
        assert_eq!(
            found.structures,
            [structure("ibv_x", &["one", "two"], true), structure("ibv_y", &["three"], false)]
        );
        assert!(in_c(&found).contains("offsetof(struct ibv_x, two)"));
        assert!(!in_c(&found).contains("sizeof(struct ibv_y)"));
        assert!(in_rust(&found, Path::new("/a b/abi.rs")).contains("#[path = \"/a b/abi.rs\"]"));
    }
}
