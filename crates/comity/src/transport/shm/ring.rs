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
//! A position read from shared memory is checked before use: a peer that writes nonsense ends
//! the link, it does not move us out of bounds.
//!
//! Sleep: a side that runs out sets its `asleep` flag, looks once more, and sleeps; the other side looks at that
//! flag after it moves its position. A fence between the store and the load on both sides makes sure that
//! one of them sees the other (Dekker). `tests` checks this with loom.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A value alone on its cache lines: 128 bytes, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CachePadded<T>(pub(super) T);

/// What both sides share besides the bytes. All zero is an empty ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Shared {
    tail: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
    reader_asleep: CachePadded<AtomicU32>,
    writer_asleep: CachePadded<AtomicU32>,
}

/// The peer's position cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// The writer's side.
#[derive(Debug)]
pub(crate) struct RingWriter {
    tail: u64,
    head: u64,
    cap: usize,
}

/// The reader's side.
#[derive(Debug)]
pub(crate) struct RingReader {
    head: u64,
    /// As the writer knows it.
    shown: u64,
    tail: u64,
    cap: usize,
}

impl RingWriter {
    /// At the start of an empty ring.
    pub(crate) fn new(cap: usize) -> Self {
        assert!(cap.is_power_of_two());
        Self { tail: 0, head: 0, cap }
    }

    /// Where the next byte goes, and how many fit, if at least `want` fit without a look at the reader; else after one.
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
        self.tail += n as u64;
        s.tail.0.store(self.tail, Ordering::Release);
        wakes(&s.reader_asleep.0)
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

    /// Awake again.
    pub(crate) fn disarm(&self, s: &Shared) {
        s.writer_asleep.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn free(&self) -> usize {
        self.cap - (self.tail - self.head) as usize
    }
}

impl RingReader {
    /// At the start of an empty ring.
    pub(crate) fn new(cap: usize) -> Self {
        assert!(cap.is_power_of_two());
        Self { head: 0, shown: 0, tail: 0, cap }
    }

    /// Where the next byte lies, and how many are ready, if any are without a look at the writer; else after one.
    #[inline]
    pub(crate) fn ready(&mut self, s: &Shared, want: usize) -> Result<(usize, usize), Corrupt> {
        if ((self.tail - self.head) as usize) < want.min(self.cap) {
            let tail = s.tail.0.load(Ordering::Acquire);
            if tail < self.tail || tail - self.head > self.cap as u64 {
                return Err(Corrupt);
            }
            self.tail = tail;
        }
        Ok((self.head as usize & (self.cap - 1), (self.tail - self.head) as usize))
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

    /// Awake again.
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
        let (mut w, mut r) = (RingWriter::new(8), RingReader::new(8));
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
        let (mut w, mut r) = (RingWriter::new(8), RingReader::new(8));
        s.tail.0.store(9, Ordering::Relaxed);
        assert_eq!(r.ready(&s, 1), Err(Corrupt));
        s.head.0.store(1, Ordering::Relaxed);
        assert_eq!(w.room(&s, 9), Ok((0, 8)), "a full look is not needed yet");
        w.publish(&s, 8);
        s.head.0.store(9, Ordering::Relaxed);
        assert_eq!(w.room(&s, 1), Err(Corrupt));
    }

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let s = Shared::default();
        let (mut w, r) = (RingWriter::new(8), RingReader::new(8));
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
mod loom_tests {
    use super::*;
    use loom::{
        cell::UnsafeCell,
        sync::{Arc, Condvar, Mutex},
        thread,
    };

    /// What the socket is to a real link: rings are kept until they are heard.
    #[derive(Default)]
    struct Waker {
        woken: Mutex<bool>,
        heard: Condvar,
    }

    impl Waker {
        fn wake(&self) {
            *self.woken.lock().unwrap() = true;
            self.heard.notify_one();
        }

        fn wait(&self) {
            let mut woken = self.woken.lock().unwrap();
            while !*woken {
                woken = self.heard.wait(woken).unwrap();
            }
            *woken = false;
        }
    }

    /// Three bytes through a ring of two, with sleep on both sides: no byte is lost, torn or seen early, and nobody sleeps for ever.
    #[test]
    fn bytes_arrive_in_order_and_sleepers_wake() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let bytes: Arc<[UnsafeCell<u8>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
            let wakers = Arc::new((Waker::default(), Waker::default()));
            let writer = {
                let (s, b, wakers) = (shared.clone(), bytes.clone(), wakers.clone());
                thread::spawn(move || {
                    let mut w = RingWriter::new(2);
                    for i in 1..=3u8 {
                        let at = loop {
                            let (at, n) = w.room(&s, 1).unwrap();
                            if n > 0 {
                                break at;
                            }
                            w.arm(&s);
                            if w.room(&s, 1).unwrap().1 == 0 {
                                wakers.1.wait();
                            }
                            w.disarm(&s);
                        };
                        // SAFETY: the position is the writer's until it is published; loom checks it.
                        b[at].with_mut(|p| unsafe { *p = i });
                        if w.publish(&s, 1) {
                            wakers.0.wake();
                        }
                    }
                })
            };
            let mut r = RingReader::new(2);
            for i in 1..=3u8 {
                let at = loop {
                    let (at, n) = r.ready(&shared, 1).unwrap();
                    if n > 0 {
                        break at;
                    }
                    r.arm(&shared);
                    if r.ready(&shared, 1).unwrap().1 == 0 {
                        wakers.0.wait();
                    }
                    r.disarm(&shared);
                };
                // SAFETY: published and not yet released; loom checks it.
                assert_eq!(bytes[at].with(|p| unsafe { *p }), i);
                if r.release(&shared, 1) {
                    wakers.1.wake();
                }
            }
            writer.join().unwrap();
        });
    }
}
