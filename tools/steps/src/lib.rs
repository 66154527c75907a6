//! The steps of the gate and of the deep checks, and the other tasks of `cargo xtask` that are no tool of their own: the quick check,
//! and laying out the software RDMA device.

mod c;
mod softverbs;
mod test;

pub use c::{LibraryKit, lay_out as lay_out_library};
use std::path::Path;
use tasks::child::Task;

/// Reason why a task did not end well.
#[derive(Debug)]
pub enum TaskError {
    /// The words are no task; what is wrong with them.
    Usage(String),
    /// It failed, and how.
    Failed(String),
}

impl From<String> for TaskError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// `cargo xtask check`: formatting, clippy and the tests of what changed.
pub fn check(args: &[&str]) -> Result<(), TaskError> {
    Task::new("python3").arg("tools/check.py").args(args).limit(3600).echo().run()?;
    Ok(())
}

/// `cargo xtask test`: the gate, or the deep checks.
pub fn test(args: &[&str]) -> Result<(), TaskError> {
    Ok(test::run(&test::StepChoice::parse(args).map_err(TaskError::Usage)?)?)
}

/// Run a step of [`test()`], which starts it as a process of its own.
pub fn step(args: &[&str]) -> Result<(), TaskError> {
    Ok(test::step(args)?)
}

/// Install what is lacking of these: a program, or a file by its whole path, and the Debian package that holds it.
///
/// # Errors
/// Why it cannot be had here.
pub fn install_programs(wanted: &[(&'static str, &'static str)]) -> Result<(), String> {
    test::install_programs(wanted).map_err(test::Why::text)
}

/// Python with what the tests need, at `place::built("python", "")`.
///
/// # Errors
/// Why it cannot be had here.
pub fn prepare_python() -> Result<(), String> {
    test::prepare_python().map_err(test::Why::text)
}

/// The package as released, in that Python.
///
/// # Errors
/// It cannot be built.
pub fn released_python() -> Result<(), String> {
    test::install_package("python", true)
}

/// `cargo xtask c-install`: build libcomity and install it with its header.
pub fn c_install(args: &[&str]) -> Result<(), TaskError> {
    Ok(c::run(args)?)
}

/// `cargo xtask softverbs`: build the software RDMA device and lay it out in `folder`.
pub fn softverbs(folder: &Path) -> Result<(), TaskError> {
    Ok(softverbs::lay_out(folder)?)
}
