//! `examples/c`, by pkg-config and by CMake, and the program of the book.

use super::{Installed, STRICT, sources};
use crate::test::jobs::{fails, says};
use std::path::Path;
use tasks::{
    child::Task,
    place::{read, root, write},
};

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
    for (name, word) in words {
        let program = if name == "wrapper" {
            installed.compile("c++", &["-std=c++11"], &folder.join("wrapper.cpp"), name)?
        } else {
            installed.compile("cc", &["-std=c99"], &folder.join(format!("{name}.c")), name)?
        };
        says(&format!("{name}, by pkg-config"), installed.job(2).arg(program), &[word])?;
    }
    let build = installed.scratch.join("cmake");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.prefix.display());
    let cmake = Task::new("cmake").arg("-S").arg(&folder).arg("-B").arg(&build);
    cmake.args([&prefix, "-G", "Unix Makefiles"]).run()?;
    Task::new("cmake").arg("--build").arg(&build).run()?;
    for (name, word) in words.into_iter().chain([("hello_static", words[0].1)]) {
        says(&format!("{name}, by CMake"), installed.job(2).arg(build.join(name)), &[word])?;
    }
    of_the_book(installed)?;
    ggml(installed, &folder.join("ggml.c"))?;
    Ok("5 examples by pkg-config and CMake, the book's, and ggml's communicator".into())
}

/// The communicator as a library, loaded by name as ggml finds it, over a stand-in for ggml.
fn ggml(installed: &Installed, source: &Path) -> Result<(), String> {
    let headers = format!("-I{}", sources().join("ggml").display());
    let library = installed.scratch.join("libcomity-ggml.so");
    let rpath = format!("-Wl,-rpath,{}", installed.library().display());
    let task = Task::new("cc").args(["-std=c99", "-shared", "-fPIC", &headers]).args(STRICT);
    task.args([source, Path::new("-o"), &library]).args(installed.flags()?).args([&rpath]).run()?;
    let program = installed.compile("cc", &["-std=gnu99", &headers], &sources().join("ggml.c"), "ggml")?;
    let job = |ranks: usize| installed.job(ranks).args([&program, &library]);
    says("ggml's communicator, no launcher", Task::new(&program).arg(&library), &["without a launcher"])?;
    says("the same, 1 rank", job(1), &["added up on rank 0 of 1"])?;
    says("the same, 2 ranks", job(2), &["added up on rank 1 of 2"])?;
    fails(job(2).arg("refuse").run(), &["adds up contiguous tensors of F32 only"]).map(drop)
}

/// The page has `examples/c/hello.c`, and its command for it works; its configuration compiles.
fn of_the_book(installed: &Installed) -> Result<(), String> {
    let page = read(PAGE)?;
    let hello = read("examples/c/hello.c")?;
    let program = hello.split_once("#include").map_or("", |(_, rest)| rest);
    if !page.contains(&format!("```c\n#include{program}```")) {
        return Err(format!("{PAGE} has another program than examples/c/hello.c"));
    }
    let commands: Vec<_> = page.lines().filter(|l| l.starts_with("cc hello.c ")).collect();
    let [shared, inside] = commands.as_slice() else {
        return Err(format!("{PAGE} has other commands for hello.c than one for each library"));
    };
    let configured = page.split("```c\n").nth(2).and_then(|rest| rest.split("```").next());
    let configured = configured.ok_or_else(|| format!("{PAGE} has no second program"))?;
    let file = installed.scratch.join("configured.c");
    let text = format!(
        "#include <comity.h>\n#include <stdio.h>\nint main(void) {{\nint rank = 0, size = 1;\n{configured}\nreturn comity_group_free(group);\n}}\n"
    );
    write(&file, text)?;
    installed.compile("cc", &["-std=c99"], &file, "configured")?;
    write(installed.scratch.join("hello.c"), &hello)?;
    let library = installed.library();
    for (command, path, which) in
        [(shared, library.as_path(), "shared"), (inside, Path::new(""), "inside it")]
    {
        let task = Task::sh(command).folder(&installed.scratch.join("."));
        task.env("PKG_CONFIG_PATH", library.join("pkgconfig")).run()?;
        let job = installed.job(2).args([installed.scratch.join("hello")]);
        let job = job.env("LD_LIBRARY_PATH", path.as_os_str());
        says(&format!("the book's program, library {which}"), job, &["rank 0 of 2: the sum is 1"])?;
    }
    Ok(())
}
