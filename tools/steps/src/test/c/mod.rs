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

use super::{jobs::comity, requirements::Ask, scope::Scope, step::Outcome};
use crate::c;
use std::path::{Path, PathBuf};
use tasks::{
    child::Task,
    place::{Scratch, program, root},
};

/// Linux's linker and tools.
pub(super) const ASKS: &[Ask] = DEEP_ASKS.split_at(7).0;
pub(super) const DEEP_ASKS: &[Ask] = &[
    Ask::Linux,
    Ask::Program("cc", "gcc"),
    Ask::Program("c++", "g++"),
    Ask::Program("nm", "binutils"),
    Ask::Program("pkg-config", "pkg-config"),
    Ask::Program("cmake", "cmake"),
    Ask::Program("make", "make"),
    // For JAX.
    Ask::Python,
];
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Libcomity as installed, and a folder for what is compiled against it.
pub(super) struct Installed {
    scratch: Scratch,
    prefix: PathBuf,
}

impl Installed {
    pub(super) fn new() -> Result<Self, String> {
        let scratch = Scratch::new("c")?;
        let prefix = scratch.join("prefix");
        c::install(&prefix, "debug")?;
        Ok(Self { scratch, prefix })
    }

    fn include(&self) -> String {
        format!("-I{}", self.prefix.join("include").display())
    }

    fn library(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Flags for it, from pkg-config.
    fn flags(&self) -> Result<Vec<String>, String> {
        let task = Task::new("pkg-config").args(["--cflags", "--libs", "comity"]);
        let said = task.env("PKG_CONFIG_PATH", self.library().join("pkgconfig")).run()?;
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
        Task::new(comity()).args(["launch", "-n", &n.to_string(), "--timeout", "100", "--"]).limit(130)
    }
}

/// C and C++ compilers that are here: GCC's, which must be, and LLVM's.
fn compilers() -> Vec<(&'static str, &'static str)> {
    let clang = program("clang").is_some().then_some(("clang", "clang++"));
    [Some(("cc", "c++")), clang].into_iter().flatten().collect()
}

pub(super) fn run(scope: &Scope) -> Outcome {
    let installed = Installed::new()?;
    let symbols = table::check(&installed)?;
    let ran = programs::run(&installed, scope)?;
    let mut examples = examples::run(&installed)?;
    if scope.deep {
        jax::run(&installed)?;
        examples += "; JAX on 2 and 4 ranks";
    }
    Ok(format!("{symbols} symbols; {ran}; {examples}"))
}

/// The programs of the tests.
pub(super) fn sources() -> PathBuf {
    root().join("crates/comity-c/tests/c")
}
