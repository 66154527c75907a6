//! Ray's actors over Comity: a Ray of its own on this machine, in namespaces. Ray listens on every address and starts some ten processes:
//! so its network is one of loopback alone, and what is left of it ends with the namespace of its processes. `python/suites/ray_suite.py` has the cases.

use super::{Done, Outcome, missing, python, scope::Scope};
use tasks::{
    child::Task,
    place::{Scratch, program},
};

const REQUIREMENTS: &str = "python/suites/ray.txt";
const SUITE: &str = "python/suites/ray_suite.py";
/// Puts something small in the place of CUDA's libraries.
const WITHOUT_CUDA: &str = "python/tests/without_cuda.py";
const IMPORTS: &str = "import ray.util.collective, torch";
/// Seconds. Half a minute on two free cores; on busy ones Ray takes as long to start.
const LIMIT: u64 = 1800;

pub(super) fn check(_: &Scope) -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Done::NotRun("the packages are those of Linux on x86_64".into()));
    }
    if program("ip").is_none() || program("unshare").is_none() || !rustix::process::geteuid().is_root() {
        return missing("this needs root, ip (package iproute2) and unshare (util-linux)".into());
    }
    let python = match python::apart("ray", REQUIREMENTS, &[&[WITHOUT_CUDA], &["-c", IMPORTS]])? {
        Ok(python) => python,
        Err(why) => return missing(why),
    };
    python::install_into(&python, false)?;
    // A short name: Ray makes Unix sockets deep in it.
    let scratch = Scratch::new("ray").map_err(|e| format!("cannot make a folder for Ray: {e}"))?;
    let folder = scratch.join("");
    // The shell is the first process there: Ray takes a parent with that number for one that has died.
    let script = "ip link set lo up && \"$0\" \"$@\"; exit $?";
    let said = Task::new("unshare")
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script])
        .args([python.as_os_str(), SUITE.as_ref(), "--folder".as_ref(), folder.as_os_str()])
        // Ray keeps a token there.
        .env("HOME", &folder)
        // Ray gives its own start half a minute, which a busy machine exceeds.
        .env("RAY_raylet_start_wait_time_s", "300")
        .limit(LIMIT)
        .echo()
        .run()?;
    let words: Vec<_> = said.lines().filter_map(|l| l.strip_prefix("=> ")).collect();
    if words.is_empty() {
        return Err(format!("{SUITE} counted nothing"));
    }
    Ok(Done::Passed(words.join("; ")))
}
