//! Interface by which a link's bytes become [frames](super::frame) on its connections, and frames become bytes, however frames travel.
//!
//! ```text
//!   clear    from the caller's memory to the system and back, a checksum in front
//!   sealed   encrypted in a buffer, decrypted where it arrived
//!   batch    frames of either kind, which a thread hands to the system; nothing of it shows where they arrive
//! ```

mod batch;
mod clear;
mod sealed;
mod thread;

use super::{
    inbound::Inbound,
    outbound::{Cut, Outbound},
};
use crate::{LinkError, channel::Seal};
use std::{fmt, net::TcpStream, sync::Arc};

use batch::Batching;
use clear::{Clear, Unclear};
use sealed::{SealedReceiver, SealedSender};
#[cfg(test)]
pub(super) use thread::BATCHES;
pub(super) use thread::SendThread;
pub(crate) use thread::SendThreads;

/// The half that sends.
pub(super) trait Framing: Send + fmt::Debug {
    /// Hand a prefix of `head` and `body` to the system, in the next frames; how many bytes of them.
    fn put(
        &mut self,
        out: &mut Outbound,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError>;

    /// Returns true if nothing is under way: what was offered and has left was accepted too.
    fn is_between(&self) -> bool;

    /// Write the frame `cut`, whole, which carries `parts`, to the front of `room`, which it fits; its length.
    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError>;

    /// A message begins. It goes aside if it `is_long`, and has `len` bytes; `is_busy` if there is something to receive meanwhile.
    fn announce(
        &mut self,
        _out: &Outbound,
        _sockets: &[TcpStream],
        _len: usize,
        _is_long: bool,
        _is_busy: bool,
    ) {
    }

    /// The thread that sends, where there is one.
    fn thread(&self) -> Option<&SendThread> {
        None
    }

    /// Returns true if that thread has something to send.
    fn is_threaded(&self) -> bool {
        false
    }

    /// End that thread.
    fn end_thread(&mut self) {}
}

/// The half that receives. The bytes of the arriving frame that it has checked are a *run*, at the front of the inbox.
pub(super) trait Unframing: Send + fmt::Debug {
    /// Look at what lies in the inbox; how long the run is.
    fn run(&mut self, line: &mut Inbound) -> Result<usize, LinkError>;

    /// Length of the run at the last look, less what was given back.
    fn ready(&self) -> usize;

    /// Returns true if the arriving frame ends after the next `run` bytes.
    fn ends_after(&self, run: usize) -> bool;

    /// Give back the first `n` bytes of the run.
    fn advance(&mut self, line: &mut Inbound, n: usize);

    /// Make the arriving frame straight into `dst`, if it lies here whole, is not checked yet, and fits; how many bytes.
    fn take_whole(&mut self, _line: &mut Inbound, _dst: &mut [u8]) -> Result<Option<usize>, LinkError> {
        Ok(None)
    }

    /// Read into the inbox, about `want` bytes of the stream: how many bytes came, of how many asked for.
    fn read(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        want: usize,
    ) -> Result<(usize, usize), LinkError>;

    /// Read on for `dst`, straight into it where that can be; `taken` counts that. Whether as many bytes came as were asked for.
    fn read_for(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, LinkError>;

    /// Number of bytes that were given out and belong to a frame that is not checked yet.
    fn unproven(&self) -> usize {
        0
    }

    /// Returns true if a frame has begun whose end has not come.
    fn is_inside(&self, line: &Inbound) -> bool;

    /// Returns true if a frame lies here whole, as far as can be told without a look at it.
    fn has_more(&self, _line: &Inbound) -> bool {
        false
    }
}

/// Frames over the connections of `out`: sealed if there is something to seal each with, and with a
/// thread if there may be one.
pub(super) fn framing(
    out: &Outbound,
    seals: Vec<Seal>,
    threads: Option<Arc<SendThreads>>,
) -> Box<dyn Framing> {
    let inner: Box<dyn Framing> =
        if seals.is_empty() { Box::<Clear>::default() } else { Box::new(SealedSender::new(seals)) };
    match threads {
        // What also carries the other direction is better left to one thread.
        Some(threads) if out.is_narrow() => Box::new(Batching::new(inner, threads)),
        _ => inner,
    }
}

/// The other end of [`framing`], whether batches are made there or not.
pub(super) fn unframing(seals: Vec<Seal>) -> Box<dyn Unframing> {
    if seals.is_empty() { Box::<Unclear>::default() } else { Box::new(SealedReceiver::new(seals)) }
}
