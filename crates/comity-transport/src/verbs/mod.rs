//! Links over RDMA: sends and receives of verbs, with flow control, order and checks of their own.
//!
//! ```text
//!   group A   group B        streams: order and a window each
//!       \     /
//!   peer connection                all that two processes have between them
//!       /    \
//!    path    path            one per cable: two queue pairs, of 4 KiB slots and of 128 KiB slots
//!      |       |
//!    rail    rail            devices: one context, slab and completion queue for the process
//! ```
//!
//! A peer connection is made once, beside an authenticated TCP connection of the pair; a group that is split off gets a stream over it and
//! no queue pair. Nothing that a provider leaves to chance is left to it: a frame is sent into a slot that the peer is known to
//! have posted, carries its number and a CRC32C, and what is lost, repeated or damaged is an error that names the path.
#![allow(unsafe_code, reason = "slots that a device reads and writes")]

mod control_socket;
mod driver;
mod establish;
mod matrix;
mod path;
mod peer_connection;
mod reach;
#[cfg(test)]
mod tests;

pub(crate) use matrix::Matrix;
pub(crate) use reach::Rdma;

use super::{Interest, Lending, Link, LinkError, LinkKind, LinkProperties, SMALL_WANT};
use crate::sys::Waker;
use driver::{Handle, driver, is_ours};
use peer_connection::PayloadPlace;
use std::{collections::VecDeque, io, os::fd::BorrowedFd, sync::Arc};

/// Bytes to move before looking elsewhere.
const CHUNK: usize = 128 << 10;
/// Looks in vain between two looks at the control socket.
const SPINS_PER_CONTROL_CHECK: u32 = 64;

/// A group's bytes over a peer connection. See the [contract](super).
#[derive(Debug)]
pub(crate) struct VerbsLink {
    peer_connection: Arc<Handle>,
    group_id: u64,
    waker: Arc<Waker>,
    /// Payloads that came and were not consumed yet, in order.
    mine: VecDeque<(PayloadPlace, usize)>,
    /// Bytes of the first of those that were consumed.
    at: usize,
    /// Buffer in which bytes of several frames are put together.
    joint: [u8; SMALL_WANT],
    looks: u32,
}

impl VerbsLink {
    fn new(peer_connection: Arc<Handle>, group_id: u64) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        if !driver().peers.get_mut(&peer_connection.id).is_some_and(|e| e.open(group_id, waker.clone())) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the group is open already"));
        }
        let mine = VecDeque::new();
        let joint = [0; SMALL_WANT];
        Ok(Self { peer_connection, group_id, waker, mine, at: 0, joint, looks: 0 })
    }

    fn bytes_of(place: &PayloadPlace, len: usize) -> &[u8] {
        match place {
            // SAFETY: the slot is this link's until it gives it back, and nothing is posted there before that.
            PayloadPlace::Slot { at, slab, .. } => unsafe { slab.bytes(*at, len) },
            PayloadPlace::Heap(bytes) => bytes,
        }
    }

    /// Copy what lies at the front, from byte `skip` on, as far as it fits; how many bytes.
    fn copy_front(mine: &VecDeque<(PayloadPlace, usize)>, mut skip: usize, dst: &mut [u8]) -> usize {
        let mut n = 0;
        for (place, len) in mine {
            let part = &Self::bytes_of(place, *len)[skip..];
            let m = part.len().min(dst.len() - n);
            dst[n..n + m].copy_from_slice(&part[..m]);
            (n, skip) = (n + m, 0);
        }
        n
    }

    fn ready(&self) -> usize {
        self.mine.iter().map(|(_, len)| len).sum::<usize>() - self.at
    }

    /// Fetch until about `want` bytes are at hand.
    fn gather(&mut self, want: usize) -> Result<(), LinkError> {
        let mut ready = self.ready();
        if ready >= want {
            return Ok(());
        }
        let mut driver = driver();
        if self.looks.is_multiple_of(SPINS_PER_CONTROL_CHECK) {
            driver.pump(self.peer_connection.id);
        } else {
            // WAIT: a look that never sleeps
            driver.poll();
        }
        self.looks = self.looks.wrapping_add(1);
        let Some(peer_connection) = driver.peers.get_mut(&self.peer_connection.id) else {
            return Err(LinkError("is not connected any more".into()));
        };
        while ready < want {
            match peer_connection.fetch(self.group_id) {
                Ok(Some((place, len))) => {
                    ready += len;
                    self.looks = 1;
                    self.mine.push_back((place, len));
                }
                Ok(None) => break,
                Err(_) if ready > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Lending for VerbsLink {}

impl Link for VerbsLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties::of_system(LinkKind::Rdma)
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let mut driver = driver();
        for last in [false, true] {
            let Some((peer_connection, rails)) = driver.reach(self.peer_connection.id) else {
                return Err(LinkError("is not connected any more".into()));
            };
            let n = peer_connection.put(rails, self.group_id, head, body)?;
            if n > 0 || last || head.len() + body.len() == 0 {
                return Ok(n);
            }
            // Slots may have completed, and credits come.
            driver.pump(self.peer_connection.id);
        }
        Ok(0)
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        let least = want.clamp(1, SMALL_WANT);
        self.gather(least)?;
        let Some((place, len)) = self.mine.front() else { return Ok(&[]) };
        let whole = len - self.at;
        if whole >= least || self.mine.len() == 1 {
            return Ok(&Self::bytes_of(place, *len)[self.at..]);
        }
        let n = Self::copy_front(&self.mine, self.at, &mut self.joint[..least]);
        Ok(&self.joint[..n])
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
        if self.mine.front().is_none_or(|(_, len)| self.at < *len) {
            return;
        }
        let mut driver = driver();
        while let Some((_, len)) = self.mine.front()
            && self.at >= *len
        {
            self.at -= *len;
            let Some((place, len)) = self.mine.pop_front() else { return };
            if let Some((peer_connection, rails)) = driver.reach(self.peer_connection.id) {
                peer_connection.release(rails, self.group_id, place, len);
            }
        }
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        let most = dst.len().min(CHUNK);
        let dst = &mut dst[..most];
        if dst.is_empty() {
            return Ok(0);
        }
        self.gather(dst.len())?;
        let n = Self::copy_front(&self.mine, self.at, dst);
        self.consume(n);
        Ok(n)
    }

    fn arm(&mut self, interest: Interest) {
        let mut driver = driver();
        if let Some(peer_connection) = driver.peers.get_mut(&self.peer_connection.id) {
            peer_connection.arm(self.group_id, interest);
        }
        driver.expect(self.peer_connection.id);
        // The next look is at everything.
        self.looks = 0;
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        if let Some(peer_connection) = driver().peers.get_mut(&self.peer_connection.id) {
            peer_connection.arm(self.group_id, Interest::default());
        }
        self.waker.drain();
        Ok(())
    }

    fn fds<'a>(&'a self, _: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        out.push((self.waker.fd(), Interest { recv: true, send: false }));
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        if !is_ours() {
            // Their memory is the parent's.
            return;
        }
        let mut driver = driver();
        let Some((peer_connection, rails)) = driver.reach(self.peer_connection.id) else { return };
        for (place, len) in self.mine.drain(..) {
            peer_connection.release(rails, self.group_id, place, len);
        }
        peer_connection.close(rails, self.group_id);
    }
}
