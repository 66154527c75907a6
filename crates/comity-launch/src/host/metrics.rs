//! Counters of the ranks, and their calls just now: for Prometheus (`--metrics`), and for `comity top` and `comity stacks`.
//!
//! Each rank inherits a sheet of memory and counts there; a thread of the supervisor reads the sheets when somebody asks. No
//! rank waits for it or notices it, and what a rank did stands there also after it was killed.
use crate::host::job::Job;
use crate::host::meet::raise;
use crate::host::tree;
use crate::http::{self, Reply};
use crate::live::{self, JobView, RankState, RankView};
use crate::machine::Ending;
use comity::tools::{Sheet, Tally};
use rustix::process::Pid;
use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Instant;

const WAITING: i32 = -2;
const RUNNING: i32 = -1;

/// State of the ranks, for whoever asks.
#[derive(Debug)]
struct JobMetrics {
    host: Host,
    first: usize,
    ranks: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    sheet: Sheet,
    /// The exit code, or one of the above.
    state: AtomicI32,
    pid: AtomicI32,
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
            ..live::job(&metrics.host.job, &metrics.host.name, size)
        }
    }

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
    Reply { status: "200 OK", kind, body: write(metrics), ..Reply::default() }
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
            RankView { pid, state, restarts, ..live::rank(&entry.sheet, rank, &self.host.name) }
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

/// The same for all ranks of a launcher.
#[derive(Debug)]
struct Host {
    name: String,
    job: String,
}

/// Everything, in the text format of Prometheus (version 0.0.4).
fn write(metrics: &JobMetrics) -> String {
    let ranks: Vec<(usize, i32, Tally)> = metrics
        .ranks
        .iter()
        .enumerate()
        .map(|(rank, entry)| (rank, entry.state.load(Ordering::Relaxed), entry.sheet.read()))
        .collect();
    let mut page = Page(String::new());
    page.head("comity_job_info", "gauge", "The job that this launcher keeps; always 1.");
    let version = crate::VERSION;
    let labels = [("job_id", metrics.host.job.as_str()), ("host", &metrics.host.name), ("version", version)];
    page.line("comity_job_info", &labels, 1);
    page.head("comity_job_ranks", "gauge", "Ranks of the job.");
    page.line("comity_job_ranks", &[], ranks.len());

    page.head("comity_rank_up", "gauge", "1 while the process of the rank runs.");
    for (rank, state, _) in &ranks {
        page.rank("comity_rank_up", *rank, u8::from(*state == RUNNING));
    }
    page.head(
        "comity_rank_exit_code",
        "gauge",
        "Exit code of a rank that has ended; 128 + N after signal N.",
    );
    for (rank, state, _) in ranks.iter().filter(|(_, state, _)| *state >= 0) {
        page.rank("comity_rank_exit_code", *rank, state);
    }
    page.tallies(&ranks);
    page.0
}

type Ranks = [(usize, i32, Tally)];

struct Page(String);

// Writing to a string does not fail.
impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn rank(&mut self, name: &str, rank: usize, value: impl std::fmt::Display) {
        self.line(name, &[("rank", &rank.to_string())], value);
    }

    /// Adds the counters of the ranks' groups.
    fn tallies(&mut self, ranks: &Ranks) {
        self.each("comity_groups_open", "gauge", "Groups that are open in the rank.", ranks, |t| t.groups);
        self.head("comity_calls_total", "counter", "Calls that succeeded, by operation.");
        for (rank, _, tally) in ranks {
            self.ops("comity_calls_total", *rank, tally, |calls, _| calls);
        }
        self.head("comity_sent_bytes_total", "counter", "Payload bytes sent to other ranks, by operation.");
        for (rank, _, tally) in ranks {
            self.ops("comity_sent_bytes_total", *rank, tally, |_, bytes| bytes);
        }
        self.each("comity_call_errors_total", "counter", "Calls that failed.", ranks, |t| t.errors);
        let help = "Time asleep in calls, waiting for other ranks.";
        self.each("comity_waited_seconds_total", "counter", help, ranks, |t| t.parked.as_secs_f64());
        let help = "How often another rank was silent for a fifth of the detection limit.";
        self.each("comity_suspicions_total", "counter", help, ranks, |t| t.suspicions);
        let help = "The longest time for which nothing was heard from one other rank.";
        let longest = |t: &Tally| t.longest_silence.as_secs_f64();
        self.each("comity_longest_silence_seconds", "gauge", help, ranks, longest);
    }

    /// A number of each rank.
    fn each<V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        ranks: &Ranks,
        of: impl Fn(&Tally) -> V,
    ) {
        self.head(name, kind, help);
        for (rank, _, tally) in ranks {
            self.rank(name, *rank, of(tally));
        }
    }

    /// The operations that the rank has used.
    fn ops(&mut self, name: &str, rank: usize, tally: &Tally, of: impl Fn(u64, u64) -> u64) {
        let rank = rank.to_string();
        for (op, calls, bytes) in tally.ops.iter().filter(|(_, calls, bytes)| calls + bytes > 0) {
            self.line(name, &[("rank", &rank), ("op", op.name())], of(*calls, *bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_names_are_written_by_the_rules() {
        let entry = |state| Entry {
            sheet: Sheet::create().unwrap().0,
            state: AtomicI32::new(state),
            pid: AtomicI32::new(0),
            starts: AtomicU32::new(1),
        };
        let metrics = JobMetrics {
            host: Host { name: "a\"b\\c\nd".into(), job: "7f".into() },
            first: 0,
            ranks: vec![entry(RUNNING), entry(137), entry(WAITING)],
        };
        let text = write(&metrics);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        has(&format!(r#"comity_job_info{{job_id="7f",host="a\"b\\c\nd",version="{}"}} 1"#, crate::VERSION));
        has("comity_job_ranks 3");
        has(r#"comity_rank_up{rank="0"} 1"#);
        has(r#"comity_rank_up{rank="1"} 0"#);
        has(r#"comity_rank_up{rank="2"} 0"#);
        has(r#"comity_rank_exit_code{rank="1"} 137"#);
        has("# TYPE comity_calls_total counter");
        assert_eq!(text.matches("comity_rank_exit_code{").count(), 1);
        assert!(!text.contains("comity_calls_total{") && text.ends_with('\n'));
    }
}
