//! Moves over a connected stream socket of any family, which never block, and the buffer of what was read ahead.

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

/// Bytes read from a connection ahead of their use: a header, or bytes to lend.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new(len: usize) -> Self {
        // Zeroed memory comes untouched from the system, so what is never read into costs nothing.
        Self { bytes: vec![0; len].into_boxed_slice(), start: 0, end: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `n` unread bytes, which are there.
    pub(super) fn front(&mut self, n: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + n]
    }

    pub(super) fn pass(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Room for up to `n` more bytes behind the unread ones.
    pub(super) fn room(&mut self, n: usize) -> &mut [u8] {
        // In the clear less than a header or a small want is unread then: moving that costs nothing. Sealed, it is part of a frame.
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let until = self.bytes.len().min(self.end.saturating_add(n));
        &mut self.bytes[self.end..until]
    }

    /// Add what fits of `bytes`; how many.
    pub(super) fn extend(&mut self, bytes: &[u8]) -> usize {
        let room = self.room(bytes.len());
        let n = room.len();
        room.copy_from_slice(&bytes[..n]);
        self.grow(n);
        n
    }

    /// `n` bytes came into the room.
    pub(super) fn grow(&mut self, n: usize) {
        self.end += n;
    }

    /// Room for what is missing of `whole` bytes; unread bytes move only if they must.
    pub(super) fn room_for(&mut self, whole: usize) -> &mut [u8] {
        if self.bytes.len() - self.start < whole {
            return self.room(whole.saturating_sub(self.end - self.start));
        }
        &mut self.bytes[self.end..self.start + whole]
    }
}
