//! `comity launch`: starts the ranks of a job on this machine and answers for how they end.
//!
//! Two processes stand guard over each other. The [front end](front_end) is the one that the user started: it takes
//! the signals and the standard input of the terminal. The [supervisor] is its child in a session of its
//! own: it starts the ranks, carries their lines, and ends them. The front end's death closes a socket that the
//! supervisor polls; the supervisor's death makes its children the front end's (both are "subreapers" on Linux). So
//! whichever of the two is killed, the other one is an ancestor of every process of the job, also of those
//! that left their process group, and ends them.
mod asked;
mod bind;
mod deaths;
mod defaults;
mod door;
mod elastic;
mod ending;
mod flags;
mod fleet;
mod front_end;
mod guard;
mod handed;
mod job;
mod journal;
mod lines;
mod master;
mod meet;
mod memory;
mod metrics;
mod mpi;
mod nodes;
mod output;
mod rank;
mod signals;
mod stage;
mod stdin;
mod supervisor;
mod sys;
mod terminal;
mod tree;
mod upstream;
mod wire;

pub(crate) use bind::{allowed_cores, host_cores};
pub(crate) use elastic::{KEY_FILE, name as job_name};
pub(crate) use fleet::{
    FarCommand, FleetHost, JobHosts, SshWay, check_host_name, explain_ssh, job_hosts, list_hosts,
    read_hostfile, ssh_words,
};
pub(crate) use guard::guard;
pub(crate) use job::find as find_program;

use clap::builder::{OsStringValueParser, TypedValueParser};
use comity_launch::machine::{REFUSED, USAGE};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Answer of the supervisor to SIGTSTP, in the place of a process's number.
const ALL_STOPPED: i32 = 0;

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
    #[arg(long, value_name = "NAME", value_parser = asked::AskedBackend::parser(), hide_possible_values = true, help_heading = section::RANKS)]
    backend: Option<asked::AskedBackend>,

    /// Bind each rank to a core of its own (core), or to the cores that share a third-level cache (complex)
    #[arg(
        long,
        value_enum,
        value_name = "CORES",
        default_value_t,
        hide_possible_values = true,
        hide_default_value = false,
        help_heading = section::RANKS
    )]
    bind_to: bind::BindWish,

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
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value_t,
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
    #[arg(hide_short_help = true, long, value_name = "ADDR", value_parser = metrics::address, help_heading = section::OUTPUT)]
    metrics: Option<SocketAddr>,

    /// Make no job key: whoever can connect to a rank and knows the job's name can join
    #[arg(hide_short_help = true, long, help_heading = section::SECURITY)]
    insecure: bool,

    /// Protect by the job key the handshake (who may connect, the default) or data (everything that goes over TCP, too)
    #[arg(hide_short_help = true, long, value_name = "PART", conflicts_with = "insecure", value_parser = crate::here::secure_parser(), hide_possible_values = true, help_heading = section::SECURITY)]
    secure: Option<comity::Secure>,

    #[command(flatten)]
    fleet: fleet::FleetArgs,

    #[command(flatten)]
    node: nodes::NodeArgs,

    /// The command that every rank runs, with its arguments
    #[arg(required_unless_present = "print_python", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `--tag-output`: whether each line of output starts with its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TagWish {
    /// With two ranks or more.
    #[default]
    Auto,
    Always,
    Never,
}

impl TagWish {
    /// Whether the lines of a job of so many ranks are tagged.
    fn applies(self, ranks: usize) -> bool {
        match self {
            Self::Auto => ranks > 1,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Variable of `--env`.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    name: OsString,
    value: OsString,
}

impl LaunchArgs {
    /// Number of ranks, on each host where there are several.
    fn ranks(&self) -> usize {
        self.ranks.unwrap_or(1) as usize
    }

    /// The rank that a user talks to, and the flag that says so.
    fn stdin_rank(&self) -> Option<(usize, &'static str)> {
        self.tty.map(|r| (r, "--tty")).or_else(|| self.stdin_rank.map(|r| (r, "--stdin-rank")))
    }
}

impl Setting {
    fn parse(text: OsString) -> Result<Self, String> {
        let bytes = text.as_bytes();
        match bytes.iter().position(|&b| b == b'=') {
            Some(0) => Err("there is no name before '='; write NAME=VALUE".into()),
            Some(at) => Ok(Self {
                name: OsStr::from_bytes(&bytes[..at]).into(),
                value: OsStr::from_bytes(&bytes[at + 1..]).into(),
            }),
            None => Err("there is no '='; write NAME=VALUE (variables of this shell reach the ranks \
                 of this host without --env)"
                .into()),
        }
    }
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
    if args.node.is_given() {
        return nodes::launch(args);
    }
    if args.fleet.is_given() {
        return fleet::launch(args);
    }
    if args.backend.is_some_and(|b| b.kind() == comity::BackendKind::Mpi) {
        return mpi::launch(&args);
    }
    let unsaid = args.ranks.is_none();
    let job = match job::Job::check(args) {
        Ok(job) => job,
        Err(refusal) => return refuse(&refusal),
    };
    if unsaid {
        eprintln!("comity launch: 1 rank; -n N starts N");
    }
    guarded(job.tty.is_some(), |to_front, input| supervisor::supervise(job, to_front, input))
}

/// Runs `supervise` in a process of its own, which the front end watches; `keys`: a rank gets each key of the terminal.
fn guarded(keys: bool, supervise: impl FnOnce(UnixStream, OwnedFd) -> u8) -> u8 {
    let pair = UnixStream::pair().and_then(|sockets| Ok((sockets, std::io::pipe()?)));
    let ((to_keeper, to_front), (input, relay)) = match pair {
        Ok(pair) => pair,
        Err(e) => return refuse(&job::LaunchRefusal::machine(format!("cannot make a pipe: {e}"))),
    };
    // The ranks may run before the front end has set its handlers.
    let passed = signals::PassedSignal::ALL.map(|passed| passed.signal().as_raw());
    let held = sys::HeldSignals::hold(
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP].into_iter().chain(passed),
    );
    match sys::fork() {
        Ok(sys::Fork::Child) => {
            drop((to_keeper, relay, held));
            let code = supervise(to_front, input.into());
            // The front end's part of the program must not run a second time here.
            std::process::exit(code.into())
        }
        Ok(sys::Fork::Parent(supervisor)) => {
            drop((to_front, input));
            front_end::watch(supervisor, to_keeper, (relay.into(), keys), held)
        }
        Err(e) => refuse(&job::LaunchRefusal::machine(format!("cannot start a second process: {e}"))),
    }
}

fn refuse(refusal: &job::LaunchRefusal) -> u8 {
    eprintln!("comity launch: {}", refusal.text);
    refusal.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_need_a_name_and_an_equals_sign() {
        let set = Setting::parse("A=b=c".into()).unwrap();
        assert_eq!((set.name.to_str(), set.value.to_str()), (Some("A"), Some("b=c")));
        assert_eq!(Setting::parse("A=".into()).unwrap().value, "");
        assert!(Setting::parse("A".into()).unwrap_err().contains("NAME=VALUE"));
        assert!(Setting::parse("=b".into()).is_err());
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "ten", "", "1e-300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
