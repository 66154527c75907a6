//! The software RDMA device, built and laid out under the names that programs load.

use std::{env::consts::DLL_SUFFIX, fs, path::Path};
use tasks::{
    child::Task,
    place::{built, copy, make},
};

/// Names that programs load: rdma-core's, and the one on macOS.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdma.dylib"];

/// `cargo xtask softverbs`: build the software RDMA device and lay it out in `folder`, for `LD_LIBRARY_PATH`.
pub fn lay_out(folder: &Path) -> Result<(), String> {
    Task::cargo().args(["build", "-p", "softverbs"]).limit(600).run()?;
    lay_out_built(folder)
}

/// The same, of the build of all that tests use.
pub(crate) fn lay_out_built(folder: &Path) -> Result<(), String> {
    let library = built("debug", &format!("libsoftverbs{DLL_SUFFIX}"));
    make(folder)?;
    for name in NAMES {
        // A new file in the old one's place: a program that has the old one open keeps it.
        let fresh = folder.join(format!("{name}.new"));
        copy(&library, &fresh)?;
        fs::rename(&fresh, folder.join(name)).map_err(|e| format!("{}: {e}", fresh.display()))?;
    }
    Ok(())
}
