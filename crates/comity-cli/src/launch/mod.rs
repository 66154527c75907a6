//! `comity launch`: what is said before a job runs. Its flags are the fields of the launcher's request (`comity-launch`).
mod flags;

use crate::say::{CommandError, Exit, USAGE, complain};
use comity_launch::LaunchRequest;

const AFTER: &str = "\
Exit code: 0 when every rank ended with 0; the code of the first rank that failed (128 + signal when a signal
killed it), or, where the ranks name another one's failure as its cause, of that one; 124 after --timeout; 130, 143, 129 after SIGINT (Ctrl-C), SIGTERM, SIGHUP; 141 when the reader of
the output went away; 2 for bad arguments. When a rank fails, the others have 1 s to end by themselves, then get
SIGTERM, then, after --grace (3 s) or a second Ctrl-C, SIGKILL. What ranks leave running ends with the job.
SIGUSR1, SIGUSR2 and SIGQUIT go to every rank.
Ctrl-Z (SIGTSTP) stops the ranks with the launcher, and `fg`, `bg` or SIGCONT continues both; --timeout goes on.

Each rank finds COMITY_RANK, COMITY_SIZE, COMITY_LOCAL_RANK, COMITY_LOCAL_SIZE, COMITY_STORE, COMITY_JOB,
COMITY_KEY_FD, COMITY_ROOT_CAUSE_FD and COMITY_RESTART in its environment, with --elastic also COMITY_JOIN=1 when it is started again; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
for torch's env://; and with two ranks or more MLX_RANK and MLX_HOSTFILE for MLX. Unless you set it: PYTHONUNBUFFERED=1
(PYTHONUNBUFFERED= turns it off), and OMP_NUM_THREADS and RAYON_NUM_THREADS, the host's cores over its ranks, unless
one of these, MKL_NUM_THREADS or OPENBLAS_NUM_THREADS is set.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    request: LaunchRequest,
}

/// Runs the job to its end.
pub(crate) fn launch(LaunchArgs { request }: LaunchArgs) -> Exit {
    if request.hosts.print_python {
        println!("{}", request.hosts.interpreter());
        return Ok(0);
    }
    let words: Vec<String> = request.job.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let is_far = request.hosts.is_given() || request.job.restarts_of_job() > 0;
    let said = |why: &String| complain("launch", why);
    crate::manual::misplaced(&words, is_far).iter().for_each(said);
    CommandError::if_any(USAGE, flags::unheeded(&request))?;
    flags::idle_flags_of_mlx(&request).iter().for_each(said);
    crate::here::misspelt().iter().for_each(said);
    Ok(comity_launch::launch(request))
}
