//! What the link asks of its sockets: options, and moves that never block.

use super::TcpOptions;
use crate::link::LinkError;
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags},
};
use socket2::SockRef;
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::TcpStream,
};

/// Prepare a connected socket for the link.
///
/// The sizes of the system's buffers are left alone: a fixed size turns autotuning off, and that
/// finds the bandwidth-delay product better than a guess does.
pub(super) fn prepare(socket: &TcpStream, options: &TcpOptions) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // A small message must leave at once; large ones are handed over in large pieces anyway.
    socket.set_nodelay(true)?;
    // Where sends take no flag against it, a closed peer must not kill the process.
    #[cfg(target_vendor = "apple")]
    SockRef::from(socket).set_nosigpipe(true)?;
    #[cfg(target_os = "linux")]
    match &options.congestion {
        Some(name) => SockRef::from(socket).set_tcp_congestion(name.as_bytes())?,
        // Within a host nothing is lost and nothing queues: an algorithm that paces, as bbr does,
        // halves the speed. Reno is in every kernel; where it is refused the default does.
        None if stays_on_host(socket)? => {
            let _ = SockRef::from(socket).set_tcp_congestion(b"reno");
        }
        None => {}
    }
    #[cfg(not(target_os = "linux"))]
    if let Some(name) = &options.congestion {
        let text = format!("congestion control {name:?}: it can be chosen per socket on Linux only");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn stays_on_host(socket: &TcpStream) -> io::Result<bool> {
    let (here, there) = (socket.local_addr()?.ip(), socket.peer_addr()?.ip());
    Ok(here == there || there.to_canonical().is_loopback())
}

/// Hand a prefix of `parts` to the system; how many bytes, 0 when it has no room.
pub(super) fn send(socket: &TcpStream, parts: &[IoSlice<'_>]) -> Result<usize, LinkError> {
    #[cfg(target_vendor = "apple")]
    let flags = SendFlags::empty();
    #[cfg(not(target_vendor = "apple"))]
    let flags = SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(e) => return Err(ended(e)),
        }
    }
}

/// Fill `parts`, which have room, with what has arrived; how many bytes, 0 when none have.
pub(super) fn receive(socket: &TcpStream, parts: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
    loop {
        match rustix::io::readv(socket, parts) {
            Ok(0) => return Err(ended(Errno::PIPE)),
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(e) => return Err(ended(e)),
        }
    }
}

fn ended(e: Errno) -> LinkError {
    LinkError(match e {
        Errno::PIPE => "closed its connection".into(),
        Errno::CONNRESET => format!("reset its connection: {e}"),
        e => format!("lost its connection: {e}"),
    })
}
