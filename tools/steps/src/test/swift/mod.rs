//! The Swift package: built, tested and documented in a Debian that has Swift.
//!
//! ```text
//!   debian.rs  the Debian under target/, made once; commands in it
//!   build      libcomity installed, the package and its tests compiled: beside the jobs, for it only computes
//!   check      the tests, which start processes; examples under comity launch; the book's programs; format; DocC without a warning;
//!              deep: the manifest for older compilers
//!   snippets.rs  the examples in comments, compiled
//! ```

mod debian;
mod snippets;

use super::{
    jobs::{comity, fails, says},
    requirements::Ask,
    scope::Scope,
    step::Outcome,
};
use crate::c;
use debian::Debian;
use std::{fs, os::unix::fs::symlink, path::Path};
use tasks::{
    child::Task,
    place::{copy, make, make_anew, read, root, target, write},
};

/// The toolchain is that of Debian's packages.
pub(super) const ASKS: &[Ask] = &[
    Ask::Linux,
    Ask::Root,
    Ask::Program("debootstrap", "debootstrap"),
    Ask::Program("unshare", "util-linux"),
];

const PAGE: &str = "docs/start/swift.md";
/// Manifest for compilers before Swift 6.
const OLDER: &str = "Package@swift-5.9.swift";
/// Examples, on so many ranks, and the words of one of them.
const EXAMPLES: [(&str, usize, &str); 4] = [
    ("hello", 3, "rank 2 of 3: the sum is 3"),
    ("line", 2, "rank 1 of 2: y = 3.0 x + 1.0"),
    ("overlap", 3, "rank 2: 8 layers summed over 3 ranks, in all 108.0"),
    ("tensor-parallel", 4, "rank 3 of 4: 192 weights, differs from one rank by 0.0"),
];
/// Libraries whose documentation is built.
const LIBRARIES: [&str; 2] = ["Comity", "ComitySharding"];

/// The package, its tests and examples, compiled.
pub(super) fn build(_: &Scope) -> Outcome {
    compiled()?;
    Ok("the package, its tests and examples, without a warning".into())
}

/// The tests and all that needs ranks.
pub(super) fn check(scope: &Scope) -> Outcome {
    let debian = compiled()?;
    let lint = ["swift", "format", "lint", "--strict", "--recursive", "swift", "swift-mlx"];
    debian.task(&lint).args(["Package.swift", OLDER]).run()?;
    let out = debian.swift(&["test", "--skip-build"]).limit(400).echo().run()?;
    let tests = executed(&out).ok_or("the tests did not say how many there were")?;
    for (name, ranks, words) in EXAMPLES {
        says(
            &format!("the example {name}"),
            job(&debian, ranks, &format!("swift-build/debug/{name}")),
            &[words],
        )?;
    }
    digits(&debian)?;
    other_libraries(&debian)?;
    if scope.deep {
        older_compilers(&debian)?;
    }
    debian.document(&LIBRARIES)?;
    let snippets = snippets::compile(&debian)?;
    of_the_book()?;
    Ok(format!("{tests} tests; {} examples; DocC, {snippets} examples in it", EXAMPLES.len() + 1))
}

/// A job of a program under `target/`.
fn job(debian: &Debian, ranks: usize, program: &str) -> Task {
    let task = debian.task(&["env"]).arg(comity());
    let task = task.args(["launch", "-n", &ranks.to_string(), "--timeout", "100", "--"]);
    task.arg(target().join(program)).limit(130)
}

/// The example in Swift learns as the one in Rust: the first epoch has the same loss and accuracy.
fn digits(debian: &Debian) -> Result<(), String> {
    let swift = job(debian, 2, "swift-build/debug/digits").args(["data/digits.csv", "1"]).run()?;
    let rust =
        job(debian, 2, "debug/examples/digits").args(["--epochs", "1", "--data", "data/digits.csv"]).run()?;
    match (learnt(&swift), learnt(&rust)) {
        (Some(a), Some(b)) if a == b => Ok(()),
        _ => Err(format!("digits learns in Swift otherwise than in Rust:\n{swift}\n{rust}")),
    }
}

/// A program throws where libcomity is of another version, which it says with its own, also where that has nothing else; and where
/// there is none.
fn other_libraries(debian: &Debian) -> Result<(), String> {
    let folder = target().join("swift-other");
    make(&folder)?;
    let source = folder.join("version.swift");
    write(&source, "@_cdecl(\"comity_version\") public func version() -> UInt32 { 90_900 }\n")?;
    debian.task(&["swiftc", "-emit-library", "-o"]).args([&folder.join("libcomity.so.0"), &source]).run()?;
    let absent = "at top level: libcomity cannot be loaded: libcomity.so.0: cannot open shared object file";
    for (place, words) in [
        (folder.as_path(), "at top level: libcomity is of version 9.9.0, and this package is for"),
        (Path::new("/nowhere"), absent),
    ] {
        let library = format!("LD_LIBRARY_PATH={}", place.display());
        let task = debian.task(&["env", &library, "SWIFT_BACKTRACE=enable=no"]);
        fails(task.arg(target().join("swift-build/debug/hello")).run(), &[words])
            .map_err(|e| format!("with {library}: {e}"))?;
    }
    Ok(())
}

/// The libraries compile by the manifest for Swift 5.9, without a warning. The compiler is a newer one, in that language's mode.
fn older_compilers(debian: &Debian) -> Result<(), String> {
    let folder = target().join("swift-5.9");
    // Everything anew: a file that is not compiled again shows no warning.
    make_anew(&folder)?;
    copy(&root().join(OLDER), &folder.join("Package.swift"))?;
    // The header of libcomity lies in `crates`.
    for name in ["swift", "crates"] {
        symlink(root().join(name), folder.join(name)).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let out = debian.task(&["swift", "build", "--package-path"]).arg(&folder).limit(300).run()?;
    warned(&out).map_or(Ok(()), |line| Err(format!("{OLDER} does not compile without a warning: {line}")))
}

fn warned(out: &str) -> Option<&str> {
    out.lines().find(|l| l.contains("warning:") || l.contains("error:"))
}

/// Loss and accuracy of the first epoch.
fn learnt(out: &str) -> Option<[f64; 2]> {
    let after = |name: &str| out.split_once(name)?.1.split_whitespace().next()?.parse().ok();
    Some([after("loss ")?, after("accuracy ")?])
}

/// The Debian with everything compiled.
fn compiled() -> Result<Debian, String> {
    let debian = Debian::kept()?;
    tasks::build_tests()?;
    c::install(&debian::prefix(), "debug")?;
    let out = debian.swift(&["build", "--build-tests"]).limit(900).echo().run()?;
    // A target that is not compiled again has shown its warnings before, and failed then.
    if let Some(line) = warned(&out) {
        let _ = fs::remove_dir_all(debian::scratch());
        return Err(format!("the package does not compile without a warning: {line}"));
    }
    Ok(debian)
}

/// The number in XCTest's last line of totals, where none failed.
fn executed(out: &str) -> Option<usize> {
    let line = out.lines().rev().find(|l| l.trim_start().starts_with("Executed "))?;
    let count = line.split_whitespace().nth(1)?.parse().ok()?;
    (count > 0 && line.contains("with 0 failures")).then_some(count)
}

/// The page has the programs of two examples.
fn of_the_book() -> Result<(), String> {
    let page = read(PAGE)?;
    for name in ["hello", "line"] {
        let source = format!("swift/Examples/{name}/main.swift");
        let text = read(&source)?;
        let program = text.split_once("import Comity").map_or("", |(_, rest)| rest);
        if !page.contains(&format!("```swift\nimport Comity{program}```")) {
            return Err(format!("{PAGE} has another program than {source}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_understood() {
        let of = |last: &str| executed(&format!("\t Executed 2 tests, with 0 failures\n{last}\nbye\n"));
        assert_eq!(of("\t Executed 24 tests, with 0 failures (0 unexpected) in 3.0 (3.0) seconds"), Some(24));
        assert_eq!(of("\t Executed 24 tests, with 1 failures (0 unexpected) in 3.0 (3.0) seconds"), None);
        assert_eq!(executed("nothing"), None);
        let line = "[0] epoch   1  loss 1.9367  accuracy 0.8162  248 samples/s";
        assert_eq!((learnt(line), learnt("loss")), (Some([1.9367, 0.8162]), None));
    }
}
