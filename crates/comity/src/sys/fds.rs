//! Passing a descriptor to another process over a Unix socket.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// Pass `fd` with one byte; the peer calls [`recv_fd`]. Fails after `limit`.
pub(crate) fn send_fd(stream: &UnixStream, fd: &impl AsFd, limit: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(limit))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    stream.set_write_timeout(None)
}

/// Take the descriptor that the peer passes with [`send_fd`]. Fails after `limit`.
pub(crate) fn recv_fd(stream: &UnixStream, limit: Duration) -> io::Result<OwnedFd> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(limit))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let fd = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd =
        fd.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor came with the byte"))?;
    #[cfg(not(target_os = "linux"))]
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    stream.set_read_timeout(None)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_descriptor_crosses() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut x, y) = UnixStream::pair().unwrap();
        send_fd(&a, &y, Duration::from_secs(1)).unwrap();
        let mut z = UnixStream::from(recv_fd(&b, Duration::from_secs(1)).unwrap());
        x.write_all(b"hi").unwrap();
        let mut got = [0; 2];
        z.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hi");
    }

    #[test]
    fn silence_and_a_closed_peer_are_errors() {
        let (a, b) = UnixStream::pair().unwrap();
        assert!(recv_fd(&b, Duration::from_millis(20)).is_err());
        drop(a);
        assert!(recv_fd(&b, Duration::from_secs(1)).is_err());
    }
}
