//! `--metrics`: what the ranks have done so far, for Prometheus.
//!
//! Each rank inherits a sheet of memory and counts there; a thread of the supervisor reads the sheets when somebody asks. No
//! rank waits for it or notices it, and what a rank did stands there also after it was killed.
mod server;
mod text;

use super::ending::Ending;
use super::handed::raise;
use comity::tools::Sheet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use text::Host;

/// Not started yet.
const WAITING: i32 = -2;
const RUNNING: i32 = -1;

/// What is known of the ranks, for whoever asks.
#[derive(Debug)]
struct JobMetrics {
    host: Host,
    ranks: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    sheet: Sheet,
    /// The exit code, or one of the above.
    state: AtomicI32,
}

/// The sheets of all ranks, and the thread that answers Prometheus from them.
#[derive(Debug)]
pub(super) struct Metrics {
    metrics: Arc<JobMetrics>,
    /// What the ranks inherit.
    fds: Vec<OwnedFd>,
}

impl Metrics {
    /// Answers on this listener from now on.
    pub(super) fn serve(listener: TcpListener, job: &str, size: usize) -> io::Result<Self> {
        let (mut fds, mut ranks) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for _ in 0..size {
            let (sheet, fd) = Sheet::create()?;
            fds.push(raise(fd.into())?);
            ranks.push(Entry { sheet, state: AtomicI32::new(WAITING) });
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let metrics = Arc::new(JobMetrics { host: Host { name, job: job_id(job) }, ranks });
        let shown = metrics.clone();
        // It ends with the process: nothing in it is worth waiting for.
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || server::serve(&listener, || text::write(&shown)))?;
        Ok(Self { metrics, fds })
    }

    /// The descriptor that this rank inherits.
    pub(super) fn fd(&self, rank: usize) -> Option<RawFd> {
        self.fds.get(rank).map(AsRawFd::as_raw_fd)
    }

    pub(super) fn started(&self, rank: usize) {
        self.note(rank, RUNNING);
    }

    pub(super) fn ended(&self, rank: usize, ending: Ending) {
        self.note(rank, ending.code().into());
    }

    fn note(&self, rank: usize, state: i32) {
        if let Some(entry) = self.metrics.ranks.get(rank) {
            entry.state.store(state, Ordering::Relaxed);
        }
    }
}

/// What stands for a job's name where anybody may read it: in a job without a key, whoever knows the name can join. 64 bits of
/// its SHA-256, which tell the jobs of a site apart and do not lead back to the name.
fn job_id(name: &str) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    hash.as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// An address to listen on, and no other.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an address of this host and a port, such as 127.0.0.1:9400 or [::1]:9400 (port 0 takes a free one)".into()
    })
}
