//! Output of a rank, in lines that a program reads.
use comity::{Error, ErrorKind};
use std::{
    fmt::Display,
    fs,
    io::Write,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// More threads than ever after a job, for so long, are threads that were left.
const SETTLED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Words {
    rank: usize,
}

impl Words {
    pub(crate) fn new(rank: usize) -> Self {
        Self { rank }
    }

    pub(crate) fn say(&self, event: &str, more: &[&dyn Display]) {
        let mut line = format!("@chaos\t{event}\t{}\t{}", self.rank, chaos::monotonic());
        for field in more {
            line += "\t";
            line += &field.to_string().replace(['\n', '\t'], " ");
        }
        line += "\n";
        // Whoever listened may be gone.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }

    /// A call or a join that failed: the error's kind, whom it blames, its words, and what only some errors have: why ranks did not
    /// come together, the address that was tried, and who saw a rank go.
    pub(crate) fn failed(&self, event: &str, e: &Error) {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let ranks: Vec<String> = e.ranks().iter().map(usize::to_string).collect();
        let who = or_none((!ranks.is_empty()).then(|| ranks.join(",")));
        let (cause, address) = match e.root().kind() {
            ErrorKind::Join(why) => (Some(why.cause.name().to_owned()), why.address.clone()),
            _ => (None, None),
        };
        let seen_by = match e.root().kind() {
            ErrorKind::PeerLost { seen_by, .. } => seen_by.map(|r| r.to_string()),
            _ => None,
        };
        self.say(event, &[&kind(e.root()), &who, e, &or_none(cause), &or_none(address), &or_none(seen_by)]);
    }

    /// Report the resources that this process still holds: descriptors, threads, shared memory of groups.
    pub(crate) fn left(&self) {
        let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).map_or(0, Iterator::count);
        // A thread that was joined is listed until the system has put it away.
        static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
        let until = Instant::now() + SETTLED;
        let mut threads = count("task");
        while threads > LEAST.load(Ordering::Relaxed) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
            threads = count("task");
        }
        LEAST.fetch_min(threads, Ordering::Relaxed);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let maps = maps.lines().filter(|l| l.contains("memfd:comity")).count();
        self.say("left", &[&count("fd"), &threads, &maps]);
    }
}

fn kind(e: &Error) -> &'static str {
    match e.kind() {
        ErrorKind::PeerLost { .. } => "lost",
        ErrorKind::Mismatch { .. } => "mismatch",
        ErrorKind::Aborted { .. } => "aborted",
        ErrorKind::Timeout { .. } => "timeout",
        ErrorKind::Join(_) => "join",
        ErrorKind::Config(_) => "config",
        ErrorKind::Unavailable { .. } => "unavailable",
        ErrorKind::Os { .. } => "os",
        ErrorKind::Closed => "closed",
        _ => "other",
    }
}
