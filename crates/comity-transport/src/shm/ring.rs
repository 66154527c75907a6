//! Positions of a byte ring between one writer and one reader that share only memory.
//!
//! ```text
//!        head (reader)            tail (writer)
//!   ......|#######################|..............   cap bytes, a power of two
//!          ready to read           room to write
//! ```
//!
//! Positions only grow; the byte at position p lies at p mod cap. Each side keeps its own position and
//! a stale copy of the other's, so that a transfer touches the other's cache line only when it runs out.
//! The bytes of a short message lie beside the writer's position as well, on the same cache line and the one behind it, which x86 fetches
//! with it: a reader that waits for the position has them with it. They belong to what the reader has not read if they begin where it stands, and the writer says where they begin
//! before it changes them: asked again after they were read, as with a sequence lock. Where that fails the ring has them.
//!
//! A position read from shared memory is checked before use: a peer that writes nonsense ends
//! the link, it does not move us out of bounds.
//!
//! Sleep: a side that runs out sets its `asleep` flag, looks once more, and sleeps; the other side looks at that
//! flag after it moves its position. A fence between the store and the load on both sides makes sure that
//! one of them sees the other (Dekker). `tests` checks this with loom.
//!
//! The writer of a short message leaves its fence out: it takes a tenth of a call. Its store may then still be on its way when it looks at
//! the flag, for less than a microsecond. So whoever sets the flag sleeps for a [`NAP`](crate::NAP) at first, looks again, and
//! only then sleeps long: by then each of the two has seen what the other stored.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::atomic::compiler_fence;

/// A value alone on its cache lines: 128 bytes, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CachePadded<T>(pub(super) T);

/// Bytes of a message that lies beside the position: a header and 80 more. The first 48 are on the line of the position.
pub(crate) const SHORT: usize = 112;
/// So many of them lie on the line of the position.
const LINE: usize = 48;
const WORDS: usize = SHORT / 8;
/// In place of a begin: nothing lies there.
const NOTHING: u64 = u64::MAX;

/// The writer's position, and the short message before it: a pair of cache lines.
#[derive(Debug, Default)]
#[repr(C)]
struct Tail {
    /// Position of the short message's beginning.
    begin: AtomicU64,
    at: AtomicU64,
    short: [AtomicU64; WORDS],
}

/// Shared state of both sides besides the bytes. All zero is an empty ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Shared {
    tail: CachePadded<Tail>,
    head: CachePadded<AtomicU64>,
    reader_asleep: CachePadded<AtomicU32>,
    writer_asleep: CachePadded<AtomicU32>,
}

/// The peer's position cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

#[derive(Debug)]
pub(crate) struct RingWriter {
    tail: u64,
    head: u64,
    cap: usize,
}

#[derive(Debug)]
pub(crate) struct RingReader {
    head: u64,
    /// Value of `head` that the writer knows.
    shown: u64,
    tail: u64,
    cap: usize,
    /// The short message of the last look, from there to there.
    short: [u8; SHORT],
    short_from: u64,
    short_to: u64,
}

impl RingWriter {
    pub(crate) fn new(cap: usize) -> Self {
        assert!(cap.is_power_of_two());
        Self { tail: 0, head: 0, cap }
    }

    /// Returns the index of the next byte and the room, if at least `want` fit without a look at the reader; else after one.
    #[inline]
    pub(crate) fn room(&mut self, s: &Shared, want: usize) -> Result<(usize, usize), Corrupt> {
        if self.free() < want.min(self.cap) {
            let head = s.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(head) > self.cap as u64 || head < self.head {
                return Err(Corrupt);
            }
            self.head = head;
        }
        Ok((self.tail as usize & (self.cap - 1), self.free()))
    }

    /// Show the reader `n` more bytes; true if it sleeps and must be woken.
    #[inline]
    pub(crate) fn publish(&mut self, s: &Shared, n: usize) -> bool {
        if n <= SHORT {
            s.tail.0.begin.store(NOTHING, Ordering::Relaxed);
        }
        self.show(s, n);
        wakes(&s.reader_asleep.0)
    }

    /// Publishes as [`publish`](Self::publish), but `n` bytes that are in the ring: they are the first of `bytes`. A reader that falls asleep at
    /// this moment may not be seen, and looks again after a nap.
    #[inline]
    pub(crate) fn publish_short(&mut self, s: &Shared, bytes: &[u8; SHORT], n: usize) -> bool {
        let line = &s.tail.0;
        line.begin.store(self.tail, Ordering::Relaxed);
        // Who reads a word of this message finds its begin, too.
        fence(Ordering::Release);
        for (word, bytes) in line.short.iter().zip(bytes.as_chunks().0).take(n.div_ceil(8)) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.show(s, n);
        if n > LINE {
            return wakes(&s.reader_asleep.0);
        }
        // The look comes behind the store in the program, if not in the processor.
        compiler_fence(Ordering::SeqCst);
        is_asleep(&s.reader_asleep.0)
    }

    #[inline]
    fn show(&mut self, s: &Shared, n: usize) {
        self.tail += n as u64;
        s.tail.0.at.store(self.tail, Ordering::Release);
    }

    /// Bytes shown so far.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// About to sleep until there is room.
    pub(crate) fn arm(&self, s: &Shared) {
        announce(&s.writer_asleep.0);
    }

    pub(crate) fn disarm(&self, s: &Shared) {
        s.writer_asleep.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn free(&self) -> usize {
        self.cap - (self.tail - self.head) as usize
    }
}

impl RingReader {
    pub(crate) fn new(cap: usize) -> Self {
        assert!(cap.is_power_of_two());
        Self { head: 0, shown: 0, tail: 0, cap, short: [0; SHORT], short_from: 0, short_to: 0 }
    }

    /// Returns the index of the next byte and the number of ready bytes, if any are ready without a look at the writer; else after one.
    #[inline]
    pub(crate) fn ready(&mut self, s: &Shared, want: usize) -> Result<(usize, usize), Corrupt> {
        if ((self.tail - self.head) as usize) < want.min(self.cap) {
            let tail = s.tail.0.at.load(Ordering::Acquire);
            if tail < self.tail || tail - self.head > self.cap as u64 {
                return Err(Corrupt);
            }
            self.tail = tail;
            if self.head < tail && tail - self.head <= SHORT as u64 {
                self.read_short(&s.tail.0);
            }
        }
        Ok((self.head as usize & (self.cap - 1), (self.tail - self.head) as usize))
    }

    /// Read what lies beside the position, if it is all that there is to read.
    #[inline]
    fn read_short(&mut self, line: &Tail) {
        let words = ((self.tail - self.head) as usize).div_ceil(8);
        for (bytes, word) in self.short.as_chunks_mut().0.iter_mut().zip(&line.short).take(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        fence(Ordering::Acquire);
        // A later message has a later begin. An earlier one would not reach to the position.
        let holds = line.begin.load(Ordering::Relaxed) == self.head;
        self.short_from = self.head;
        self.short_to = if holds { self.tail } else { 0 };
    }

    /// All bytes that are ready, as far as the last look found, if they came beside the position; else nothing.
    #[inline]
    pub(crate) fn short(&self) -> &[u8] {
        if self.short_to != self.tail {
            return &[];
        }
        let from = self.head.wrapping_sub(self.short_from);
        let to = self.tail.wrapping_sub(self.short_from);
        self.short.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Give `n` bytes back; true if the writer sleeps and must be woken.
    ///
    /// They are shown to the writer an eighth of the ring at a time. Nobody waits for the rest: a writer that finds no room
    /// has at least seven eighths unread before it.
    #[inline]
    pub(crate) fn release(&mut self, s: &Shared, n: usize) -> bool {
        self.head += n as u64;
        if ((self.head - self.shown) as usize) < self.cap / 8 {
            return false;
        }
        self.shown = self.head;
        s.head.0.store(self.head, Ordering::Release);
        wakes(&s.writer_asleep.0)
    }

    /// Bytes read so far.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// About to sleep until there are bytes.
    pub(crate) fn arm(&self, s: &Shared) {
        announce(&s.reader_asleep.0);
    }

    pub(crate) fn disarm(&self, s: &Shared) {
        s.reader_asleep.0.store(0, Ordering::Relaxed);
    }
}

/// The reader is shown something that is not in the ring: does it sleep?
#[inline]
pub(crate) fn wakes_reader(s: &Shared) -> bool {
    wakes(&s.reader_asleep.0)
}

/// The writer is shown something that is not in the ring: does it sleep?
#[inline]
pub(crate) fn wakes_writer(s: &Shared) -> bool {
    wakes(&s.writer_asleep.0)
}

/// After a position moved: does the other side sleep? Says so once per sleep.
#[inline]
fn wakes(asleep: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    is_asleep(asleep)
}

#[inline]
fn is_asleep(asleep: &AtomicU32) -> bool {
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

fn announce(asleep: &AtomicU32) {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fills_wraps_and_drains() {
        let s = Shared::default();
        let mut w = RingWriter::new(8);
        let mut r = RingReader::new(8);
        assert_eq!(w.room(&s, 1), Ok((0, 8)));
        assert_eq!(r.ready(&s, 1), Ok((0, 0)));
        w.publish(&s, 6);
        assert_eq!(r.ready(&s, 1), Ok((0, 6)));
        r.release(&s, 4);
        assert_eq!(w.room(&s, 3), Ok((6, 6)));
        w.publish(&s, 6);
        assert_eq!(w.room(&s, 1), Ok((4, 0)));
        assert_eq!(r.ready(&s, 8), Ok((4, 8)));
    }

    #[test]
    fn a_peer_that_writes_nonsense_is_caught() {
        let s = Shared::default();
        let mut w = RingWriter::new(8);
        let mut r = RingReader::new(8);
        s.tail.0.at.store(9, Ordering::Relaxed);
        assert_eq!(r.ready(&s, 1), Err(Corrupt));
        s.head.0.store(1, Ordering::Relaxed);
        assert_eq!(w.room(&s, 9), Ok((0, 8)), "a full look is not needed yet");
        w.publish(&s, 8);
        s.head.0.store(9, Ordering::Relaxed);
        assert_eq!(w.room(&s, 1), Err(Corrupt));
    }

    #[test]
    fn a_short_message_lies_beside_the_position() {
        let s = Shared::default();
        let mut w = RingWriter::new(1024);
        let mut r = RingReader::new(1024);
        let bytes: [u8; SHORT] = std::array::from_fn(|i| i as u8);
        assert_eq!(r.short(), b"", "nothing was published");
        w.publish_short(&s, &bytes, 41);
        assert_eq!(r.ready(&s, 1), Ok((0, 41)));
        assert_eq!(r.short(), &bytes[..41]);
        r.release(&s, 32);
        assert_eq!(r.short(), &bytes[32..41], "what is left of it");
        w.publish_short(&s, &[7; SHORT], 3);
        assert_eq!(r.ready(&s, 9), Ok((32, 9)), "no look was needed");
        assert_eq!(r.short(), &bytes[32..41]);
        assert_eq!(r.ready(&s, 10), Ok((32, 12)));
        assert_eq!(r.short(), b"", "of two messages the ring has all");
        r.release(&s, 12);
        assert_eq!((r.ready(&s, 1), r.short()), (Ok((44, 0)), &b""[..]));
        w.publish(&s, 4);
        assert_eq!((r.ready(&s, 1), r.short()), (Ok((44, 4)), &b""[..]), "the ring alone");
        r.release(&s, 4);
        w.publish(&s, SHORT + 1);
        assert_eq!((r.ready(&s, 1), r.short()), (Ok((48, SHORT + 1)), &b""[..]), "a long one");
        // What peers claim does not lead out of bounds.
        r.release(&s, SHORT + 1);
        w.publish_short(&s, &bytes, 8);
        s.tail.0.at.store(r.head() + SHORT as u64 + 1, Ordering::Relaxed);
        assert!(r.ready(&s, 1).is_ok() && r.short().is_empty());
    }

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let s = Shared::default();
        let mut w = RingWriter::new(8);
        let r = RingReader::new(8);
        assert!(!w.publish(&s, 1));
        r.arm(&s);
        assert!(w.publish(&s, 1));
        assert!(!w.publish(&s, 1));
        r.arm(&s);
        r.disarm(&s);
        assert!(!w.publish(&s, 1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
