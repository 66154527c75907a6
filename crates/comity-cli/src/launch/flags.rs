//! Flags that would do nothing beside the others: whoever gives one is told so before anything runs.
use comity_launch::{BindWish, FlagUse, JobRequest, LaunchRequest, Placement, TagWish};

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
            ("--bind-to", terms.bind_to != BindWish::Off),
            ("--secure data", terms.secure == Some(comity::Protection::Data)),
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
