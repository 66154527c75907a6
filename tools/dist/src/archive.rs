//! Archives of a release: the command, laid out as the folder that it is installed into (program, pages for `man`, completions);
//! libcomity with its header and what pkg-config, CMake and Swift need; and the book.

use crate::{
    artefact::{Artefact, Kind, hold, size},
    kit::{Kit, environment},
    target::Target,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{self, Scratch, built, make, root},
};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Shell, and the file in which it looks for completions.
pub(crate) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/comity"),
    ("zsh", "share/zsh/site-functions/_comity"),
    ("fish", "share/fish/vendor_completions.d/comity.fish"),
];
/// Programs that build the book.
const BOOK: &str = "docs/requirements.txt";

/// Make the archive of a command that was built, and run what it holds where that can run.
pub(crate) fn command(target: &Target, out: &Path) -> Result<Artefact, String> {
    let command = target.built("comity");
    let inner = size(&command)?;
    if !target.is_macos() {
        find_loader(&fs::read(&command).map_err(|e| format!("cannot read {}: {e}", command.display()))?)?;
    }
    let name = format!("comity-{VERSION}-{}", target.triple);
    let scratch = Scratch::within(out, "command")?;
    let tree = scratch.join(&name);
    copy(&command, &tree.join("bin/comity"))?;
    for file in ["LICENSE", "README.md"] {
        copy(&root().join(file), &tree.join("share/doc/comity").join(file))?;
    }
    write_manual(target, &tree, out)?;
    let file = pack(&scratch.join(""), &name, out)?;
    let mut checks = "pages for man; completions for bash, zsh, fish".to_owned();
    if target.starts_here() {
        checks += &try_command(&file)?;
    }
    // Last, so that a command that is too large has been tried.
    hold(Kind::Command, inner)?;
    Ok(Artefact { file, inner: Some(inner), ran: target.starts_here(), checks })
}

/// Refuse a program for Linux that names no loader behind its headers: it is static, and could load no library of MPI, NCCL or RDMA.
fn find_loader(program: &[u8]) -> Result<(), String> {
    const LOADER: &[u8] = b"/ld-";
    let head = program.get(..4096).unwrap_or(program);
    let has = head.windows(LOADER.len()).any(|w| w == LOADER);
    has.then_some(())
        .ok_or_else(|| "the command is static: it could load no library of MPI, NCCL or RDMA".into())
}

/// Pages and completions. They are the same on every target, so where the command does not run, they are taken from this machine's archive
/// beside it, or that of the tests writes them.
fn write_manual(target: &Target, tree: &Path, out: &Path) -> Result<(), String> {
    let own = Target::own().map(|own| format!("comity-{VERSION}-{}", own.triple));
    let beside = own.as_ref().map(|name| (name, out.join(format!("{name}.tar.gz"))));
    let writer = if target.runs_here() {
        target.built("comity")
    } else if let Ok((name, archive)) = beside
        && archive.is_file()
    {
        let unpack = Task::new("tar").args(["--strip-components=1", "-C"]).args([tree]).args(["-xzf"]);
        return unpack.args([archive]).args([format!("{name}/share")]).run().map(drop);
    } else {
        Task::cargo().args(["build", "-p", "comity-cli"]).limit(3600).echo().run()?;
        built("debug", "comity")
    };
    Task::new(&writer).args(["man", "--output"]).args([tree.join("share/man/man1")]).run()?;
    for (shell, file) in COMPLETIONS {
        let text = Task::new(&writer).args(["completions", shell]).run()?;
        write(&tree.join(file), &text)?;
    }
    Ok(())
}

/// Unpack it elsewhere, and run it.
fn try_command(file: &Path) -> Result<String, String> {
    let scratch = Scratch::new("command")?;
    unpack(file, &scratch.join(""))?;
    let comity = scratch.join("bin/comity");
    let said = Task::new(&comity).args(["--version"]).run()?;
    if !said.contains(VERSION) {
        return Err(format!("`comity --version` says {said:?}, not {VERSION}"));
    }
    let check = [comity.as_os_str(), "check".as_ref(), "--quick".as_ref()];
    Task::new(&comity).args(["launch", "-n", "2", "--"]).args(check).limit(300).run()?;
    let page = scratch.join("share/man/man1/comity-launch.1");
    if !page.is_file() {
        return Err("the archive has no share/man/man1/comity-launch.1".into());
    }
    Ok("; unpacked: `comity --version`, `comity check --quick` on 2 ranks".into())
}

/// Pack the libcomity that was built with the wheel.
pub(crate) fn library(kit: &Kit, target: &Target, out: &Path) -> Result<Artefact, String> {
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
        checks += &try_library(kit, target, &file)?;
    }
    Ok(Artefact { file, inner, ran: target.starts_here(), checks })
}

/// Unpack it elsewhere, and compile and run a program with it: shared, by this machine's compiler where it is for this machine.
fn try_library(kit: &Kit, target: &Target, file: &Path) -> Result<String, String> {
    let scratch = Scratch::new("library")?;
    unpack(file, &scratch.join(""))?;
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

/// Build the book as a site, pages that a browser reads from a server or from files, where a broken link or heading is an error, and pack it.
pub(crate) fn book(out: &Path) -> Result<(), String> {
    // The folder in which the tests build it too.
    let venv = built("book", "python");
    environment(&venv, &built("book", "installed.txt"), BOOK)?;
    Task::new(venv.join("bin/properdocs")).args(["build", "--strict", "--quiet"]).run()?;
    let name = format!("comity-{VERSION}-book");
    let scratch = Scratch::within(out, "book")?;
    let site = built("book", "site");
    if !site.join("search/search_index.json").is_file() {
        return Err(format!("{} has no index for the search", site.display()));
    }
    fs::rename(&site, scratch.join(&name)).map_err(|e| format!("cannot move {}: {e}", site.display()))?;
    let file = pack(&scratch.join(""), &name, out)?;
    println!("{}", file.display());
    Ok(())
}

/// Pack the folder of this name, with nothing in it of who packed it, or when.
pub(crate) fn pack(within: &Path, name: &str, out: &Path) -> Result<PathBuf, String> {
    let file = out.join(format!("{name}.tar.gz"));
    let mut task = Task::new("tar").args(["-C"]).args([within]);
    // BSD's tar has no such flags; there the archive is the same in all but its times.
    if cfg!(target_os = "linux") {
        task = task.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    }
    task.args(["-czf"]).args([&file]).args([name]).limit(600).run()?;
    Ok(file)
}

/// Unpack an archive into a folder, without the name of its own.
fn unpack(file: &Path, to: &Path) -> Result<(), String> {
    Task::new("tar")
        .args(["-xzf"])
        .args([file])
        .args(["--strip-components=1", "-C"])
        .args([to])
        .run()
        .map(drop)
}

/// Copy a file, and make its folder.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make(to.parent().unwrap_or(to))?;
    place::copy(from, to)
}

/// Write a file, and make its folder.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), String> {
    make(file.parent().unwrap_or(file))?;
    place::write(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TARGETS;

    #[test]
    fn a_static_command_is_refused() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(find_loader(&own).is_ok(), cfg!(target_os = "linux"));
        assert!(find_loader(b"\x7fELF and code").unwrap_err().contains("static"));
    }

    #[test]
    fn pages_of_another_target_are_those_of_this_machine() {
        let scratch = Scratch::new("pages").unwrap();
        let name = format!("comity-{VERSION}-{}", Target::own().unwrap().triple);
        write(&scratch.join(&name).join("share/man/man1/comity.1"), "a page").unwrap();
        write(&scratch.join(&name).join("bin/comity"), "a program").unwrap();
        let out = scratch.join("out");
        let tree = scratch.join("tree");
        fs::create_dir(&out).unwrap();
        fs::create_dir(&tree).unwrap();
        pack(&scratch.join(""), &name, &out).unwrap();
        let other = TARGETS.iter().find(|t| !t.runs_here()).unwrap();
        write_manual(other, &tree, &out).unwrap();
        assert_eq!(fs::read_to_string(tree.join("share/man/man1/comity.1")).unwrap(), "a page");
        assert!(!tree.join("bin").exists());
    }
}
