//! Counters of the ranks, and their calls just now: for Prometheus (`--metrics`), and for `comity top` and `comity stacks`.
//!
//! Each rank inherits a sheet of memory and counts there; a thread of the supervisor reads the sheets when somebody asks. No
//! rank waits for it or notices it, and what a rank did stands there also after it was killed.
mod text;

use crate::host::handed::raise;
use crate::host::job::Job;
use crate::host::tree;
use crate::http::{self, Reply};
use crate::live::view::{self, JobView, RankState, RankView};
use crate::machine::Ending;
use comity::tools::Sheet;
use rustix::process::Pid;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Instant;
use text::Host;

/// Not started yet.
const WAITING: i32 = -2;
const RUNNING: i32 = -1;

/// State of the ranks, for whoever asks.
#[derive(Debug)]
struct JobMetrics {
    host: Host,
    /// The first rank here.
    first: usize,
    ranks: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    sheet: Sheet,
    /// The exit code, or one of the above.
    state: AtomicI32,
    pid: AtomicI32,
    /// Number of its starts.
    starts: AtomicU32,
}

/// The sheets of all ranks here.
#[derive(Debug)]
pub(crate) struct Metrics {
    metrics: Arc<JobMetrics>,
    /// Descriptors that the ranks inherit.
    fds: Vec<OwnedFd>,
}

impl Metrics {
    /// Sheets for the ranks of `job`, whose name is `name`.
    pub(crate) fn new(job: &Job, name: &str) -> io::Result<Self> {
        let mut fds = Vec::with_capacity(job.size);
        let mut ranks = Vec::with_capacity(job.size);
        for _ in 0..job.size {
            let (sheet, fd) = Sheet::create()?;
            fds.push(raise(fd.into())?);
            ranks.push(Entry {
                sheet,
                state: AtomicI32::new(WAITING),
                pid: AtomicI32::new(0),
                starts: AtomicU32::new(0),
            });
        }
        let id = job_id(name);
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let metrics = Arc::new(JobMetrics { host: Host { name, job: id }, first: job.first, ranks });
        Ok(Self { metrics, fds })
    }

    /// Answers Prometheus on this listener from now on.
    pub(crate) fn serve(&self, listener: TcpListener) -> io::Result<()> {
        let shown = self.metrics.clone();
        // It ends with the process: nothing in it is worth waiting for.
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || http::serve(&listener, |target| page(&shown, target)))?;
        Ok(())
    }

    /// Returns the function that answers `comity top` about the ranks here.
    pub(crate) fn view(
        &self,
        job: &Job,
        launcher: Pid,
        is_part: bool,
    ) -> impl Fn() -> JobView + Send + 'static {
        let metrics = self.metrics.clone();
        let begun = Instant::now();
        let words = job.request.command.iter().map(|w| w.to_string_lossy());
        let words = comity_cluster::printable(&words.collect::<Vec<_>>().join(" "), 200);
        let size = job.world;
        move || JobView {
            launcher: launcher.as_raw_pid(),
            command: words.clone(),
            is_part,
            up_ns: begun.elapsed().as_nanos() as u64,
            ranks: metrics.look(),
            ..view::job(&metrics.host.job, &metrics.host.name, size)
        }
    }

    /// State of the ranks just now.
    pub(crate) fn look(&self) -> Vec<RankView> {
        self.metrics.look()
    }

    /// The descriptor that this rank inherits.
    pub(crate) fn fd(&self, rank: usize) -> Option<RawFd> {
        self.fds.get(rank).map(AsRawFd::as_raw_fd)
    }

    pub(crate) fn started(&self, rank: usize, pid: Pid) {
        if let Some(entry) = self.metrics.ranks.get(rank) {
            entry.pid.store(pid.as_raw_pid(), Ordering::Relaxed);
            entry.starts.fetch_add(1, Ordering::Relaxed);
        }
        self.note(rank, RUNNING);
    }

    pub(crate) fn ended(&self, rank: usize, ending: Ending) {
        self.note(rank, ending.code().into());
    }

    fn note(&self, rank: usize, state: i32) {
        if let Some(entry) = self.metrics.ranks.get(rank) {
            entry.state.store(state, Ordering::Relaxed);
        }
    }
}

fn page(metrics: &JobMetrics, target: &str) -> Reply {
    if target.split('?').next() != Some("/metrics") {
        return Reply::refusal("404 Not Found", "the counters are at /metrics");
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Reply { status: "200 OK", kind, body: text::write(metrics), ..Reply::default() }
}

impl JobMetrics {
    fn look(&self) -> Vec<RankView> {
        let stopped = tree::stopped();
        let rank = |(entry, rank): (&Entry, usize)| {
            let pid = entry.pid.load(Ordering::Relaxed);
            let state = match entry.state.load(Ordering::Relaxed) {
                WAITING => RankState::Waiting,
                RUNNING if stopped.iter().any(|p| p.as_raw_pid() == pid) => RankState::Stopped,
                RUNNING => RankState::Running,
                code => RankState::Ended(code as u8),
            };
            let restarts = entry.starts.load(Ordering::Relaxed).saturating_sub(1);
            RankView { pid, state, restarts, ..view::rank(&entry.sheet, rank, &self.host.name) }
        };
        self.ranks.iter().zip(self.first..).map(rank).collect()
    }
}

/// Id that stands for a job's name where anybody may read it: in a job without a key, whoever knows the name can join. 64 bits of
/// its SHA-256, which tell the jobs of a site apart and do not lead back to the name.
pub(crate) fn job_id(name: &str) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    hash.as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// An address to listen on, and no other.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an address of this host and a port, such as 127.0.0.1:9400 or [::1]:9400 (port 0 takes a free one)".into()
    })
}
