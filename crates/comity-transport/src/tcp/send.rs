//! The sending half of a link: where its stream stands, and the framing that hands it to the system.

use super::{
    Route,
    framing::{Framing, SendThread, SendThreads, framing},
    outbound::{CutLengths, Outbound},
};
use crate::{LinkError, channel::Seal};
use std::{net::TcpStream, sync::Arc};

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender {
    out: Outbound,
    framing: Box<dyn Framing>,
}

impl Sender {
    pub(super) fn new(
        route: Route,
        cutting: CutLengths,
        seals: Vec<Seal>,
        threads: Option<Arc<SendThreads>>,
    ) -> Self {
        let out = Outbound::new(route, cutting);
        let framing = framing(&out, seals, threads);
        Self { out, framing }
    }

    /// The connection of the frames that leave.
    pub(super) fn turn(&self) -> usize {
        self.out.turn
    }

    /// Begin a message of `len` bytes, and choose how it travels ([`Link::announce`](crate::Link::announce)).
    pub(super) fn announce(&mut self, sockets: &[TcpStream], len: usize, is_busy: bool) {
        let is_long = self.out.begin(len);
        self.framing.announce(&self.out, sockets, len, is_long, is_busy);
    }

    /// Hand a prefix of `head` and `body` to the system; how many bytes of them.
    pub(super) fn put(
        &mut self,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        self.framing.put(&mut self.out, sockets, head, body)
    }

    /// The thread that sends, where there is one.
    pub(super) fn thread(&self) -> Option<&SendThread> {
        self.framing.thread()
    }

    /// Returns the [`thread`](Self::thread), while it has something to send.
    pub(super) fn busy_thread(&self) -> Option<&SendThread> {
        self.framing.thread().filter(|_| self.framing.is_threaded())
    }

    /// End that thread.
    pub(super) fn end_thread(&mut self) {
        self.framing.end_thread();
    }
}
