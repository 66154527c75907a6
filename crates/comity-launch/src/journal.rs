//! `--json-events`: what happens to a job, for programs: one JSON object a line, in a file or an open descriptor.
//!
//! | event | fields |
//! |---|---|
//! | `host` | `host`, `state` (`ready`, `lost`), `ranks` |
//! | `started` | `rank`, `pid`, `host` |
//! | `joined` | `rank`, if this launcher started it; `guests`: how many processes are in the group that it did not start |
//! | `line` | `rank`, `stream` (`out`, `err`), `text` |
//! | `exit` | `rank`, `host`, and `code` or `signal` |
//! | `failure` | `text` |
//! | `restart` | `number`, `of`: the job begins again after an `end`; the same number once more where a host was away |
//! | `end` | `code` |
//!
//! Each has `event` and `time`, in seconds since 1970.
use crate::host::output::{Lines, OutputStream};
use crate::machine::Ending;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// Past this many bytes that nobody took, lines of ranks are left out, and it is said how many.
const UNTAKEN: usize = 16 << 20;
/// Time to wait for a reader at the end.
const READER: Duration = Duration::from_secs(2);

/// Writer of the events; it writes nowhere if nobody asked.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    to: Option<Sender<String>>,
    /// Bytes that were not written yet.
    queued: Arc<AtomicUsize>,
    lines: BTreeMap<(usize, bool), Lines>,
    left_out: u64,
}

/// A file by its name, or a descriptor that this process was started with by its number.
pub(crate) fn open(at: &OsStr) -> io::Result<Arc<File>> {
    let number = at.to_str().filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit()));
    let file = match number {
        Some(number) => File::options().append(true).open(format!("/dev/fd/{number}")),
        None => File::create(at),
    };
    file.map(Arc::new)
}

/// Writes the events until one cannot be written, which is told once: what followed half a line could not be read.
fn put(from: Receiver<String>, mut to: impl Write, queued: &AtomicUsize, tell: impl Fn(&io::Error)) {
    let mut is_lost = false;
    for text in from {
        if !is_lost && let Err(e) = to.write_all(text.as_bytes()) {
            is_lost = true;
            // Who does not read them any more has ended.
            if e.kind() != io::ErrorKind::BrokenPipe {
                tell(&e);
            }
        }
        queued.fetch_sub(text.len(), Ordering::AcqRel);
    }
}

impl Journal {
    pub(crate) fn to(file: Option<Arc<File>>) -> io::Result<Self> {
        let Some(file) = file else { return Ok(Self::default()) };
        let (to, from) = channel::<String>();
        let queued = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&queued);
        // Detached: it may sit in a write for ever, and ends with the process.
        std::thread::Builder::new().name("events".into()).spawn(move || {
            put(from, &*file, &left, |e| {
                let _ = writeln!(
                    io::stderr(),
                    "comity launch: --json-events: {e}; the job goes on, and the rest of its events is left out"
                );
            });
        })?;
        Ok(Self { to: Some(to), queued, lines: BTreeMap::new(), left_out: 0 })
    }

    pub(crate) fn host(&self, host: &str, state: &str, ranks: std::ops::Range<usize>) {
        self.tell("host", json!({"host": host, "state": state, "ranks": ranks.collect::<Vec<_>>()}));
    }

    pub(crate) fn restarts(&self, number: u32, of: u32) {
        self.tell("restart", json!({"number": number, "of": of}));
    }

    pub(crate) fn started(&self, rank: usize, pid: i32, host: &str) {
        self.tell("started", json!({"rank": rank, "pid": pid, "host": host}));
    }

    pub(crate) fn joined(&self, rank: Option<usize>, guests: usize) {
        self.tell("joined", json!({"rank": rank, "guests": guests}));
    }

    /// A rank has written this.
    pub(crate) fn wrote(&mut self, rank: usize, stream: OutputStream, bytes: &[u8]) {
        if self.to.is_none() {
            return;
        }
        let lines = self.lines.entry((rank, stream == OutputStream::Err)).or_insert_with(Lines::plain);
        let mut whole = Vec::new();
        lines.take(bytes, &mut whole);
        self.tell_lines(rank, stream, &whole);
    }

    fn tell_lines(&mut self, rank: usize, stream: OutputStream, whole: &[u8]) {
        let name = if stream == OutputStream::Err { "err" } else { "out" };
        for line in whole.split_inclusive(|&b| b == b'\n') {
            if self.queued.load(Ordering::Acquire) > UNTAKEN {
                self.left_out += 1;
                continue;
            }
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned();
            self.tell("line", json!({"rank": rank, "stream": name, "text": text}));
        }
    }

    pub(crate) fn ended(&self, rank: usize, ending: Ending, host: &str) {
        let (key, number) = match ending {
            Ending::Exit(code) => ("code", code),
            Ending::Signal(signal) => ("signal", signal),
        };
        self.tell("exit", json!({"rank": rank, "host": host, key: number}));
    }

    /// The job has ended, by this failure if there is one.
    pub(crate) fn over(&mut self, failure: Option<&str>, code: u8) {
        for ((rank, err), mut lines) in std::mem::take(&mut self.lines) {
            let mut whole = Vec::new();
            lines.finish(&mut whole);
            self.tell_lines(rank, OutputStream::BOTH[usize::from(err)], &whole);
        }
        if self.left_out > 0 {
            self.tell("left_out", json!({"lines": self.left_out}));
        }
        if let Some(text) = failure {
            self.tell("failure", json!({"text": text}));
        }
        self.tell("end", json!({"code": code}));
        let since = Instant::now();
        while self.queued.load(Ordering::Acquire) > 0 && since.elapsed() < READER {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn tell(&self, event: &str, mut fields: Value) {
        let Some(to) = &self.to else { return };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        fields["event"] = event.into();
        fields["time"] = (time.as_micros() as f64 / 1e6).into();
        let text = format!("{fields}\n");
        self.queued.fetch_add(text.len(), Ordering::AcqRel);
        let _ = to.send(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_of_json() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut journal = Journal::to(Some(open(file.path().as_os_str()).unwrap())).unwrap();
        journal.host("a", "ready", 0..2);
        journal.started(1, 77, "a");
        journal.wrote(1, OutputStream::Out, b"\r 5%\r10%\nhalf \xff");
        journal.ended(1, Ending::Signal(9), "a");
        journal.over(Some("rank 1 was killed"), 137);
        let text = std::fs::read_to_string(file.path()).unwrap();
        let all: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let events: Vec<_> = all.iter().map(|e| e["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["host", "started", "line", "exit", "line", "failure", "end"]);
        assert_eq!((&all[2]["text"], &all[4]["text"]), (&json!("10%"), &json!("half \u{fffd}")));
        assert_eq!((&all[3]["signal"], &all[6]["code"]), (&json!(9), &json!(137)));
        assert!(all.iter().all(|e| e["time"].as_f64().unwrap() > 1.7e9));
    }

    /// A disk with room for so many bytes.
    struct Small(usize);

    impl Write for Small {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let n = text.len().min(self.0);
            self.0 -= n;
            if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told_once() {
        let (to, from) = channel();
        (0..3).for_each(|_| to.send("{}\n".to_owned()).unwrap());
        drop(to);
        let queued = AtomicUsize::new(9);
        let told = std::cell::Cell::new(0);
        put(from, Small(4), &queued, |e| {
            assert_eq!(e.kind(), io::ErrorKind::StorageFull);
            told.set(told.get() + 1);
        });
        assert_eq!((queued.into_inner(), told.get()), (0, 1));
    }

    #[test]
    fn nobody_who_asks_costs_nothing() {
        let mut journal = Journal::default();
        journal.wrote(0, OutputStream::Out, b"x\n");
        assert!(journal.lines.is_empty());
        assert!(open("/nowhere/file".as_ref()).is_err() && open("9999".as_ref()).is_err());
    }
}
