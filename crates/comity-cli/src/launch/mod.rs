//! `comity launch`: the flags of a job, which become a request to the launcher (`comity-launch`).
mod flags;
mod hosts;
mod nodes;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use comity_launch::machine::USAGE;
use comity_launch::{
    AskedBackend, BindWish, InputRank, JobRequest, LaunchRequest, Placement, Setting, TagWish,
};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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

/// Headings of `comity launch --help`.
mod section {
    pub(super) const RANKS: &str = "Ranks";
    pub(super) const HOSTS: &str = "Hosts";
    pub(super) const SSH: &str = "ssh";
    pub(super) const ENDING: &str = "Ending";
    pub(super) const OUTPUT: &str = "Output";
    pub(super) const SECURITY: &str = "Security";
    pub(super) const MLX: &str = "MLX's flags";
}

/// Reads the number of ranks. `-np 2`, as mpirun takes it, comes as `p`.
fn number_of_ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=4096).contains(n));
    number.ok_or_else(|| match text {
        "p" => "mpirun's -np is -n here, as in -n 2".to_owned(),
        _ => "it takes a number from 1 to 4096, as in -n 2".to_owned(),
    })
}

/// Arguments of `comity launch`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct LaunchArgs {
    /// Start this many ranks (default: 1); with --hosts or --hostfile, on each host that does not say how many
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = number_of_ranks, help_heading = section::RANKS)]
    ranks: Option<u32>,

    /// Set a variable for every rank (repeatable)
    #[arg(long, value_name = "K=V", value_parser = OsStringValueParser::new().try_map(Setting::parse), help_heading = section::RANKS)]
    env: Vec<Setting>,

    /// Start the ranks in this directory
    #[arg(long, value_name = "DIR", help_heading = section::RANKS)]
    cwd: Option<PathBuf>,

    /// Carry the ranks' calls by `any` (the best there is, the default), `jaccl` (RDMA first), `nccl`, or `mpi` (MPI's own launcher
    /// starts the ranks); also MLX's `ring` and `jaccl-ring`
    #[arg(long, value_name = "NAME", value_parser = backend_parser(), hide_possible_values = true, help_heading = section::RANKS)]
    backend: Option<AskedBackend>,

    /// Bind each rank to a core of its own (core), or to the cores that share a third-level cache (complex)
    #[arg(
        long,
        value_parser = bind_parser(),
        value_name = "CORES",
        default_value = "off",
        hide_possible_values = true,
        hide_default_value = false,
        help_heading = section::RANKS
    )]
    bind_to: BindWish,

    /// End the job after this many seconds, with exit code 124 (the limit of each call is COMITY_TIMEOUT)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    timeout: Option<Duration>,

    /// Let ranks take this long to end after SIGTERM before they are killed (default: 3), say to write a checkpoint
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    grace: Option<Duration>,

    /// Also write each rank's output, untagged, to DIR/rank-N.out and DIR/rank-N.err, and its last calls when a
    /// group fails, for `comity report DIR`
    #[arg(long, value_name = "DIR", help_heading = section::OUTPUT)]
    log_dir: Option<PathBuf>,

    /// Start each line with its rank, as in "[2] ": always, never, or with two ranks or more (auto)
    #[arg(
        hide_short_help = true,
        long,
        value_parser = tag_parser(),
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always",
        hide_possible_values = true,
        help_heading = section::OUTPUT
    )]
    tag_output: TagWish,

    /// Show what is started, with which variables, and how each rank ended
    #[arg(long, short, help_heading = section::OUTPUT)]
    verbose: bool,

    /// Give standard input to this rank alone, and show its output as it comes: for a debugger in one rank
    #[arg(hide_short_help = true, long, value_name = "RANK", help_heading = section::OUTPUT)]
    stdin_rank: Option<usize>,

    /// Give this rank a terminal of its own: line editing, Ctrl-C and colours are the rank's; Ctrl-] ends the job
    #[arg(hide_short_help = true, long, value_name = "RANK", conflicts_with_all = ["stdin_rank", "print_python"], help_heading = section::OUTPUT)]
    tty: Option<usize>,

    /// Write each event of the job to FILE, or to the open descriptor of this number, as one JSON object a line
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = section::OUTPUT)]
    json_events: Option<OsString>,

    /// Answer GET /metrics at this address, such as 127.0.0.1:9400, with each rank's counters for Prometheus
    #[arg(hide_short_help = true, long, value_name = "ADDR", value_parser = comity_launch::metrics_address, help_heading = section::OUTPUT)]
    metrics: Option<SocketAddr>,

    /// Make no job key: whoever can connect to a rank and knows the job's name can join
    #[arg(hide_short_help = true, long, help_heading = section::SECURITY)]
    insecure: bool,

    /// Protect by the job key the handshake (who may connect, the default) or data (everything that goes over TCP, too)
    #[arg(hide_short_help = true, long, value_name = "PART", conflicts_with = "insecure", value_parser = crate::here::secure_parser(), hide_possible_values = true, help_heading = section::SECURITY)]
    secure: Option<comity::Protection>,

    #[command(flatten)]
    fleet: hosts::FleetArgs,

    #[command(flatten)]
    node: nodes::NodeArgs,

    /// The command that every rank runs, with its arguments
    #[arg(required_unless_present = "print_python", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl LaunchArgs {
    /// The request that the flags make. Every field is named here: a new flag does not compile until it has a place in the request.
    fn request(self) -> Result<LaunchRequest, String> {
        let Self {
            ranks,
            env,
            cwd,
            backend,
            bind_to,
            timeout,
            grace,
            log_dir,
            tag_output,
            verbose,
            stdin_rank,
            tty,
            json_events,
            metrics,
            insecure,
            secure,
            fleet,
            node,
            command,
        } = self;
        let is_mpi = backend.is_some_and(|b| b.kind() == comity::BackendKind::Mpi);
        let is_default_size = ranks.is_none();
        let ranks = ranks.unwrap_or(1);
        let repeated = fleet.repeat_hosts.unwrap_or(ranks);
        let elastic = fleet.elastic();
        let placement = match node.is_given() {
            true => Placement::Nodes(node.request()?),
            false if fleet.is_given() => Placement::Hosts(fleet.request()),
            false if is_mpi => Placement::Mpi { more: fleet.mpi_arg },
            false => Placement::Here,
        };
        let ranks = match placement {
            Placement::Hosts(_) => repeated,
            _ => ranks,
        };
        let job = JobRequest {
            ranks: ranks as usize,
            is_default_size,
            command,
            env,
            cwd,
            backend,
            bind_to,
            elastic,
            timeout,
            grace,
            log_dir,
            tag_output,
            verbose,
            input: tty.map(InputRank::Terminal).or_else(|| stdin_rank.map(InputRank::Pipe)),
            json_events,
            metrics,
            insecure,
            secure,
        };
        Ok(LaunchRequest { job, placement })
    }
}

/// Parser of the values of `--backend`.
fn backend_parser() -> impl TypedValueParser<Value = AskedBackend> {
    PossibleValuesParser::new(AskedBackend::all().collect::<Vec<_>>())
        .try_map(|name| AskedBackend::named(&name).ok_or("no such backend"))
}

/// Parser of a word among these, each with its value and its help.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let names = words.map(|(name, _, help)| match help {
        "" => PossibleValue::new(name),
        help => PossibleValue::new(name).help(help),
    });
    PossibleValuesParser::new(names).try_map(move |given| {
        words.iter().find(|(name, _, _)| *name == given).map(|(_, value, _)| *value).ok_or("no such value")
    })
}

/// Parser of the values of `--bind-to`.
fn bind_parser() -> impl TypedValueParser<Value = BindWish> {
    one_of([
        ("off", BindWish::Off, "Wherever the system puts them"),
        ("core", BindWish::Core, "A core for each"),
        ("complex", BindWish::Complex, "The cores that share a cache"),
    ])
}

/// Parser of the values of `--tag-output`.
fn tag_parser() -> impl TypedValueParser<Value = TagWish> {
    one_of([
        ("auto", TagWish::Auto, "With two ranks or more"),
        ("always", TagWish::Always, ""),
        ("never", TagWish::Never, ""),
    ])
}

fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = "allowed is a number of seconds above 0, such as 90 or 0.5";
    let number: f64 = text.parse().map_err(|_| format!("not a number; {allowed}"))?;
    match Duration::try_from_secs_f64(number) {
        // A century: beyond it, adding to the clock could overflow.
        Ok(time) if !time.is_zero() && time.as_secs() < 3_200_000_000 => Ok(time),
        _ => Err(format!("out of range; {allowed}")),
    }
}

/// Runs the job to its end and returns the exit code.
pub(crate) fn launch(args: LaunchArgs) -> u8 {
    if args.fleet.print_python {
        println!("{}", args.fleet.interpreter());
        return 0;
    }
    let words: Vec<String> = args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    if let Some(hint) = crate::manual::misplaced(&words, args.fleet.is_given()) {
        eprintln!("comity launch: {hint}");
    }
    let unheeded = flags::unheeded(&args);
    if !unheeded.is_empty() {
        unheeded.iter().for_each(|why| eprintln!("comity launch: {why}"));
        return USAGE;
    }
    flags::idle_flags_of_mlx(&args).iter().for_each(|why| eprintln!("comity launch: {why}"));
    crate::misspelt::misspelt().iter().for_each(|why| eprintln!("comity launch: {why}"));
    match args.request() {
        Ok(request) => comity_launch::launch(request),
        Err(why) => {
            eprintln!("comity launch: {why}");
            USAGE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "ten", "", "1e-300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
