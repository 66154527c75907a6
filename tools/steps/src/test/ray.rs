//! Ray's actors over Comity: a Ray of its own on this machine, in namespaces. Ray listens on every address and starts some ten processes:
//! so its network is one of loopback alone, and what is left of it ends with the namespace of its processes. `python/suites/ray_suite.py`
//! has the cases.

use super::{
    python,
    requirements::Ask,
    scope::Scope,
    step::{Outcome, note},
};
use tasks::{child::Task, place::Scratch};

pub(super) const ASKS: &[Ask] =
    &[Ask::X86, Ask::Root, Ask::Program("ip", "iproute2"), Ask::Program("unshare", "util-linux")];

pub(super) fn run(_: &Scope) -> Outcome {
    let after: [&[&str]; 2] = [&[python::WITHOUT_CUDA], &["-c", "import ray.util.collective, torch"]];
    let python = python::apart("ray", "python/suites/ray.txt", &after)?;
    python::install_into(&python, false)?;
    // A short name: Ray makes Unix sockets deep in it, and keeps a token there.
    let scratch = Scratch::new("ray")?;
    let folder = scratch.join("");
    // The shell is the first process there: Ray takes a parent with that number for one that has died.
    let script = "ip link set lo up && \"$0\" \"$@\"; exit $?";
    let task = Task::new("unshare")
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script])
        .arg(python)
        .args(["python/suites/ray_suite.py", "--folder"])
        .arg(&folder)
        .env("HOME", &folder)
        // Ray gives its own start half a minute, which a busy machine exceeds.
        .env("RAY_raylet_start_wait_time_s", "300");
    Ok(note(&task.limit(1800).echo().run()?))
}
