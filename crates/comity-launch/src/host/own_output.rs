//! The launcher's own standard output and error: written by threads, so that a terminal that does not take
//! its output stops neither signals nor deadlines, with bounded memory in between.
use crate::host::output_stream::OutputStream;
use crate::machine::{Problem, REFUSED};
use crate::protocol::{self, HostEvent};
use comity_base::{sync::lock, sys::Waker};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Past this many bytes that nobody took, the ranks' pipes are left alone until it has become less.
const ROOM: usize = 1 << 20;
/// To the line's beginning, and nothing in it.
const WIPE: &[u8] = b"\r\x1b[K";

/// The problem that a stream cannot be written any more.
pub(crate) fn unread(stream: OutputStream, error: Errno) -> Problem {
    let name = stream.name();
    match error {
        Errno::PIPE => Problem { why: format!("ended because nobody reads {name} any more"), code: 141 },
        error => {
            let error = io::Error::from(error);
            Problem { why: format!("ended because {name} cannot be written: {error}"), code: REFUSED }
        }
    }
}

/// Both streams, and the threads that write them.
#[derive(Debug)]
pub(crate) struct Outputs {
    out: Arc<OutputWriter>,
    /// The same as `out` when both lead to one place: then one thread keeps their lines apart.
    err: Arc<OutputWriter>,
    /// Readable when something was written or has failed.
    waker: Arc<Waker>,
    /// To a launcher on another host, as frames on standard output.
    framed: bool,
}

impl Outputs {
    pub(crate) fn open() -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let out = OutputWriter::start(&waker)?;
        let err = if one_place() { out.clone() } else { OutputWriter::start(&waker)? };
        Ok(Self { out, err, waker, framed: false })
    }

    /// Everything goes to the launcher as frames.
    pub(crate) fn framed() -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let out = OutputWriter::start(&waker)?;
        Ok(Self { err: out.clone(), out, waker, framed: true })
    }

    /// Queues what rank `rank` has written: whole lines (or, from a rank that is alone, any bytes).
    pub(crate) fn put_of(&self, rank: usize, stream: OutputStream, bytes: &[u8]) {
        if !self.framed {
            return self.put(stream, bytes);
        }
        for piece in bytes.chunks(protocol::LARGEST / 2) {
            self.event(&HostEvent::Output { rank, stream, bytes: piece.to_vec() });
        }
    }

    /// Tells the launcher on the other host; nobody where there is none.
    pub(crate) fn event(&self, event: &HostEvent) {
        if self.framed {
            self.put(OutputStream::Out, &event.encode());
        }
    }

    /// The same, for another thread.
    pub(crate) fn teller(&self) -> impl Fn(&HostEvent) + Send + 'static {
        let out = Arc::clone(&self.out);
        move |event| out.put(OutputStream::Out, &event.encode())
    }

    /// Returns whether the launcher is on another host, and gets frames.
    pub(crate) fn is_framed(&self) -> bool {
        self.framed
    }

    /// Queues whole lines (or, from a rank that is alone, any bytes).
    pub(crate) fn put(&self, stream: OutputStream, bytes: &[u8]) {
        self.of(stream).put(stream, bytes);
    }

    /// Shows a line that the next one is written over; only on a terminal.
    pub(crate) fn progress(&self, stream: OutputStream, line: &[u8]) {
        if !self.framed && stream.is_live() {
            self.of(stream).progress(stream, line);
        }
    }

    /// Queues a line of the launcher itself.
    pub(crate) fn say(&self, text: &str) {
        match self.framed {
            true => self.event(&HostEvent::Say(text.into())),
            false => self.err.say(text),
        }
    }

    /// The same, for another thread.
    pub(crate) fn voice(&self) -> impl Fn(&str) + Send + 'static {
        let err = Arc::clone(&self.err);
        move |text| err.say(text)
    }

    pub(crate) fn has_room(&self, stream: OutputStream) -> bool {
        self.of(stream).lock().size < ROOM
    }

    /// Takes the first failure to write that was not told yet.
    pub(crate) fn failure(&self) -> Option<(OutputStream, Errno)> {
        OutputStream::BOTH.into_iter().find_map(|stream| {
            let mut queue = self.of(stream).lock();
            let slot = queue.failed.iter_mut().find(|f| f.stream == stream && !f.told)?;
            slot.told = true;
            Some((stream, slot.error))
        })
    }

    pub(crate) fn want(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN)
    }

    /// Returns whether something is still to be written.
    pub(crate) fn is_pending(&self) -> bool {
        self.out.lock().size > 0 || self.err.lock().size > 0
    }

    /// A number that changes whenever something was written.
    pub(crate) fn written(&self) -> u64 {
        let err = if Arc::ptr_eq(&self.out, &self.err) { 0 } else { self.err.lock().written };
        self.out.lock().written + err
    }

    /// Empties the waker.
    pub(crate) fn drain(&self) {
        self.waker.drain();
    }

    fn of(&self, stream: OutputStream) -> &OutputWriter {
        match stream {
            OutputStream::Out => &self.out,
            OutputStream::Err => &self.err,
        }
    }
}

/// Returns whether standard output and error are the same file, pipe or terminal.
fn one_place() -> bool {
    match (rustix::fs::fstat(OutputStream::Out.fd()), rustix::fs::fstat(OutputStream::Err.fd())) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => true,
    }
}

#[derive(Debug, Default)]
struct OutputWriter {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: Vec<(OutputStream, Vec<u8>)>,
    /// Bytes queued or being written.
    size: usize,
    /// Number of times that the writer got something written.
    written: u64,
    inside_line: bool,
    /// The cursor stands behind a line that is to be written over.
    over: bool,
    failed: Vec<Failure>,
}

#[derive(Debug)]
struct Failure {
    stream: OutputStream,
    error: Errno,
    told: bool,
}

impl Queue {
    fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.size += bytes.len();
        match self.pieces.last_mut() {
            Some((to, piece)) if *to == stream => piece.extend_from_slice(bytes),
            _ => self.pieces.push((stream, bytes.to_vec())),
        }
    }

    fn failed(&self, stream: OutputStream) -> Option<Errno> {
        self.failed.iter().find(|f| f.stream == stream).map(|f| f.error)
    }
}

impl OutputWriter {
    fn start(waker: &Arc<Waker>) -> io::Result<Arc<Self>> {
        let output = Arc::new(Self::default());
        let theirs = output.clone();
        let waker = Arc::clone(waker);
        // Detached: it may sit in a write for ever, and ends with the process.
        std::thread::Builder::new().name("output".into()).spawn(move || theirs.run(&waker))?;
        Ok(output)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn put(&self, stream: OutputStream, bytes: &[u8]) {
        let mut queue = self.lock();
        let Some(last) = bytes.last() else { return };
        if queue.failed(stream).is_some() {
            return;
        }
        queue.inside_line = *last != b'\n';
        if std::mem::take(&mut queue.over) {
            queue.push(stream, WIPE);
        }
        queue.push(stream, bytes);
        self.changed.notify_one();
    }

    fn progress(&self, stream: OutputStream, line: &[u8]) {
        let mut queue = self.lock();
        if queue.failed(stream).is_some() || (queue.inside_line && !queue.over) {
            return;
        }
        let columns =
            rustix::termios::tcgetwinsize(stream.fd()).map_or(80, |w| usize::from(w.ws_col.max(20)));
        // One that wraps could not be written over.
        let line: String = String::from_utf8_lossy(line).chars().take(columns - 1).collect();
        queue.push(stream, WIPE);
        queue.push(stream, line.as_bytes());
        // In case a colour was cut off.
        queue.push(stream, if line.contains('\x1b') { b"\x1b[0m" } else { b"" });
        queue.over = true;
        self.changed.notify_one();
    }

    fn say(&self, text: &str) {
        let start = match &*self.lock() {
            queue if queue.inside_line && !queue.over => "\n",
            _ => "",
        };
        self.put(OutputStream::Err, format!("{start}comity launch: {text}\n").as_bytes());
    }

    fn run(&self, waker: &Waker) {
        loop {
            let mut queue = self.lock();
            while queue.pieces.is_empty() {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let pieces = std::mem::take(&mut queue.pieces);
            drop(queue);
            for (stream, bytes) in pieces {
                self.write(stream, &bytes);
                waker.wake();
            }
        }
    }

    fn write(&self, stream: OutputStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.lock().failed(stream).is_some() {
                self.lock().size -= bytes.len();
                return;
            }
            match rustix::io::write(stream.fd(), bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    let mut queue = self.lock();
                    queue.size -= n;
                    queue.written += 1;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Someone who shares the terminal made it non-blocking.
                    let _ = rustix::event::poll(
                        &mut [PollFd::from_borrowed_fd(stream.fd(), PollFlags::OUT)],
                        None,
                    );
                }
                Err(error) => {
                    self.lock().failed.push(Failure { stream, error, told: false });
                }
            }
        }
    }
}
