//! JAX's own collectives over Comity (`examples/jax`), beside its gloo: PyPI's jaxlib loads the wrapper by `MPITRAMPOLINE_LIB`.

use super::{Installed, STRICT};
use crate::test::{
    jobs::{free_port, says},
    python,
};
use tasks::{child::Task, place::root};

pub(super) fn run(installed: &Installed) -> Result<(), String> {
    let folder = root().join("examples/jax");
    let library = installed.scratch.join("libcomity_mpi.so");
    let rpath = format!("-Wl,-rpath,{}", installed.library().display());
    let task = Task::new("cc").args(["-shared", "-fPIC", "-pthread", &rpath]).args(&STRICT[..2]);
    task.args([folder.join("mpiwrapper.c")]).args(["-o"]).args([&library]).args(installed.flags()?).run()?;
    for (n, collectives) in [(2, "mpi"), (4, "mpi"), (2, "gloo")] {
        let at = format!("127.0.0.1:{}", free_port()?);
        let task = installed.job(n).args([python::interpreter()]).args([folder.join("psum.py")]);
        let task = task.args([at.as_str(), collectives]).env("MPITRAMPOLINE_LIB", &library);
        let task = task.env("PYTHONDONTWRITEBYTECODE", "1");
        let words = format!("all right on rank {} of {n}", n - 1);
        says(&format!("JAX on {n} ranks, {collectives}"), task, &[&words])?;
    }
    Ok(())
}
