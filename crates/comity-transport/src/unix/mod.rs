//! Links over Unix stream sockets between processes of one host: for where memory cannot be shared.
//!
//! The higher rank connects to the socket of the host, and that connection is the link: nothing is framed, summed or sealed, since what
//! the system copies between two processes of a host is not damaged and leaves it nowhere. A pair takes it only where `COMITY_LINKS`
//! names it: shared memory is faster, and copies nothing through the system.
//!
//! ```text
//!   put:   head and body --> the system, in one call          as much as it has room for
//!   peek:  the system --> inbox, lent from there              what is reduced
//!   take:  inbox, then the system --> the caller's place      what is only moved; a short one reads ahead into the inbox
//! ```

use super::{
    About, Attempt, Connected, Connection, Connector, JobInfo, Pair, Seen, Transport, TransportInfo,
    connect_within_host, info_of_host, within_host,
};
use crate::{
    Interest, Lending, Link, LinkError, LinkKind, LinkProperties, Result, SMALL_WANT,
    socket::{Inbox, receive, send},
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

#[derive(Debug)]
pub(crate) struct Unix;

impl Transport for Unix {
    type Settings = ();

    fn about() -> About {
        About { by_default: false, within_host: true, ..About::PRIVATE }
    }

    fn note(_: &(), seen: Seen<'_>) -> TransportInfo {
        info_of_host(seen)
    }

    fn find(_: &(), _: &JobInfo) -> Result<Option<Self>> {
        Ok(Some(Self))
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        pair.share_a_host()
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Attempt {
        connect_within_host(pair, connector, UnixLink::boxed)
    }

    fn accept(&self, _: &Pair<'_>, connections: Vec<Connection>, _: &dyn Connector) -> Attempt {
        Ok(within_host(connections).map_or_else(|not| not, |stream| Connected::Link(UnixLink::boxed(stream))))
    }
}

/// Bytes to move in one call. The system holds about two such pieces of a connection.
const CHUNK: usize = 128 << 10;
/// Bytes read ahead, or for a reduction: few enough for the second-level cache.
const INBOX: usize = 64 << 10;
/// Number of times that the inbox is emptied at the end of a link: more than the system holds, for a peer may go on sending.
const LAST_LOOKS: usize = 64;
/// Smallest read, in bytes, that goes straight to its place, without reading ahead: more would be copied twice.
const STRAIGHT: usize = 16 << 10;

#[derive(Debug)]
struct UnixLink {
    stream: UnixStream,
    inbox: Inbox,
    error: Option<LinkError>,
    ended: bool,
}

impl UnixLink {
    /// Over a connected, authenticated stream.
    fn boxed(stream: UnixStream) -> io::Result<Box<dyn Link>> {
        stream.set_nonblocking(true)?;
        // Where sends take no flag against it, a closed peer must not kill the process.
        #[cfg(target_vendor = "apple")]
        socket2::SockRef::from(&stream).set_nosigpipe(true)?;
        Ok(Box::new(Self { stream, inbox: Inbox::new(INBOX), error: None, ended: false }))
    }

    /// Read once into `dst` and, behind it, into the inbox, in which nothing is unread unless `dst` is empty; how many bytes came to `dst`.
    fn read(&mut self, dst: &mut [u8], ahead: bool) -> usize {
        if self.ended {
            return 0;
        }
        let room = dst.len();
        let inbox = if ahead { self.inbox.room(INBOX) } else { &mut [] };
        match receive(&self.stream, &mut [IoSliceMut::new(dst), IoSliceMut::new(inbox)]) {
            Ok(n) => {
                self.inbox.grow(n.saturating_sub(room));
                n.min(room)
            }
            Err(e) => {
                self.ended = true;
                self.fail(e);
                0
            }
        }
    }

    /// Keep the first error.
    fn fail(&mut self, e: LinkError) -> LinkError {
        self.error.get_or_insert(e).clone()
    }
}

impl Lending for UnixLink {}

impl Link for UnixLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties::of_system(LinkKind::Unix)
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        if head.is_empty() && body.is_empty() {
            return Ok(0);
        }
        let body = &body[..body.len().min(CHUNK)];
        send(&self.stream, &[IoSlice::new(head), IoSlice::new(body)]).map_err(|e| self.fail(e))
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        if self.inbox.unread().len() < want.clamp(1, SMALL_WANT) {
            self.read(&mut [], true);
        }
        match &self.error {
            // What had come before it was read first.
            Some(e) if self.inbox.unread().is_empty() => Err(e.clone()),
            _ => Ok(self.inbox.unread()),
        }
    }

    fn consume(&mut self, n: usize) {
        self.inbox.pass(n);
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        let unread = self.inbox.unread();
        let mut n = dst.len().min(unread.len());
        dst[..n].copy_from_slice(&unread[..n]);
        self.inbox.pass(n);
        let rest = &mut dst[n..];
        if !rest.is_empty() {
            let most = rest.len().min(CHUNK);
            n += self.read(&mut rest[..most], most < STRAIGHT);
            if let (0, Some(e)) = (n, &self.error) {
                return Err(e.clone());
            }
        }
        Ok(n)
    }

    // The system wakes whoever polls a socket, announced or not.
    fn arm(&mut self, _: Interest) {}

    fn disarm(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        out.push((self.stream.as_fd(), interest));
    }
}

impl Drop for UnixLink {
    /// Leave nothing unread, or the peer would hear of a reset in place of an end.
    fn drop(&mut self) {
        // It fails where the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Write);
        for _ in 0..LAST_LOOKS {
            self.inbox.clear();
            self.read(&mut [], true);
            if self.inbox.unread().is_empty() {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::conformance::conformance;

    fn pair() -> (Box<dyn Link>, Box<dyn Link>) {
        let (a, b) = UnixStream::pair().unwrap();
        (UnixLink::boxed(a).unwrap(), UnixLink::boxed(b).unwrap())
    }

    conformance!(pair);

    #[test]
    fn a_short_take_reads_ahead_and_a_long_one_goes_straight_to_its_place() {
        let (mut a, mut b) = pair();
        assert_eq!(a.put(b"head", &[7; 100]), Ok(104));
        let mut place = [0; 4];
        assert_eq!(b.take(&mut place), Ok(4));
        assert_eq!(&place, b"head");
        // It is here without another look at the system.
        drop(a);
        assert_eq!(b.peek(1).unwrap(), [7; 100]);
        b.consume(100);
        assert_eq!(b.peek(1), Err(LinkError("closed its connection".into())));

        let (mut a, mut b) = pair();
        assert_eq!(a.put(&[], &vec![9; STRAIGHT + 10]), Ok(STRAIGHT + 10));
        let mut place = vec![0; STRAIGHT];
        assert_eq!(b.take(&mut place), Ok(STRAIGHT));
        assert!(place.iter().all(|v| *v == 9));
        assert_eq!(b.peek(10).unwrap(), [9; 10]);
    }

    #[test]
    fn who_leaves_bytes_unread_still_closes_in_good_order() {
        let (a, mut b) = pair();
        b.put(&[], &[1; 5000]).unwrap();
        drop(a);
        assert_eq!(b.peek(1), Err(LinkError("closed its connection".into())));
    }
}
