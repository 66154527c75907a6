//! Programs that make and check a release, in a Python environment of their own.

use crate::target::Target;
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use steps::LibraryKit;
use tasks::{
    child::Task,
    place::{program, read, root, target, write},
};

const REQUIREMENTS: &str = "tools/dist/requirements.txt";
/// Oldest macOS. Without it zig takes that of its own libraries.
const MACOS: &str = "11.0";
/// Cargo that maturin calls.
const CARGO: &str = "tools/dist/cargo";

/// Variable with folders of libraries. Where rustup starts a program of a compiler, it sets that.
const LIBRARY_PATH: &str = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// Environment with the programs of [`REQUIREMENTS`].
#[derive(Debug)]
pub(crate) struct Kit {
    venv: PathBuf,
    /// Rust's program that strips files of every target, and the folder of the libraries that it needs.
    objcopy: PathBuf,
    libraries: PathBuf,
}

impl Kit {
    /// Install what is lacking. It is kept between runs.
    pub(crate) fn prepare() -> Result<Self, String> {
        let venv = target().join("dist-kit");
        let (objcopy, libraries) = objcopy()?;
        environment(&venv, &venv.join("installed.txt"), REQUIREMENTS)?;
        Ok(Self { venv, objcopy, libraries })
    }

    /// Its Python.
    pub(crate) fn python(&self) -> Task {
        self.with_path(Task::new(self.venv.join("bin/python")))
    }

    /// A program of it.
    pub(crate) fn program(&self, name: &str) -> Task {
        self.with_path(Task::new(self.venv.join("bin").join(name)))
    }

    /// The task, which finds zig.
    fn with_path(&self, task: Task) -> Task {
        let old = env::var_os("PATH").unwrap_or_default();
        let all = [self.venv.join("bin")].into_iter().chain(env::split_paths(&old));
        match env::join_paths(all) {
            Ok(path) => task.env("PATH", path),
            Err(_) => task,
        }
    }

    /// maturin, whose cargo builds the command too, for this target.
    pub(crate) fn maturin(&self, target: &Target) -> Task {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let task = self.program("maturin").env("CARGO", root().join(CARGO)).env("DIST_CARGO", cargo);
        let task = task.env("DIST_ZIGBUILD", self.venv.join("bin/cargo-zigbuild"));
        task.env("DIST_TARGET", target.zig)
            .env("MACOSX_DEPLOYMENT_TARGET", MACOS)
            .env("DIST_OBJCOPY", &self.objcopy)
            .env("DIST_LIBRARIES", &self.libraries)
            .env("DIST_COMMAND", target.built("comity"))
            .env("DIST_STRIP", if target.is_macos() { "--discard-all" } else { "--strip-all" })
            .env("DIST_EXTENSION", target.built(target.extension()))
    }

    /// Maker of libcomity for this target.
    pub(crate) fn library(&self, target: &Target) -> LibraryKit {
        let python = self.venv.join("bin/python").display().to_string();
        let cc = [&python, "-m", "ziglang", "cc", "-target", target.cc].map(String::from).to_vec();
        let libraries = format!("{LIBRARY_PATH}={}", self.libraries.display());
        let strip = vec!["env".into(), libraries, self.objcopy.display().to_string(), "--strip-debug".into()];
        LibraryKit { macos: target.is_macos(), cc, strip: Some(strip) }
    }
}

/// Install into a Python environment what the file lists, unless the stamp says that it is there.
pub(crate) fn environment(venv: &Path, stamp: &Path, requirements: &str) -> Result<(), String> {
    let wanted = read(requirements)?;
    if fs::read_to_string(stamp).ok().as_ref() == Some(&wanted) {
        return Ok(());
    }
    println!("installing what {requirements} lists");
    let python = program("python3").ok_or("there is no python3")?;
    Task::new(python).args(["-m", "venv", "--clear"]).args([venv]).limit(600).run()?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", requirements];
    Task::new(venv.join("bin/python")).args(pip).limit(900).run()?;
    write(stamp, &wanted)
}

/// Install Rust's own library for this target where rustup can.
pub(crate) fn add(target: &Target) -> Result<(), String> {
    let sysroot = rustc().args(["--print", "sysroot"]).run()?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(target.triple).join("lib");
    if library.is_dir() {
        return Ok(());
    }
    println!("installing Rust's library for {}", target.triple);
    Task::new("rustup").args(["target", "add", target.triple]).limit(600).run().map(drop)
}

fn rustc() -> Task {
    Task::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// rustc's own copy of LLVM's program, and the folder of its libraries.
fn objcopy() -> Result<(PathBuf, PathBuf), String> {
    let sysroot = rustc().args(["--print", "sysroot"]).run()?;
    let host = rustc().args(["--print", "host-tuple"]).run()?;
    let libraries = Path::new(sysroot.trim()).join("lib");
    let file = libraries.join("rustlib").join(host.trim()).join("bin/rust-objcopy");
    if file.is_file() { Ok((file, libraries)) } else { Err(format!("rustc has no {}", file.display())) }
}
