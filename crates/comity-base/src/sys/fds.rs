//! Passing a descriptor to another process over a Unix socket.

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

/// The byte that carries a descriptor: a message needs one.
const CARRIER: u8 = b'F';

#[cfg(target_os = "linux")]
const RECV: RecvFlags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);
#[cfg(not(target_os = "linux"))]
const RECV: RecvFlags = RecvFlags::DONTWAIT;
#[cfg(target_os = "linux")]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(not(target_os = "linux"))]
const SEND: SendFlags = SendFlags::DONTWAIT;

/// Send `fd` over a stream that has room, as a fresh one does.
pub fn send_fd(stream: &UnixStream, fd: &impl AsFd) -> io::Result<()> {
    Ok(send_byte_with(stream, CARRIER, fd)?)
}

/// Send `byte` with `fd` if there is room now.
pub fn send_byte_with(stream: &UnixStream, byte: u8, fd: &impl AsFd) -> Result<(), Errno> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(&[byte])], &mut control, SEND).map(|_| ())
}

/// Receive bytes that are here, and the descriptor that came with the last of them, if one did: the system ends a read there.
pub fn recv_bytes(stream: &UnixStream, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    receive(stream, bytes).map(|(n, fds, _)| (n, fds.into_iter().next()))
}

/// The bytes and all descriptors that came, close-on-exec, and whether some were left out.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, RECV)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    #[cfg(not(target_os = "linux"))]
    for fd in &fds {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((got.bytes, fds, got.flags.contains(ReturnFlags::CTRUNC)))
}

/// Take the descriptor that [`send_fd`] has sent; close-on-exec. Works on blocking and non-blocking streams, and does not wait. `EMFILE` if this
/// process may have no more of them; the one that was sent is lost then.
///
/// Reads one byte and no more, so what follows on the stream stays there.
pub fn recv_fd(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let (fds, is_cut) = match retry_on_intr(|| receive(stream, &mut byte)) {
        Ok((0, ..)) => {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed its connection"));
        }
        Ok((_, fds, is_cut)) => (fds, is_cut),
        Err(Errno::AGAIN) => {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not answer in time"));
        }
        Err(e) => return Err(e.into()),
    };
    // The system leaves out what this process has no room for (or, if a security module says so, may not have), and says no
    // more than that something is missing.
    if fds.is_empty() && is_cut {
        return Err(Errno::MFILE.into());
    }
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) if !is_cut && byte == [CARRIER] => Ok(fd),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "expected one descriptor from the peer")),
    }
}

/// A duplicate of descriptor `fd`, which a variable named; the original stays open.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: `fd` is not -1, which is all that the type's layout asks. It is used for one dup
    // only, and the system answers EBADF when nobody opened it. Nothing in this process owns it:
    // the parent left it open and named it in the environment.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_descriptor_crosses_and_works() {
        for blocking in [true, false] {
            let (a, b) = UnixStream::pair().unwrap();
            a.set_nonblocking(!blocking).unwrap();
            b.set_nonblocking(!blocking).unwrap();
            let (mut rx, tx) = io::pipe().unwrap();
            send_fd(&a, &tx).unwrap();
            (&a).write_all(b"next").unwrap();
            drop(tx);
            let got = recv_fd(&b).unwrap();
            let flags = rustix::io::fcntl_getfd(&got).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            std::fs::File::from(got).write_all(b"hi").unwrap();
            let mut text = String::new();
            rx.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hi");
            let mut next = [0; 4];
            (&b).read_exact(&mut next).unwrap();
            assert_eq!(&next, b"next");
        }
    }

    #[test]
    fn silence_end_and_nonsense_are_errors() {
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(recv_fd(&b).unwrap_err().kind(), io::ErrorKind::TimedOut);
        (&a).write_all(b"F").unwrap();
        assert_eq!(recv_fd(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(a);
        assert_eq!(recv_fd(&b).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(send_fd(&b, &b).is_err());
    }
}
