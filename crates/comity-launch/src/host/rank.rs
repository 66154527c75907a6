//! A rank: its environment, its start, and the launcher's ends of its pipes.
use crate::host::bind::{RankBinding, usable_cores};
use crate::host::job::Job;
use crate::host::meet::Meeting;
use crate::host::metrics::Metrics;
use crate::host::output::{Lines, OutputStream, Outputs, RankStream};
use crate::host::stdin::RankInput;
use crate::host::sys::{self, TerminalPlace};
use crate::request::Setting;
use comity::HostPort;
use rustix::process::{Pid, Rlimit, Signal};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) pid: Pid,
    pub(crate) alive: bool,
    pub(crate) pipes: [Pipe; 2],
}

/// Output stream of a rank, and the pipe that it comes by until its end.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) to: RankStream,
}

impl Rank {
    /// Starts a rank, and returns it with the end that feeds its standard input.
    pub(crate) fn start(
        job: &mut Job,
        (meeting, metrics): (&Meeting, Option<&Metrics>),
        open_files: &Rlimit,
        rank: usize,
    ) -> io::Result<(Self, RankInput)> {
        let mut command = Command::new(&job.program);
        command.arg0(job.request.name()).args(job.request.args());
        let terminal = job.tty.filter(|t| t.rank == job.first + rank).map(|t| t.open()).transpose()?;
        match &terminal {
            Some((_, theirs)) => {
                let end = || theirs.try_clone().map(Stdio::from);
                command.stdin(end()?).stdout(end()?).stderr(end()?)
            }
            None => command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        for (name, value) in environment(job, meeting, metrics, rank) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &job.request.cwd {
            command.current_dir(dir);
        }
        let mut handed = meeting.handed();
        handed.extend(metrics.and_then(|m| m.fd(rank)));
        let standing = if terminal.is_some() { TerminalPlace::Terminal } else { TerminalPlace::Group };
        let place = job.binding.as_ref().map(|b| b.of(job.local.0 + rank, job.local.1)).transpose();
        let place = place.map_err(io::Error::other)?.map(|(set, _)| set);
        sys::prepare(&mut command, handed, *open_files, standing, place);
        let mut child = command.spawn()?;
        // The rank's copies would keep the terminal open when the rank has ended.
        drop(command);
        let gone = || io::Error::other("no pipe");
        let (stdin, out, err) = match terminal {
            Some((ours, _)) => (RankInput { fd: ours.try_clone()?, terminal: true }, ours, None),
            None => {
                let stdin: OwnedFd = child.stdin.take().ok_or_else(gone)?.into();
                rustix::io::ioctl_fionbio(&stdin, true)?;
                let err = child.stderr.take().ok_or_else(gone)?.into();
                (
                    RankInput { fd: stdin, terminal: false },
                    child.stdout.take().ok_or_else(gone)?.into(),
                    Some(err),
                )
            }
        };
        let [log_out, log_err] = match job.logs.as_mut().and_then(|logs| logs.get_mut(rank)) {
            Some(files) => [Some(files[0].try_clone()?), Some(files[1].try_clone()?)],
            None => [None, None],
        };
        let global = job.first + rank;
        let lines = |stream: OutputStream| match job.straight || job.request.is_talked_to(global) {
            true => Lines::Straight,
            false => {
                let tag = job.request.tag_output.applies(job.world);
                Lines::new(global, job.world, tag, stream.has_colour())
            }
        };
        let pipes = [
            Pipe { fd: Some(out), to: RankStream::new(OutputStream::Out, lines, log_out) },
            Pipe { fd: err, to: RankStream::new(OutputStream::Err, lines, log_err) },
        ];
        Ok((Self { pid: Pid::from_child(&child), alive: true, pipes }, stdin))
    }

    /// Signals the rank's process group. Only while the rank was not reaped, so that the number is its own.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.alive {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl Pipe {
    /// Gives up on the pipe; what it had of a last line is shown.
    pub(crate) fn close(&mut self, rank: usize, output: &Outputs) {
        self.fd = None;
        self.to.finish(rank, output);
    }
}

/// Variables and their values; None removes a variable.
type Variables = Vec<(OsString, Option<OsString>)>;

/// The changes for a rank in the environment of the launcher.
pub(crate) fn environment(job: &Job, meeting: &Meeting, metrics: Option<&Metrics>, rank: usize) -> Variables {
    let rank_here = rank;
    let stats = metrics.and_then(|m| m.fd(rank)).map(|fd| fd.to_string());
    let local = (job.local.0 + rank).to_string();
    let local_size = job.local.1.to_string();
    let rank = (job.first + rank).to_string();
    let size = job.world.to_string();
    let again = job.restarted.get(rank_here).copied().unwrap_or(0);
    let number = job.restarts.number + again;
    let mut all = offered(job, meeting, number);
    all.extend(job.request.env.iter().map(|s| (s.name.clone(), Some(s.value.clone()))));
    let mut set = |name: &str, value: Option<&str>| all.push((name.into(), value.map(Into::into)));
    for (name, value) in [
        ("COMITY_RANK", &rank),
        ("RANK", &rank),
        ("COMITY_LOCAL_RANK", &local),
        ("LOCAL_RANK", &local),
        ("COMITY_SIZE", &size),
        ("WORLD_SIZE", &size),
        ("COMITY_LOCAL_SIZE", &local_size),
        ("LOCAL_WORLD_SIZE", &local_size),
    ] {
        set(name, Some(value));
    }
    set("MLX_RANK", (job.world > 1).then_some(&rank));
    set("COMITY_STORE", Some(&meeting.store()));
    set("COMITY_JOB", Some(meeting.job()));
    set("COMITY_KEY_FD", meeting.key_file.as_ref().map(|file| file.fd().to_string()).as_deref());
    set("COMITY_RESTART", Some(&number.to_string()));
    // It comes while the others run.
    set("COMITY_JOIN", (again > 0).then_some("1"));
    set("COMITY_STATS_FD", stats.as_deref());
    set("COMITY_ROOT_CAUSE_FD", Some(&meeting.root_causes.fd().to_string()));
    all
}

/// Variables that the user may set otherwise with `--env`.
fn offered(job: &Job, meeting: &Meeting, number: u32) -> Variables {
    let mut all = Variables::new();
    let mut set = |name: &str, value: Option<String>| all.push((name.into(), value.map(Into::into)));
    for (name, value) in variables(&job.request.env, job.threads) {
        set(name, Some(value));
    }
    set("TORCHELASTIC_RESTART_COUNT", Some(number.to_string()));
    set("TORCHELASTIC_MAX_RESTARTS", Some(job.restarts.most.to_string()));
    let master = meeting.master();
    set("MASTER_ADDR", Some(HostPort::from(master).host().to_owned()));
    set("MASTER_PORT", Some(master.port().to_string()));
    // Another job's, where this one has none.
    set("MLX_HOSTFILE", None);
    for (name, value) in meeting.vars() {
        set(name, Some(value));
    }
    // Another job's, if this one is started from inside it.
    set("COMITY_KEY_FILE", None);
    // The launcher makes a key, unless it is told not to; what the shell says was said to another job.
    for (name, value) in job.request.terms.variables() {
        set(name, value);
    }
    if let Some(backend) = job.request.backend_of_ranks() {
        set("COMITY_BACKEND", Some(backend.name().into()));
    }
    // Ranks take no name that is not UTF-8.
    if let Some(dir) = job.flights.as_deref().and_then(|d| d.to_str()) {
        set("COMITY_LOG_DIR", Some(dir.into()));
    }
    // Each sees its own cores, and how many ranks may turn is for all to know.
    set("COMITY_HOST_CORES", job.binding.as_ref().map(|b| b.host_cores().to_string()));
    all
}

/// The variables by which OpenMP, and most libraries of linear algebra after it, and those in Rust are told their number of threads.
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];
/// Variables by which a user chooses a number of threads.
const THREAD_CHOICES: [&str; 4] = [THREADS[0], THREADS[1], "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
/// Makes Python write each line when it is printed, not when its buffer is full or it ends.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The number of threads for a rank of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadShare {
    threads: usize,
    /// Cores and ranks that it was computed from; none where ranks are bound.
    of: Option<(usize, usize)>,
}

impl ThreadShare {
    /// The share of each of `ranks` ranks; none where the user chose.
    pub(crate) fn new(env: &[Setting], binding: Option<&RankBinding>, ranks: usize) -> Option<Self> {
        let chosen = THREAD_CHOICES.iter().any(|name| is_set(name, env));
        (!chosen).then(|| match binding {
            Some(binding) => Self { threads: binding.cores_of_each(ranks), of: None },
            None => Self::of(usable_cores(), ranks),
        })
    }

    fn of(cores: usize, ranks: usize) -> Self {
        Self { threads: (cores / ranks.max(1)).max(1), of: Some((cores, ranks)) }
    }
}

impl std::fmt::Display for ThreadShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [all @ .., last] = THREADS.map(|name| format!("{name}={}", self.threads));
        write!(f, "{} and {last} for each rank: ", all.join(", "))?;
        match self.of {
            Some((cores, ranks)) => {
                let word = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
                write!(f, "{} for {}", word(cores, "core"), word(ranks, "rank"))
            }
            None => write!(f, "the cores that it is bound to"),
        }
    }
}

/// Variables that a rank gets unless the user has set them: as many threads as it has cores, and output at once.
pub(crate) fn variables(env: &[Setting], share: Option<ThreadShare>) -> Vec<(&'static str, String)> {
    let threads = share.iter().flat_map(|share| THREADS.map(|name| (name, share.threads.to_string())));
    let unbuffered = (!is_set(UNBUFFERED, env)).then(|| (UNBUFFERED, "1".to_owned()));
    threads.chain(unbuffered).collect()
}

/// Returns whether the rank would find this variable: from the shell, or by the user's setting for the ranks.
fn is_set(name: &str, env: &[Setting]) -> bool {
    env.iter().any(|s| s.name == OsStr::new(name)) || std::env::var_os(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_a_thread_at_least() {
        let threads = |cores, ranks| ThreadShare::of(cores, ranks).threads;
        assert_eq!([(8, 2), (8, 3), (2, 4), (1, 1), (4, 0)].map(|(c, r)| threads(c, r)), [4, 2, 1, 1, 4]);
        let said = ThreadShare::of(8, 1).to_string();
        assert_eq!(said, "OMP_NUM_THREADS=8 and RAYON_NUM_THREADS=8 for each rank: 8 cores for 1 rank");
    }

    #[test]
    fn each_choice_of_the_user_counts() {
        for name in THREAD_CHOICES {
            let env = [Setting::parse(format!("{name}=3").into()).unwrap()];
            assert_eq!(ThreadShare::new(&env, None, 2), None, "{name}");
        }
        let env = [Setting::parse(format!("{UNBUFFERED}=").into()).unwrap()];
        let all = variables(&env, Some(ThreadShare::of(2, 2)));
        assert_eq!(all, THREADS.map(|name| (name, "1".to_owned())));
    }
}
