//! A thread that hands finished frames to the system while the rank's own thread makes, opens and combines others.
//!
//! ```text
//!   rank's thread:   make k+1 | receive, combine | make k+2 | ...
//!   send thread:       send k |  send k+1  | send k+2  | ...
//! ```
//!
//! Cost: a thread, three descriptors and half a MiB a link, a core while much is sent, and one copy more of what goes in the clear. It
//! saves the system's part of sending, some half of a large transfer's time, but only on a connection that carries nothing long the
//! other way: the system serves a connection to one thread at a time. What is sent while nothing is received leaves sooner without it.
//!
//! A batch is accepted when all of it is with the system, so a link that is dropped has nothing of its own left to deliver.
//!
//! Frames of long messages in batches for a thread that sends them, while this one makes, opens and combines others.
//!
//! Bytes that the thread does not send go as it would without one.

use super::{
    super::{
        frame::{SEALED_FRAME, SEALED_HEADER, SMALL},
        positions::{Cut, FIRST, Outbound, window},
    },
    Framing,
};
use crate::{LinkError, socket::send, sync::lock, sys::Waker};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Batches under way at once.
pub(in crate::tcp) const BATCHES: usize = 4;
/// The most bytes of the stream in a batch, besides a head.
pub(super) const PIECE: usize = SEALED_FRAME;
/// A batch: a head's frame and a piece's.
const ROOM: usize = SEALED_HEADER + SMALL + SEALED_HEADER + PIECE;
/// Time of a look for the next batch before the thread sleeps.
const BATCH_SPIN: Duration = Duration::from_micros(50);

/// Number of such threads that there may be beside those that are.
#[derive(Debug, Default)]
pub(crate) struct SendThreads(AtomicUsize);

impl SendThreads {
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(n)))
    }

    fn take(&self) -> bool {
        self.0.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok()
    }

    fn give_back(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Whole frames, and how many bytes they take.
#[derive(Debug, Default)]
struct Batch {
    bytes: Box<[u8]>,
    len: usize,
}

#[derive(Debug)]
struct Shared {
    socket: TcpStream,
    /// Batch `k` lies at `k mod BATCHES`; whoever's turn it is locks it, so nobody waits.
    batches: [Mutex<Batch>; BATCHES],
    handed: AtomicU64,
    /// Wholly with the system.
    gone: AtomicU64,
    error: Mutex<Option<LinkError>>,
    over: AtomicBool,
    /// This thread sleeps, or is about to.
    asleep: AtomicBool,
    /// The rank's thread sleeps, or is about to.
    watched: AtomicBool,
    /// Wakes this thread.
    wake: Waker,
    /// Wakes the rank's thread.
    waker: Waker,
}

/// The send thread of one link, and the batches that it has.
#[derive(Debug)]
pub(in crate::tcp) struct SendThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    among: Arc<SendThreads>,
    process: u32,
    handed: u64,
    /// Batches whose end the caller knows of.
    known: u64,
}

impl SendThread {
    /// Start a thread for `socket`, if there may be another.
    pub(super) fn start(socket: &TcpStream, among: &Arc<SendThreads>) -> io::Result<Option<Self>> {
        if !among.take() {
            return Ok(None);
        }
        Self::live(socket, among).map(Some).inspect_err(|_| among.give_back())
    }

    fn live(socket: &TcpStream, among: &Arc<SendThreads>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: socket.try_clone()?,
            batches: Default::default(),
            handed: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            error: Mutex::new(None),
            over: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            wake: Waker::new()?,
            waker: Waker::new()?,
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("comity-send".into()).spawn(move || own.work())?;
        let among = Arc::clone(among);
        let process = std::process::id();
        Ok(Self { shared, thread: Some(thread), among, process, handed: 0, known: 0 })
    }

    /// Returns true if the caller does not know the end of all batches.
    pub(in crate::tcp) fn is_busy(&self) -> bool {
        self.handed > self.known
    }

    /// Most bytes that can be under way.
    pub(in crate::tcp) fn chunk(&self) -> usize {
        BATCHES * PIECE
    }

    /// Wake it, if it sleeps: that takes as long as filling a batch.
    pub(super) fn rouse(&self) {
        if self.shared.asleep.load(SeqCst) {
            self.shared.wake.wake();
        }
    }

    /// Have the next batch filled, which says how long it became, and hand it over. Fewer than [`BATCHES`] are under way.
    pub(super) fn hand(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, LinkError>,
    ) -> Result<(), LinkError> {
        let mut batch = lock(&self.shared.batches[self.handed as usize % BATCHES]);
        if batch.bytes.is_empty() {
            batch.bytes = vec![0; ROOM].into();
        }
        batch.len = fill(&mut batch.bytes)?;
        drop(batch);
        self.handed += 1;
        self.shared.handed.store(self.handed, SeqCst);
        self.rouse();
        Ok(())
    }

    /// Number of batches that went since the last look.
    pub(super) fn went(&mut self) -> Result<u64, LinkError> {
        let gone = self.shared.gone.load(SeqCst);
        let new = gone - self.known;
        self.known = gone;
        match lock(&self.shared.error).as_ref() {
            Some(e) if new == 0 => Err(e.clone()),
            _ => Ok(new),
        }
    }

    /// Ring [`fd`](Self::fd) once for the next batch that goes.
    pub(in crate::tcp) fn watch(&self) {
        self.shared.watched.store(true, SeqCst);
    }

    pub(in crate::tcp) fn unwatch(&self) {
        self.shared.watched.store(false, SeqCst);
        self.shared.waker.drain();
    }

    pub(in crate::tcp) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.waker.fd()
    }

    #[cfg(test)]
    pub(in crate::tcp) fn handed(&self) -> u64 {
        self.handed
    }
}

impl Drop for SendThread {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.process != std::process::id() {
            // A forked child has the handle and no thread.
            std::mem::forget(thread);
            return;
        }
        self.shared.over.store(true, SeqCst);
        self.shared.wake.wake();
        if let Some(thread) = thread {
            // It makes no call that waits but for its waker.
            // WAIT(over): the thread that sends for a link, which is told to stop
            let _ = thread.join();
        }
        self.among.give_back();
    }
}

impl Shared {
    fn work(&self) {
        for k in 0.. {
            if !self.next(k) {
                return;
            }
            let batch = lock(&self.batches[k as usize % BATCHES]);
            let sent = self.send(&batch.bytes[..batch.len]);
            drop(batch);
            match sent {
                Ok(true) => self.gone.store(k + 1, SeqCst),
                Ok(false) => return,
                Err(e) => *lock(&self.error) = Some(e),
            }
            if self.watched.swap(false, SeqCst) {
                self.waker.wake();
            }
            if lock(&self.error).is_some() {
                return;
            }
        }
    }

    /// Wait for batch `k`; whether there is one.
    // WAIT(over): that thread: woken for each batch, and when it is to stop
    fn next(&self, k: u64) -> bool {
        let mut since = Instant::now();
        loop {
            if self.over.load(SeqCst) {
                return false;
            }
            if self.handed.load(SeqCst) > k {
                return true;
            }
            if since.elapsed() < BATCH_SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.asleep.store(true, SeqCst);
            // One that was handed over before that was said wakes no waker.
            if self.handed.load(SeqCst) <= k {
                self.sleep(None);
            }
            self.asleep.store(false, SeqCst);
            since = Instant::now();
        }
    }

    /// Until the waker was woken, or the socket has room, if that is asked for. A signal ends it early, which is no harm.
    fn sleep(&self, socket: Option<&TcpStream>) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.fd(), PollFlags::IN)];
        fds.extend(socket.map(|s| PollFd::from_borrowed_fd(s.as_fd(), PollFlags::OUT)));
        // WAIT(wake): that thread: woken for each batch, and when it is to stop
        let _ = poll(&mut fds, None);
        self.wake.drain();
    }

    /// Hand all of a batch to the system; false if it is not wanted any more.
    fn send(&self, batch: &[u8]) -> Result<bool, LinkError> {
        let mut rest = batch;
        loop {
            rest = &rest[send(&self.socket, &[IoSlice::new(rest)])?..];
            if rest.is_empty() {
                return Ok(true);
            }
            if self.over.load(SeqCst) {
                return Ok(false);
            }
            // WAIT(over): room in the socket; woken when it is to stop
            self.sleep(Some(&self.socket));
        }
    }
}

/// The thread has a long message while there is something to receive too, for alone sending is done sooner without; and if as much
/// of it is offered at once;
const CARRIED: usize = 64 << 10;
/// so many batches between two looks at what has come.
const PIECES: usize = 2;

/// Makes batches of frames for the send thread, over the framing that makes the frames.
#[derive(Debug)]
pub(super) struct Batching {
    inner: Box<dyn Framing>,
    /// There is none before the first long message, and for as long as other links have all that may be.
    thread: Option<SendThread>,
    threads: Arc<SendThreads>,
    /// Bytes of the stream in each batch that it has.
    batches: VecDeque<usize>,
    /// Bytes in batches that are with the system, but were not accepted yet.
    gone: usize,
    /// The message that leaves is one for it.
    is_long: bool,
    /// Bytes of it in a batch.
    piece: usize,
}

impl Batching {
    pub(super) fn new(inner: Box<dyn Framing>, threads: Arc<SendThreads>) -> Self {
        let batches = VecDeque::new();
        Self { inner, thread: None, threads, batches, gone: 0, is_long: false, piece: PIECE }
    }

    /// Returns true if bytes that are offered again are in batches.
    fn is_begun(&self) -> bool {
        self.gone > 0 || !self.batches.is_empty()
    }

    /// Returns true if the thread is to have what is offered, `total` bytes. What was begun without it ends without it.
    fn is_for_thread(&self, total: usize) -> bool {
        self.is_begun() || self.is_long && total >= CARRIED && self.inner.is_between()
    }

    /// Put as [`Framing::put`] does, by the thread. Batches hold frames beyond what was accepted, of bytes that are offered again.
    fn put_batches(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let Some(thread) = &mut self.thread else { return Ok(0) };
        for _ in 0..thread.went()? {
            self.gone += self.batches.pop_front().unwrap_or_default();
        }
        let accepted = self.gone.min(total);
        self.gone -= accepted;
        let mut at = accepted + self.gone + self.batches.iter().sum::<usize>();
        for _ in 0..PIECES {
            if at >= total || self.batches.len() == BATCHES || !out.is_there() {
                break;
            }
            let len = self.hand(out, head, body, at)?;
            at += len;
            self.batches.push_back(len);
        }
        Ok(accepted)
    }

    /// Hand over the next batch, from byte `at` of what is offered: a piece, and before it a head; how many bytes.
    fn hand(&mut self, out: &mut Outbound, head: &[u8], body: &[u8], at: usize) -> Result<usize, LinkError> {
        let Some(thread) = &mut self.thread else { return Ok(0) };
        let total = head.len() + body.len();
        let mut cuts = [None; 2];
        let mut len = 0;
        for place in &mut cuts {
            let behind = at + len;
            if behind < total {
                let cut = out.cut(head.len().saturating_sub(behind), total - behind, self.piece, SMALL);
                out.pass(&cut);
                *place = Some((cut, window(head, body, behind, cut.len)));
                len += cut.len;
                if !cut.is_head {
                    break;
                }
            }
        }
        thread.hand(|room| {
            let mut end = 0;
            for (cut, parts) in cuts.into_iter().flatten() {
                end += self.inner.write(&mut room[end..], &cut, parts)?;
            }
            Ok(end)
        })?;
        Ok(len)
    }
}

impl Framing for Batching {
    fn put(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        if self.thread.is_none() || !self.is_for_thread(total) {
            return self.inner.put(out, head, body);
        }
        if self.is_begun() || out.is_there() {
            return self.put_batches(out, head, body);
        }
        // The first frame goes where there is no thread.
        let (first, rest) = body.split_at(if head.is_empty() { FIRST.min(body.len()) } else { 0 });
        let n = self.inner.put(out, head, first)?;
        Ok(n + if n == head.len() + first.len() { self.put_batches(out, &[], rest)? } else { 0 })
    }

    fn is_between(&self) -> bool {
        !self.is_begun() && self.inner.is_between()
    }

    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        self.inner.write(room, cut, parts)
    }

    fn announce(&mut self, out: &Outbound, len: usize, is_long: bool, is_busy: bool) {
        self.is_long = is_long && is_busy;
        if !self.is_long {
            return;
        }
        // The peer begins when the first batch is there; of a longer message that is a small part in any case.
        self.piece = if len < BATCHES * PIECE { PIECE / 2 } else { PIECE };
        if let Some(thread) = &self.thread {
            thread.rouse();
        } else if let Some(socket) = out.sockets.get(out.aside()) {
            // Others keep theirs as long as their links live; the next message asks again.
            self.thread = SendThread::start(socket, &self.threads).unwrap_or_else(|e| {
                tracing::debug!(%e, "no thread to send with");
                None
            });
        }
    }

    fn thread(&self) -> Option<&SendThread> {
        self.thread.as_ref()
    }

    fn end_thread(&mut self) {
        self.thread = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conformance::eventually,
        tcp::tests::{drop_soon, streams},
    };
    use socket2::SockRef;
    use std::io::Read;

    fn one(send_threads: &Arc<SendThreads>) -> (Option<SendThread>, TcpStream) {
        let (a, mut b) = streams(1);
        a[0].set_nonblocking(true).unwrap();
        // Less than a batch fits in.
        SockRef::from(&a[0]).set_send_buffer_size(16 << 10).unwrap();
        SockRef::from(&b[0]).set_recv_buffer_size(16 << 10).unwrap();
        (SendThread::start(&a[0], send_threads).unwrap(), b.remove(0))
    }

    #[test]
    fn there_are_no_more_than_allowed() {
        let send_threads = SendThreads::new(1);
        let (first, _far) = one(&send_threads);
        assert!(first.is_some() && one(&send_threads).0.is_none());
        drop(first);
        assert!(one(&send_threads).0.is_some());
    }

    #[test]
    fn parcels_come_in_order_also_after_sleep() {
        let (mut thread, mut far) = one(&SendThreads::new(1));
        let sender = thread.as_mut().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for round in 0..20u8 {
            for part in 0..BATCHES as u8 {
                let fill = |place: &mut [u8]| {
                    place[..100_000].fill(round * 10 + part);
                    Ok(100_000)
                };
                sender.hand(fill).unwrap();
            }
            let mut came = vec![0; BATCHES * 100_000];
            far.read_exact(&mut came).unwrap();
            let right = |(part, piece): (usize, &[u8])| piece.iter().all(|&b| b == round * 10 + part as u8);
            assert!(came.chunks(100_000).enumerate().all(right), "round {round}");
            let mut went = 0;
            eventually("word that all have gone", || {
                went += sender.went().unwrap();
                (went == BATCHES as u64).then_some(())
            });
            thread::sleep(BATCH_SPIN * u32::from(round % 3) * 2);
        }
    }

    #[test]
    fn one_that_cannot_send_ends_at_once_and_one_without_a_peer_says_so() {
        let send_threads = SendThreads::new(2);
        let fill = |sender: &mut SendThread| sender.hand(|place| Ok(place.len()));
        let (stuck, _far) = one(&send_threads);
        let mut stuck = stuck.unwrap();
        for _ in 0..BATCHES {
            fill(&mut stuck).unwrap();
        }
        thread::sleep(Duration::from_millis(50));
        assert!(stuck.went().unwrap() < BATCHES as u64, "a socket that nobody reads takes all");
        drop_soon(stuck);

        let (mut lost, far) = one(&send_threads);
        let lost = lost.as_mut().unwrap();
        drop(far);
        let begun = Instant::now();
        let mut under_way = 0;
        let e = loop {
            match lost.went() {
                Ok(n) => under_way -= n,
                Err(e) => break e,
            }
            if under_way < BATCHES as u64 {
                fill(lost).unwrap();
                under_way += 1;
            }
            assert!(begun.elapsed() < Duration::from_secs(20));
        };
        assert!(e.0.contains("its connection"), "{e:?}");
    }
}
