//! Output of the ranks, cut into pieces that can be written between those of other ranks, and the launcher's own: written by threads, so that a
//! terminal that does not take its output stops neither signals nor deadlines, with bounded memory in between.
use crate::machine::{Problem, REFUSED};
use crate::protocol::{self, HostEvent};
use comity_base::sync::lock;
use comity_base::sys::Waker;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Past this many bytes that nobody took, the ranks' pipes are left alone until it has become less.
const ROOM: usize = 1 << 20;
/// To the line's beginning, and nothing in it.
const WIPE: &[u8] = b"\r\x1b[K";

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

    pub(crate) fn is_pending(&self) -> bool {
        self.out.lock().size > 0 || self.err.lock().size > 0
    }

    /// A number that changes whenever something was written.
    pub(crate) fn written(&self) -> u64 {
        let err = if Arc::ptr_eq(&self.out, &self.err) { 0 } else { self.err.lock().written };
        self.out.lock().written + err
    }

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Out,
    Err,
}

impl OutputStream {
    pub(crate) const BOTH: [Self; 2] = [Self::Out, Self::Err];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Out => "standard output",
            Self::Err => "standard error",
        }
    }

    /// Returns whether it leads to a terminal on which lines can be written over.
    pub(crate) fn is_live(self) -> bool {
        rustix::termios::isatty(self.fd()) && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
    }

    /// Returns whether text that is written there may have colours.
    pub(crate) fn has_colour(self) -> bool {
        self.is_live() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
    }

    /// The launcher's own.
    pub(super) fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Out => rustix::stdio::stdout(),
            Self::Err => rustix::stdio::stderr(),
        }
    }
}

/// Stream of a rank on its way to the launcher's output and to its log.
#[derive(Debug)]
pub(crate) struct RankStream {
    pub(crate) stream: OutputStream,
    lines: Lines,
    log: Option<File>,
}

impl RankStream {
    pub(crate) fn new(
        stream: OutputStream,
        lines: impl Fn(OutputStream) -> Lines,
        log: Option<File>,
    ) -> Self {
        Self { stream, lines: lines(stream), log }
    }

    /// Shows and logs what the rank has written.
    pub(crate) fn wrote(&mut self, rank: usize, bytes: &[u8], output: &Outputs) {
        let mut show = Vec::new();
        self.lines.take(bytes, &mut show);
        output.put_of(rank, self.stream, &show);
        if let Some(line) = self.lines.progress() {
            output.progress(self.stream, &line);
        }
        if let Some(file) = &mut self.log
            && let Err(e) = file.write_all(bytes)
        {
            self.log = None;
            let name = self.stream.name();
            output.say(&format!("rank {rank}: its {name} is no longer written to --log-dir: {e}"));
        }
    }

    pub(crate) fn finish(&mut self, rank: usize, output: &Outputs) {
        let mut show = Vec::new();
        self.lines.finish(&mut show);
        output.put_of(rank, self.stream, &show);
    }
}

/// A line longer than this is written in parts, so that a rank that never ends its line needs no more memory.
pub(crate) const LONGEST: usize = 64 << 10;

/// Output stream of a rank.
#[derive(Debug)]
pub(crate) enum Lines {
    /// Its bytes pass at once, also a prompt that waits for an answer: the only rank, untagged; the one that a user talks to.
    Straight,
    Whole(WholeLines),
}

/// A stream whose lines are shown when they are whole.
#[derive(Debug, Default)]
pub(crate) struct WholeLines {
    tag: String,
    /// The tag of a further part of a line that was too long.
    more: String,
    part: Vec<u8>,
    /// The line has begun in an earlier part.
    begun: bool,
    /// Only the last text of a line that is written over (by `\r`) is shown.
    updates: bool,
    /// Text before the last `\r`, unless that was empty.
    before: Vec<u8>,
    /// There was a `\r` in this line, and what it says was not asked for since.
    updated: Option<bool>,
}

/// The colours of tags: of all that terminals have, those that mean neither an error nor success.
const COLOURS: [u8; 6] = [36, 33, 35, 34, 96, 95];

impl Lines {
    pub(crate) fn new(rank: usize, size: usize, tag: bool, colour: bool) -> Self {
        if size == 1 && !tag {
            return Self::Straight;
        }
        if tag {
            return Self::tagged(rank, "", colour);
        }
        Self::Whole(WholeLines::default())
    }

    /// Each line begins with "[3@host] ", or "[3] " where there is no `place`.
    pub(crate) fn tagged(rank: usize, place: &str, colour: bool) -> Self {
        let paint = |tag: String| match colour {
            true => format!("\x1b[{}m{tag}\x1b[0m ", COLOURS[rank % COLOURS.len()]),
            false => format!("{tag} "),
        };
        let tag = paint(format!("[{rank}{place}]"));
        let more = paint(format!("[{rank}+{place}]"));
        Self::Whole(WholeLines { tag, more, updates: true, ..WholeLines::default() })
    }

    /// Whole lines without a tag, of each what it says last.
    pub(crate) fn plain() -> Self {
        Self::Whole(WholeLines { updates: true, ..WholeLines::default() })
    }

    /// Takes what was read and appends to `out` what can be written now: whole lines, or parts that end as one.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Straight => out.extend_from_slice(bytes),
            Self::Whole(lines) => lines.take(bytes, out),
        }
    }

    /// Current text of a line that is written over, with its tag, if that is news.
    pub(crate) fn progress(&mut self) -> Option<Vec<u8>> {
        let Self::Whole(lines) = self else { return None };
        let updated = lines.updated.as_mut()?;
        let text = if lines.part.is_empty() { &lines.before } else { &lines.part };
        let news = std::mem::take(updated) && !text.is_empty();
        news.then(|| [lines.tag.as_bytes(), text].concat())
    }

    /// The stream has ended: appends what is left of its last line.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if let Self::Whole(lines) = self
            && !(lines.part.is_empty() && lines.before.is_empty())
        {
            lines.end_line(out);
        }
    }
}

impl WholeLines {
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let updates = self.updates;
        for piece in bytes.split_inclusive(|&b| b == b'\n' || (updates && b == b'\r')) {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let over = text.len() == piece.len() && self.updates && piece.ends_with(b"\r");
            self.part.extend_from_slice(text.strip_suffix(b"\r").filter(|_| over).unwrap_or(text));
            self.cut_long(out);
            if over {
                self.updated = Some(true);
                if !self.part.is_empty() {
                    self.before = std::mem::take(&mut self.part);
                }
            } else if text.len() < piece.len() {
                self.end_line(out);
            } else if let Some(updated) = &mut self.updated {
                *updated = true;
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if self.part.is_empty() {
            self.part.append(&mut self.before);
        }
        out.extend_from_slice(if self.begun { self.more.as_bytes() } else { self.tag.as_bytes() });
        out.append(&mut self.part);
        out.push(b'\n');
        self.before.clear();
        self.begun = false;
        self.updated = None;
    }

    /// Moves the front of a line that is too long to `out`, never splitting a character.
    fn cut_long(&mut self, out: &mut Vec<u8>) {
        while self.part.len() > LONGEST {
            let at = boundary(&self.part, LONGEST);
            out.extend_from_slice(if self.begun { self.more.as_bytes() } else { self.tag.as_bytes() });
            out.extend(self.part.drain(..at));
            out.push(b'\n');
            self.begun = true;
        }
    }
}

/// The last place at or before `at` that is not inside a UTF-8 character; `at` itself when the bytes are no UTF-8.
fn boundary(bytes: &[u8], at: usize) -> usize {
    let inside = |i: usize| bytes.get(i).is_some_and(|b| b & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|&i| !inside(i)).filter(|&i| i > 0).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn feed(lines: &mut Lines, chunks: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in chunks {
            lines.take(chunk, &mut out);
            assert!(out.is_empty() || matches!(lines, Lines::Straight) || out.ends_with(b"\n"));
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn lines_wait_until_they_are_whole() {
        let mut lines = Lines::new(3, 4, true, false);
        assert_eq!(feed(&mut lines, &[b"a", b"b\nc\n\nd", b"", b"e"]), b"[3] ab\n[3] c\n[3] \n[3] de\n");
        assert_eq!(feed(&mut Lines::new(3, 4, false, false), &[b"a", b"b\nc"]), b"ab\nc\n");
        assert_eq!(feed(&mut Lines::new(0, 1, false, false), &[b"a", b"b\nc"]), b"ab\nc");
        assert_eq!(feed(&mut Lines::new(0, 1, true, false), &[b"x\n"]), b"[0] x\n");
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        let all: Vec<u8> = (0..=255).filter(|&b| b != b'\n').collect();
        assert_eq!(feed(&mut Lines::new(0, 2, false, false), &[&all, b"\n"]), [&all[..], b"\n"].concat());
    }

    #[test]
    fn of_a_line_that_is_written_over_the_last_state_is_shown_and_each_can_be_asked_for() {
        let mut lines = Lines::tagged(2, "@b", false);
        let mut out = Vec::new();
        let mut after = |bytes: &[u8]| {
            lines.take(bytes, &mut out);
            lines.progress().map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(after(b"\r 10%").as_deref(), Some("[2@b]  10%"));
        assert_eq!(after(b""), None);
        assert_eq!(after(b"\r 20%\r 30%\r").as_deref(), Some("[2@b]  30%"));
        assert_eq!(after(b"\r100%\nplain\r\nnext"), None);
        assert_eq!(out, b"[2@b] 100%\n[2@b] plain\n");
        lines.finish(&mut out);
        assert!(out.ends_with(b"[2@b] next\n"));
        // Without tags all bytes are as they were written.
        assert_eq!(feed(&mut Lines::new(0, 2, false, false), &[b"\ra\rb\n"]), b"\ra\rb\n");
        assert_eq!(feed(&mut Lines::tagged(1, "", true), &[b"x\n"]), b"\x1b[33m[1]\x1b[0m x\n");
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_marked() {
        let mut text = String::from("a");
        while text.len() < 3 * LONGEST {
            text.push('€');
        }
        write!(text, "\nshort\n").unwrap();
        for step in [1000, 4096, LONGEST + 7, text.len()] {
            let mut lines = Lines::new(7, 8, true, false);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(step).collect();
            let out = String::from_utf8(feed(&mut lines, &chunks)).unwrap();
            let parts: Vec<&str> = out.lines().collect();
            assert!(parts[0].starts_with("[7] a€"));
            assert!(parts[1..parts.len() - 1].iter().all(|p| p.starts_with("[7+] €")), "{step}");
            assert_eq!(parts.last(), Some(&"[7] short"));
            let joined: String =
                parts[..parts.len() - 1].iter().map(|p| p.split_once(' ').unwrap().1).collect();
            assert_eq!(joined, text.lines().next().unwrap());
            assert!(parts.iter().all(|p| p.len() <= LONGEST + 5), "{step}");
        }
    }
}
