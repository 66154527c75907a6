//! Archive of libcomity: library, header, and what pkg-config, CMake and Swift need.

use crate::{
    artefact::{Artefact, size},
    command::{VERSION, copy, pack},
    kit::Kit,
    target::Target,
};
use std::{fs, path::Path};
use tasks::{
    child::Task,
    place::{Scratch, root},
};

/// Pack the libcomity that was built with the wheel.
pub(crate) fn archive(kit: &Kit, target: &Target, out: &Path) -> Result<Artefact, String> {
    let name = format!("libcomity-{VERSION}-{}", target.triple);
    let scratch = Scratch::within(out, "library")?;
    let tree = scratch.join(&name);
    steps::lay_out_library(&tree, &target.built("libcomity_c.a"), &kit.library(target))?;
    copy(&root().join("LICENSE"), &tree.join("share/doc/comity/LICENSE"))?;
    let shared =
        tree.join("lib").join(if target.is_macos() { "libcomity.0.dylib" } else { "libcomity.so.0" });
    let inner = Some(size(&shared)?);
    let file = pack(&scratch.join(""), &name, out)?;
    let mut checks = "linked against the table of symbols".to_owned();
    if target.starts_here() {
        checks += &try_out(kit, target, &file)?;
    }
    Ok(Artefact { file, inner, ran: target.starts_here(), checks })
}

/// Unpack it elsewhere, and compile and run a program with it: shared, by this machine's compiler where it is for this machine.
fn try_out(kit: &Kit, target: &Target, file: &Path) -> Result<String, String> {
    let scratch = Scratch::new("library")?;
    Task::new("tar")
        .args(["-xzf"])
        .args([file])
        .args(["--strip-components=1", "-C"])
        .args([scratch.join("")])
        .run()?;
    let lib = scratch.join("lib");
    let program = scratch.join("hello");
    let flags = [format!("-I{}", scratch.join("include").display()), format!("-L{}", lib.display())];
    // Zig links programs for musl statically.
    let cc = if target.runs_here() {
        vec!["cc".into()]
    } else {
        [kit.library(target).cc, vec!["-dynamic".into()]].concat()
    };
    let (compiler, words) = cc.split_first().ok_or("there is no compiler for it")?;
    Task::new(compiler)
        .args(words)
        .args(["-o"])
        .args([&program])
        .args(["examples/c/hello.c"])
        .args(flags)
        .args(["-lcomity"])
        .run()?;
    let said = Task::new(&program).env("LD_LIBRARY_PATH", &lib).env("DYLD_LIBRARY_PATH", &lib).run()?;
    let text = fs::read_to_string(lib.join("pkgconfig/comity.pc")).map_err(|e| format!("comity.pc: {e}"))?;
    if !text.starts_with("prefix=${pcfiledir}/") {
        return Err(format!("comity.pc names a folder of the machine that built it:\n{text}"));
    }
    if said.trim().is_empty() {
        return Err("examples/c/hello.c says nothing".into());
    }
    Ok("; unpacked: `examples/c/hello.c` compiled and run on 1 rank".into())
}
