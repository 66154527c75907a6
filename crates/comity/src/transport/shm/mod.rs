//! A link over memory that both ends see: two byte rings and a socket that wakes a sleeper.
//!
//! ```text
//!   one mapping:  [ positions a->b | positions b->a | bytes a->b ........ | bytes b->a ........ ]
//!   one socket:   a byte means "look again"; its end means the peer is gone
//! ```
//!
//! Between processes the mapping is a sealed memory file passed over a Unix socket (shm), between
//! threads an anonymous one (local). Bytes are copied into the ring by the sender and out of it, or reduced
//! from where they lie, by the receiver; the rings are small enough to stay in cache. There is no checksum:
//! the bytes never leave this machine's memory.

mod reach;
mod ring;

pub(crate) use reach::Shm;

use super::{Interest, Link, LinkError, LinkKind, SMALL_WANT};
use crate::sys::{self, Mapping};
use ring::{Corrupt, RingReader, RingWriter, Shared};
use std::{
    io::{self, Read, Write},
    mem::{align_of, size_of},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    ptr, slice,
    sync::Arc,
    time::Duration,
};

/// Bytes of one direction's ring: what a rank can send before its peer runs, small enough for the second-level cache.
const RING: usize = 256 << 10;
/// Bytes moved before they are shown to the peer.
const CHUNK: usize = 32 << 10;
/// Positions of both directions; the bytes follow on a page of their own.
const HEAD: usize = 4096;
const LEN: usize = HEAD + 2 * RING;
/// Looks in vain between two looks at the socket.
const SPINS_PER_SOCKET_CHECK: u32 = 1024;
/// How long the two ends may take to pass the memory over once they are connected.
const PASS: Duration = Duration::from_secs(10);

const _: () = assert!(2 * size_of::<Shared>() <= HEAD && align_of::<Shared>() <= 4096);

/// One end of a link over shared memory.
#[derive(Debug)]
pub(crate) struct ShmLink {
    kind: LinkKind,
    map: Arc<Mapping>,
    /// Whether this end is `a` of the picture.
    first: bool,
    tx: RingWriter,
    rx: RingReader,
    waker: UnixStream,
    armed: bool,
    /// Looks in vain so far.
    looks: u32,
    /// Where bytes on both sides of the ring's end are put together.
    joint: [u8; SMALL_WANT],
    gone: Option<LinkError>,
}

impl ShmLink {
    /// Make the memory and pass it over `stream` to a peer in [`attach`](Self::attach).
    pub(crate) fn create(stream: UnixStream) -> io::Result<Box<dyn Link>> {
        let (map, fd) = Mapping::create(LEN)?;
        sys::send_fd(&stream, &fd, PASS)?;
        Self::boxed(LinkKind::Shm, Arc::new(map), true, stream)
    }

    /// Take the memory that the peer in [`create`](Self::create) passes over `stream`.
    pub(crate) fn attach(stream: UnixStream) -> io::Result<Box<dyn Link>> {
        let fd = sys::recv_fd(&stream, PASS)?;
        let map = Mapping::attach(&fd, LEN)?;
        Self::boxed(LinkKind::Shm, Arc::new(map), false, stream)
    }

    /// Both ends over memory that nobody else maps, as links of this kind.
    pub(super) fn pair(kind: LinkKind) -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
        let map = Arc::new(Mapping::private(LEN)?);
        let (a, b) = UnixStream::pair()?;
        Ok((Self::boxed(kind, map.clone(), true, a)?, Self::boxed(kind, map, false, b)?))
    }

    fn boxed(kind: LinkKind, map: Arc<Mapping>, first: bool, waker: UnixStream) -> io::Result<Box<dyn Link>> {
        waker.set_nonblocking(true)?;
        let (tx, rx) = (RingWriter::new(RING), RingReader::new(RING));
        Ok(Box::new(Self {
            kind,
            map,
            first,
            tx,
            rx,
            waker,
            armed: false,
            looks: 0,
            joint: [0; SMALL_WANT],
            gone: None,
        }))
    }

    #[inline]
    fn shared(&self, outgoing: bool) -> &Shared {
        let at = if outgoing == self.first { 0 } else { size_of::<Shared>() };
        // SAFETY: inside the mapping, aligned (the mapping is page aligned and the size a multiple of the alignment),
        // zeros are a valid `Shared`, and every access by either side is atomic.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    #[inline]
    fn bytes(&self, outgoing: bool) -> *mut u8 {
        let at = if outgoing == self.first { HEAD } else { HEAD + RING };
        // SAFETY: inside the mapping.
        unsafe { self.map.as_ptr().add(at) }
    }

    /// Copy a prefix of `src` to the ring without showing it, at most `free` bytes from `at` on.
    fn fill(&self, at: usize, free: usize, src: &[u8]) -> usize {
        let n = src.len().min(free);
        let first = n.min(RING - at);
        let to = self.bytes(true);
        // SAFETY: `RingWriter::room` gave these positions to this side alone until they are published; both parts lie
        // inside the ring, and `src` is not in it.
        unsafe {
            ptr::copy_nonoverlapping(src.as_ptr(), to.add(at), first);
            ptr::copy_nonoverlapping(src.as_ptr().add(first), to, n - first);
        }
        n
    }

    #[inline]
    fn ready(&mut self, want: usize) -> Result<(usize, usize), LinkError> {
        // SAFETY: as in `shared`; split from `self` so that the reader can be borrowed mutably.
        let shared: &Shared = unsafe { &*ptr::from_ref(self.shared(false)) };
        match self.rx.ready(shared, want) {
            Ok(r) => Ok(r),
            Err(c) => Err(self.corrupt(c)),
        }
    }

    /// After a look in vain: see once in a while whether the peer still is.
    #[inline]
    fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        // Armed, a wake-up is for the poll that follows.
        if !self.armed && self.looks.is_multiple_of(SPINS_PER_SOCKET_CHECK) {
            self.listen();
        }
    }

    /// Swallow wake-ups, and learn whether the peer has gone.
    fn listen(&mut self) {
        let mut wakes = [0u8; 64];
        loop {
            match self.waker.read(&mut wakes) {
                Ok(0) => {
                    self.gone.get_or_insert_with(|| LinkError("closed its connection".into()));
                }
                Ok(64) => continue,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    self.gone.get_or_insert_with(|| LinkError(format!("broke its connection: {e}")));
                }
            }
            return;
        }
    }

    fn wake(&self) {
        // A full socket is awake already; a closed one is found when this end sleeps.
        let _ = (&self.waker).write(&[1]);
    }

    fn corrupt(&mut self, _: Corrupt) -> LinkError {
        self.gone
            .get_or_insert_with(|| LinkError("wrote an impossible position into shared memory".into()))
            .clone()
    }
}

impl Link for ShmLink {
    fn kind(&self) -> LinkKind {
        self.kind
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    #[inline]
    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.gone {
            return Err(e.clone());
        }
        let body = &body[..body.len().min(CHUNK)];
        let want = head.len() + body.len();
        // SAFETY: as in `shared`; split from `self` so that the writer can be borrowed mutably.
        let shared: &Shared = unsafe { &*ptr::from_ref(self.shared(true)) };
        let (at, free) = match self.tx.room(shared, want) {
            Ok(r) => r,
            Err(c) => return Err(self.corrupt(c)),
        };
        let mut n = self.fill(at, free, head);
        if n == head.len() {
            n += self.fill((at + n) & (RING - 1), free - n, body);
        }
        if n > 0 && self.tx.publish(shared, n) {
            self.wake();
        }
        if n == 0 && want > 0 {
            self.look();
        }
        Ok(n)
    }

    #[inline]
    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        let (mut at, mut n) = self.ready(want)?;
        if n == 0 {
            self.look();
            if let Some(e) = self.gone.clone() {
                // What was published before the peer went comes first.
                (at, n) = self.ready(want)?;
                if n == 0 {
                    return Err(e);
                }
            }
        }
        let whole = n.min(RING - at);
        let from = self.bytes(false);
        if whole < want.min(SMALL_WANT) && whole < n {
            let n = n.min(want).min(SMALL_WANT);
            // SAFETY: published and not released, so these bytes do not change; both parts lie inside the ring.
            unsafe {
                ptr::copy_nonoverlapping(from.add(at), self.joint.as_mut_ptr(), whole);
                ptr::copy_nonoverlapping(from, self.joint.as_mut_ptr().add(whole), n - whole);
            }
            return Ok(&self.joint[..n]);
        }
        // SAFETY: as above; the part ends before the ring does.
        Ok(unsafe { slice::from_raw_parts(from.add(at), whole) })
    }

    #[inline]
    fn consume(&mut self, n: usize) {
        // SAFETY: as in `put`.
        let shared: &Shared = unsafe { &*ptr::from_ref(self.shared(false)) };
        if n > 0 && self.rx.release(shared, n) {
            self.wake();
        }
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        let want = dst.len().min(CHUNK);
        let ready = self.peek(want)?;
        let n = ready.len().min(want);
        dst[..n].copy_from_slice(&ready[..n]);
        self.consume(n);
        Ok(n)
    }

    // Whatever was put is seen by who looks later.
    fn may_lag(&self) -> bool {
        false
    }

    fn arm(&mut self, interest: Interest) {
        self.armed = true;
        if interest.recv {
            self.rx.arm(self.shared(false));
        }
        if interest.send {
            self.tx.arm(self.shared(true));
        }
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        if !self.armed {
            return Ok(());
        }
        self.armed = false;
        self.rx.disarm(self.shared(false));
        self.tx.disarm(self.shared(true));
        self.listen();
        Ok(())
    }

    fn fds<'a>(&'a self, _: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        out.push((self.waker.as_fd(), Interest { recv: true, send: false }));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::conformance::conformance;
    use std::thread;

    conformance!(|| {
        let (a, b) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || ShmLink::attach(b).unwrap());
        (ShmLink::create(a).unwrap(), other.join().unwrap())
    });

    #[test]
    fn memory_of_another_size_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let (_map, fd) = Mapping::create(4096).unwrap();
        sys::send_fd(&a, &fd, PASS).unwrap();
        assert!(ShmLink::attach(b).is_err());
    }
}
