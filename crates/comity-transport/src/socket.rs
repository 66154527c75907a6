//! Moves over a connected stream socket of any family, which never block.

use super::LinkError;
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags},
};
use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::AsFd,
};

/// Hand a prefix of `parts` to the system; how many bytes, 0 when it has no room.
pub(super) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> Result<usize, LinkError> {
    #[cfg(target_vendor = "apple")]
    let flags = SendFlags::empty();
    #[cfg(not(target_vendor = "apple"))]
    let flags = SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(&socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(e) => return Err(ended(e)),
        }
    }
}

/// Fill `parts`, which have room, with what has arrived; how many bytes, 0 when none have.
pub(super) fn receive(socket: impl AsFd, parts: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
    loop {
        match rustix::io::readv(&socket, parts) {
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
