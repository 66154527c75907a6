//! The steps of the gate and of the deep checks, and the other tasks of `cargo xtask` that are no tool of their own: the quick check,
//! and laying out the software RDMA device.

mod c;
mod softverbs;
mod test;

pub use c::{LibraryKit, lay_out as lay_out_library, run as c_install};
pub use softverbs::lay_out as softverbs;
use tasks::child::Task;
pub use test::{StepChoice, run as test, step};

/// `cargo xtask check`: formatting, clippy and the tests of what changed.
pub fn check(args: &[&str]) -> Result<(), String> {
    Task::new("python3").arg("tools/check.py").args(args).limit(3600).echo().run().map(drop)
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
