//! `comity launch`: what is said before a job runs. Its flags are the fields of the launcher's request (`comity-launch`). Whoever gives one that
//! would do nothing beside the others is told so before anything runs.
use crate::say::{CommandError, Exit, USAGE, complain};
use comity_launch::{BindWish, FlagUse, JobRequest, LaunchRequest, Placement, RankTerms, TagWish};

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

pub(crate) fn launch(LaunchArgs { request }: LaunchArgs) -> Exit {
    if request.hosts.print_python {
        println!("{}", request.hosts.interpreter());
        return Ok(0);
    }
    let words: Vec<String> = request.job.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let is_far = request.hosts.is_given() || request.job.restarts_of_job() > 0;
    let said = |why: &String| complain("launch", why);
    crate::manual::misplaced(&words, is_far).iter().for_each(said);
    CommandError::if_any(USAGE, unheeded(&request))?;
    idle_flags_of_mlx(&request).iter().for_each(said);
    crate::here::misspelt().iter().for_each(said);
    Ok(comity_launch::launch(request))
}

/// A sentence for each flag that this form of the launcher does not heed.
pub(super) fn unheeded(request: &LaunchRequest) -> Vec<String> {
    let LaunchRequest { job, hosts, node: _ } = request;
    // By name: a new flag does not compile before it is said here which placements heed it.
    let JobRequest {
        grace,
        log_dir,
        tag_output,
        terms,
        stdin_rank,
        tty,
        json_events,
        metrics,
        elastic,
        // Heeded wherever ranks start; those that do not go with others say so to clap.
        ranks: _,
        env: _,
        cwd: _,
        backend: _,
        max_restarts: _,
        timeout: _,
        verbose: _,
        command: _,
    } = job;
    // Each launcher makes the job's key, or none.
    let RankTerms { bind_to, secure, insecure: _ } = terms;
    let placement = request.placement();
    let host_flags = hosts.uses();
    let mut all = Vec::new();
    let mut refuse = |given: &[FlagUse], why: &str| {
        let flags = given.iter().filter(|(_, is_given)| *is_given);
        all.extend(flags.map(|(flag, _)| format!("{flag} {why}")));
    };
    let elastic = ("--elastic", elastic.is_some());
    let wait = ("--wait-for-hosts", hosts.wait_for_hosts.is_some());
    let metrics = ("--metrics", metrics.is_some());
    let tty = ("--tty", tty.is_some());
    match placement {
        Placement::Nodes => {
            let why =
                "is not for --nnodes: each host's launcher starts its own ranks, as the shell there says";
            refuse(&host_flags.several_hosts, why);
            refuse(&host_flags.ssh, "is not for --nnodes, which does without ssh");
            refuse(&[wait], "is not for --nnodes, which starts no job again");
            refuse(&[elastic], "is not for --nnodes, which ends with the first rank that fails");
            let why = "is not for --nnodes: MPI's own launcher starts ranks on several hosts";
            refuse(&[("--backend mpi", job.is_mpi())], why);
            let why = "is for one host, or for --hosts; with --nnodes give --stdin-rank on the rank's node";
            refuse(&[tty], why);
        }
        Placement::Hosts if hosts.is_given() => {
            refuse(&[metrics], "is for one host: start the ranks of each host with it there");
        }
        Placement::Hosts => {
            refuse(&[metrics], "is not for --max-restarts without --elastic: each try is a job of its own");
        }
        Placement::Here | Placement::Mpi => {
            refuse(&host_flags.ssh, "is for ranks on other hosts: name them with --hosts or --hostfile");
        }
    }
    if placement != Placement::Nodes && job.restarts_of_job() == 0 {
        let why =
            "is for jobs that are started again: say how often with --max-restarts N, without --elastic";
        refuse(&[wait], why);
    }
    if job.is_mpi() {
        refuse(&[elastic], "is not for --backend mpi, which makes no group without all ranks");
    }
    if placement == Placement::Mpi {
        // MPI's launcher is given the other flags.
        let of_own_ranks = [
            tty,
            ("--stdin-rank", stdin_rank.is_some()),
            ("--json-events", json_events.is_some()),
            ("--grace", grace.is_some()),
            ("--log-dir", log_dir.is_some()),
            ("--tag-output=never", *tag_output == TagWish::Never),
            metrics,
            ("--bind-to", *bind_to != BindWish::Off),
            ("--secure data", *secure == Some(comity::Protection::Data)),
        ];
        refuse(&of_own_ranks, "is not for --backend mpi, whose launcher starts the ranks");
    }
    all
}

/// A sentence for each flag of `mlx.launch` that does nothing here. `mlx.launch` takes them beside any others, so a command written for it runs.
pub(super) fn idle_flags_of_mlx(request: &LaunchRequest) -> Vec<String> {
    let LaunchRequest { job, hosts, .. } = request;
    let is_far = hosts.is_given() || job.restarts_of_job() > 0;
    let mpi = !job.is_mpi() && !hosts.mpi_arg.is_empty();
    let ring = !is_far && hosts.connections_per_ip != 1;
    let mpi = mpi.then_some("--mpi-arg is for --backend mpi, whose launcher gets it");
    let ring = ring
        .then_some("--connections-per-ip is for ranks on other hosts: name them with --hosts or --hostfile");
    mpi.into_iter().chain(ring).map(str::to_owned).collect()
}
