//! Flags that would do nothing beside the others: whoever gives one is told so before anything runs.
use super::LaunchArgs;
use comity_launch::{BindWish, TagWish};

/// A flag and whether it was given.
type Given = (&'static str, bool);

/// A sentence for each flag that this form of the launcher does not heed.
pub(super) fn unheeded(args: &LaunchArgs) -> Vec<String> {
    let fleet = &args.fleet;
    let is_mpi = args.backend.is_some_and(|b| b.kind() == comity::BackendKind::Mpi);
    let mut all = Vec::new();
    let mut refuse = |given: &[Given], why: &str| {
        let flags = given.iter().filter(|(_, is_given)| *is_given);
        all.extend(flags.map(|(flag, _)| format!("{flag} {why}")));
    };
    if args.node.is_given() {
        let why = "is not for --nnodes: each host's launcher starts its own ranks, as the shell there says";
        refuse(&fleet.of_several_hosts(), why);
        refuse(&fleet.of_ssh(), "is not for --nnodes, which does without ssh");
        refuse(&fleet.of_restarts(), "is not for --nnodes, which starts no job again");
        refuse(
            &[("--elastic", fleet.elastic.is_some())],
            "is not for --nnodes, which ends with the first rank that fails",
        );
        refuse(
            &[("--backend mpi", is_mpi)],
            "is not for --nnodes: MPI's own launcher starts ranks on several hosts",
        );
    } else if !fleet.is_given() {
        refuse(&fleet.of_ssh(), "is for ranks on other hosts: name them with --hosts or --hostfile");
    }
    if !args.node.is_given() {
        refuse(
            &fleet.of_waiting(),
            "is for jobs that are started again: say how often with --max-restarts N, without --elastic",
        );
    }
    if is_mpi {
        refuse(
            &[("--elastic", fleet.elastic.is_some())],
            "is not for --backend mpi, which makes no group without all ranks",
        );
    }
    if is_mpi && !args.node.is_given() && !fleet.is_given() {
        refuse(&of_own_ranks(args), "is not for --backend mpi, whose launcher starts the ranks");
    }
    all
}

/// A sentence for each flag of `mlx.launch` that does nothing here. `mlx.launch` takes them beside any others, so a command written for it runs.
pub(super) fn idle_flags_of_mlx(args: &LaunchArgs) -> Vec<String> {
    let fleet = &args.fleet;
    let is_mpi = args.backend.is_some_and(|b| b.kind() == comity::BackendKind::Mpi);
    [
        ("--mpi-arg is for --backend mpi, whose launcher gets it", !is_mpi && !fleet.mpi_arg.is_empty()),
        (
            "--connections-per-ip is for ranks on other hosts: name them with --hosts or --hostfile",
            !fleet.is_given() && fleet.has_connections(),
        ),
    ]
    .into_iter()
    .filter(|(_, is_idle)| *is_idle)
    .map(|(why, _)| why.to_owned())
    .collect()
}

/// Flags for ranks that this launcher itself starts and carries.
fn of_own_ranks(args: &LaunchArgs) -> Vec<Given> {
    vec![
        ("--tty", args.tty.is_some()),
        ("--stdin-rank", args.stdin_rank.is_some()),
        ("--json-events", args.json_events.is_some()),
        ("--grace", args.grace.is_some()),
        ("--log-dir", args.log_dir.is_some()),
        ("--tag-output=never", args.tag_output == TagWish::Never),
        ("--metrics", args.metrics.is_some()),
        ("--bind-to", args.bind_to != BindWish::Off),
        ("--secure data", args.secure == Some(comity::Protection::Data)),
    ]
}
