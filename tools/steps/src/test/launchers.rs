//! `comity check` started by others than `comity launch`: by hand with torch's variables, by Open MPI, by MPICH.

mod faults;

use super::{
    jobs::{QUICK, comity, free_port, job_key, says, timed, together},
    requirements::Ask,
    scope::Scope,
    step::Outcome,
};
use faults::Launcher;
use tasks::child::Task;

pub(super) const ASKS: &[Ask] = &[
    Ask::Program("mpirun.openmpi", "openmpi-bin"),
    Ask::Program("mpiexec.mpich", "mpich"),
    Ask::Program("python3", "python3"),
];
const RANKS: usize = 4;

/// Launchers of MPI that Debian has.
const MPI: [Launcher; 2] = [
    Launcher {
        program: "mpirun.openmpi",
        flags: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        library: "libmpi.so.40",
        // It would not end for long: all operations, types and sizes.
        killed: &["check"],
    },
    Launcher {
        program: "mpiexec.mpich",
        flags: &[],
        library: "libmpich.so.12",
        // Of longer messages its UCX may end the rank that reads them (docs/transports-reference.md).
        killed: &["bench", "all_reduce", "--sizes", "1K", "--budget", "60"],
    },
];

pub(super) fn run(_: &Scope) -> Outcome {
    timed("4 ranks with torch's variables", torch)?;
    for mpi in &MPI {
        let launcher = mpi.program;
        let task = Task::new(launcher).args(mpi.flags).args(["-n", &RANKS.to_string()]).arg(comity());
        // No key is given: rank 0 shares one over what the launcher has.
        says(&format!("{RANKS} ranks under {launcher}"), task.args(["check", "--quick"]).limit(QUICK), &[])?;
        timed(&format!("what breaks under {launcher}"), || faults::check(mpi, &comity()))?;
    }
    Ok(format!("{RANKS} ranks with torch's variables, under Open MPI and MPICH"))
}

fn torch() -> Result<(), String> {
    let (_scratch, key) = job_key()?;
    // The port can be taken between the look and its use.
    for last in [false, false, true] {
        let port = free_port()?.to_string();
        let rank = |rank: usize| {
            let task =
                Task::new(comity()).args(["check", "--quick"]).limit(QUICK).env("COMITY_KEY_FILE", &key);
            let task = task.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
            task.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port)
        };
        match together((0..RANKS).map(rank)) {
            Err(e) if !last && e.contains("in use") => {}
            ended => return ended.map(drop),
        }
    }
    Ok(())
}
