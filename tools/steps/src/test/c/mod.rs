//! The C interface: installed as users install it, compiled and run as they would.
//!
//! ```text
//!   install ── table.rs     what it exports, and how structs lie, against crates/comity-c/abi.txt
//!           ── programs.rs  the programs of crates/comity-c/tests/c, as jobs
//!           ── examples.rs  examples/c, by pkg-config and by CMake
//!           ── jax.rs       deep: examples/jax, with JAX from PyPI
//! ```

mod examples;
mod jax;
mod programs;
mod table;

use super::{Done, Outcome, missing, scope::Scope};
use crate::c;
use std::path::{Path, PathBuf};
use tasks::{
    child::Task,
    place::{Scratch, built, program, root},
};

/// Programs that the step needs, and Debian's package for each.
const PROGRAMS: [(&str, &str); 6] = [
    ("cc", "gcc"),
    ("c++", "g++"),
    ("nm", "binutils"),
    ("pkg-config", "pkg-config"),
    ("cmake", "cmake"),
    ("make", "make"),
];
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Libcomity as installed, and a folder for what is compiled against it.
pub(super) struct Installed {
    scratch: Scratch,
    prefix: PathBuf,
    comity: PathBuf,
}

impl Installed {
    pub(super) fn new() -> Result<Self, String> {
        tasks::build_tests()?;
        let scratch = Scratch::new("c").map_err(|e| format!("cannot make a folder: {e}"))?;
        let prefix = scratch.join("prefix");
        c::install(&prefix, "debug")?;
        Ok(Self { scratch, prefix, comity: built("debug", "comity") })
    }

    fn include(&self) -> String {
        format!("-I{}", self.prefix.join("include").display())
    }

    fn library(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Flags for it, from pkg-config.
    fn flags(&self) -> Result<Vec<String>, String> {
        let path = self.library().join("pkgconfig").display().to_string();
        let said = Task::new("pkg-config")
            .args(["--cflags", "--libs", "comity"])
            .env("PKG_CONFIG_PATH", path)
            .run()?;
        Ok(said.split_whitespace().map(str::to_owned).collect())
    }

    /// Compile one file to a program.
    pub(super) fn compile(
        &self,
        compiler: &str,
        flags: &[&str],
        file: &Path,
        name: &str,
    ) -> Result<PathBuf, String> {
        let out = self.scratch.join(name);
        let rpath = format!("-Wl,-rpath,{}", self.library().display());
        let task =
            Task::new(compiler).args(flags).args(["-g"]).args(STRICT).args([file, Path::new("-o"), &out]);
        task.args(self.flags()?).args(["-pthread", "-ldl", &rpath]).run()?;
        Ok(out)
    }

    /// A job of `n` ranks.
    pub(super) fn job(&self, n: usize) -> Task {
        Task::new(&self.comity).args(["launch", "-n", &n.to_string(), "--timeout", "100", "--"]).limit(130)
    }
}

/// C and C++ compilers that are here: GCC's, which must be, and LLVM's.
fn compilers() -> Vec<(&'static str, &'static str)> {
    let clang = program("clang").is_some().then_some(("clang", "clang++"));
    [Some(("cc", "c++")), clang].into_iter().flatten().collect()
}

/// The programs that are not there, in words.
pub(super) fn lacking() -> Option<String> {
    let lacking = PROGRAMS.into_iter().filter(|(name, _)| program(name).is_none());
    let lacking: Vec<_> =
        lacking.map(|(name, package)| format!("{name} (Debian's package {package})")).collect();
    if lacking.is_empty() { None } else { Some(format!("not installed: {}", lacking.join(", "))) }
}

pub(super) fn run(scope: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("the tests know Linux's linker and tools only".into()));
    }
    if let Some(why) = lacking() {
        return missing(why);
    }
    let installed = Installed::new()?;
    let symbols = table::check(&installed)?;
    let ran = programs::run(&installed, scope)?;
    let mut examples = examples::run(&installed)?;
    if scope.deep {
        jax::run(&installed)?;
        examples += "; JAX on 2 and 4 ranks";
    }
    Ok(Done::Passed(format!("{symbols} symbols; {ran}; {examples}")))
}

/// The programs of the tests.
pub(super) fn sources() -> PathBuf {
    root().join("crates/comity-c/tests/c")
}
