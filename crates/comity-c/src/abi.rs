//! The table of symbols and layouts, `abi.txt`: what a program that was compiled against an older header relies on.
//!
//! Within a version node (`COMITY_0`) lines are only added, and structs grow at their ends. Whoever changes or removes a line gives the
//! library a new node and a new soname.

use crate::{header, types::*};
use std::fmt::Write;

/// A struct's size and the places of its fields. The pattern without `..` keeps a field from being forgotten.
macro_rules! layout {
    ($out:ident, $name:ident { $($field:ident),* $(,)? }) => {{
        let _ = |all: $name| { let $name { $($field: _),* } = all; };
        writeln!($out, "struct {} {}", stringify!($name), size_of::<$name>()).unwrap();
        $(writeln!($out, "  {} {}", stringify!($field), std::mem::offset_of!($name, $field)).unwrap();)*
    }};
}

fn layouts() -> String {
    let mut out = String::new();
    layout!(
        out,
        comity_call {
            size,
            op,
            dtype,
            reduce,
            rank,
            source,
            tag,
            src,
            dst,
            count,
            recv_count,
            counts,
            recv_counts,
            place,
            reserved,
            stream,
            timeout,
            wire,
        }
    );
    layout!(
        out,
        comity_error_info {
            size,
            status,
            earlier,
            fatal,
            rank,
            pid,
            host,
            text,
            call,
            peer_call,
            differs,
            ranks,
            rank_count,
            timeout,
        }
    );
    layout!(out, comity_member { size, rank, reserved, pid, host, link });
    layout!(out, comity_stats { size, calls, errors, bytes_sent, suspicions, parked, longest_silence });
    layout!(out, comity_reform_options { size, fewest, store_decides, timeout });
    layout!(out, comity_departure { size, rank, reserved, pid, host, why });
    layout!(out, comity_buffer { data, count, dtype, reserved });
    out
}

/// Lines of the header from one that begins so to one that ends so.
fn parts<'a>(header: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    header.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The functions with their arguments, and the numbers of enums, as the header has them.
fn declared(header: &str) -> String {
    let plain: String = header.split("/**").map(|p| p.split_once("*/").map_or(p, |(_, rest)| rest)).collect();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::new();
    for body in parts(&plain, "typedef enum {", ";") {
        let (numbers, name) = body.split_once('}').unwrap();
        writeln!(out, "enum {}: {}", name.trim(), words(numbers).trim_end_matches(',')).unwrap();
    }
    for body in parts(&plain, "\ntypedef ", ";").filter(|b| b.contains("(*")) {
        writeln!(out, "callback {}", words(body)).unwrap();
    }
    let mut functions: Vec<_> = plain
        .split(';')
        .filter_map(|d| {
            let d = words(d.rsplit(['}', '{']).next()?);
            let d = d.strip_prefix("#endif // __cplusplus ").unwrap_or(&d).to_owned();
            (d.contains("comity_") && d.ends_with(')') && !d.starts_with("typedef")).then_some(d)
        })
        .collect();
    functions.sort_by_key(|d| d.split_once('(').map(|(n, _)| n.rsplit([' ', '*']).next().map(str::to_owned)));
    functions.iter().for_each(|f| writeln!(out, "function {f}").unwrap());
    out
}

const HEAD: &str = "\
Symbols and layouts that compiled programs rely on, on 64-bit systems. Lines may be added, and fields at the ends of structs.
A change of a line, or its removal, needs a new version node (COMITY_0) and soname (libcomity.so.0): see tools/steps/scripts/c-install.sh.

";

#[test]
fn the_table_is_current() {
    header::compare("abi.txt", &format!("{HEAD}{}{}", layouts(), declared(&header::generated())));
}

/// A name that C and the environment both have would be taken for the other; so would an operation for a reduction.
#[test]
fn enumerators_begin_with_their_type_and_are_no_settings() {
    let table = declared(&header::generated());
    let enums: Vec<_> = table.lines().filter_map(|l| l.strip_prefix("enum ")?.split_once(": ")).collect();
    assert_eq!(enums.len(), 6, "{enums:?}");
    for (name, numbers) in enums {
        let short = ["comity_status", "comity_dtype", "comity_reduce_op"].contains(&name);
        let begin = if short { "COMITY".into() } else { name.to_uppercase() };
        for enumerator in numbers.split(", ").filter_map(|n| n.split(' ').next()) {
            assert!(enumerator.starts_with(&format!("{begin}_")), "{enumerator} of {name}");
            assert!(
                comity::tools::VARIABLES.iter().all(|v| v.name != enumerator),
                "{enumerator} is a setting"
            );
        }
    }
}

#[test]
fn the_first_version_of_structs_is_known() {
    use crate::raw::Growing;
    assert!(comity_call::FIRST <= size_of::<comity_call>());
    assert_eq!(
        [comity_call::FIRST, comity_error_info::FIRST, comity_member::FIRST, comity_stats::FIRST],
        [104, 96, 40, 56]
    );
    assert_eq!([comity_reform_options::FIRST, comity_departure::FIRST], [24, 40]);
}
