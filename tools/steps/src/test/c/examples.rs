//! `examples/c`, by pkg-config and by CMake, and the program of the book.

use super::{Installed, programs::said};
use std::fs;
use tasks::{child::Task, place::root};

const PAGE: &str = "docs/start/c.md";

/// Each built both ways, and run on 2 ranks.
pub(super) fn run(installed: &Installed) -> Result<String, String> {
    let folder = root().join("examples/c");
    let words = [
        ("hello", "rank 1 of 2: the sum is 1"),
        ("allreduce", "floats averaged over 2 ranks"),
        ("overlap", "8 layers added up over 2 ranks"),
        ("wrapper", "all right on 2 ranks"),
    ];
    for (name, says) in words {
        let program = if name == "wrapper" {
            installed.compile("c++", &["-std=c++11"], &folder.join("wrapper.cpp"), name)?
        } else {
            installed.compile("cc", &["-std=c99"], &folder.join(format!("{name}.c")), name)?
        };
        said(&format!("{name}, by pkg-config"), installed.job(2).args([program]), says)?;
    }
    let build = installed.scratch.join("cmake");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.prefix.display());
    let cmake = Task::new("cmake").args(["-S"]).args([&folder]).args(["-B"]).args([&build]);
    cmake.args([prefix, "-G".into(), "Unix Makefiles".into()]).limit(120).run()?;
    Task::new("cmake").args(["--build"]).args([&build]).limit(120).run()?;
    for (name, says) in words.into_iter().chain([("hello_static", words[0].1)]) {
        said(&format!("{name}, by CMake"), installed.job(2).args([build.join(name)]), says)?;
    }
    of_the_book(installed)?;
    Ok("5 examples by pkg-config and CMake, and the book's".into())
}

/// The page has `examples/c/hello.c`, and its command for it works.
fn of_the_book(installed: &Installed) -> Result<(), String> {
    let page = fs::read_to_string(root().join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))?;
    let hello = fs::read_to_string(root().join("examples/c/hello.c")).map_err(|e| format!("hello.c: {e}"))?;
    let program = hello.split_once("#include").map_or("", |(_, rest)| rest);
    if !page.contains(&format!("```c\n#include{program}```")) {
        return Err(format!("{PAGE} has another program than examples/c/hello.c"));
    }
    let command =
        page.lines().find(|l| l.starts_with("cc ")).ok_or_else(|| format!("{PAGE} has no `cc` command"))?;
    fs::write(installed.scratch.join("hello.c"), &hello).map_err(|e| format!("hello.c: {e}"))?;
    let library = installed.library();
    let task = Task::new("sh").args(["-c", command]).folder(&installed.scratch.join("."));
    task.env("PKG_CONFIG_PATH", library.join("pkgconfig").as_os_str()).run()?;
    let job =
        installed.job(2).args([installed.scratch.join("hello")]).env("LD_LIBRARY_PATH", library.as_os_str());
    said("the book's program", job, "rank 0 of 2: the sum is 1")
}
