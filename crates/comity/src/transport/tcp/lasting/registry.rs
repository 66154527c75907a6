//! The links of a process that last, and how new connections come to them.

use super::{Lasting, LastingLink, incoming::NewPath, outgoing::OutgoingPath};
use crate::{
    channel::{Conn, Stream},
    sync::lock,
    sys::addresses_in_use,
    transport::{Connection, NewLink, Owed, Pair, tcp::TcpOptions},
};
use std::{
    io,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

/// A link that is younger needs no other connections: whoever wants some has asked for its first ones.
const MADE: Duration = Duration::from_secs(1);
/// A cable is in doubt after so much silence, where the job allows any silence.
const PATIENCE: Duration = Duration::from_secs(1);

/// Holds the lasting links of this process and brings new connections to them. A link stays until what was sent over it has come.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct LastingLinks {
    all: Mutex<Vec<Arc<Lasting>>>,
    /// How long a rank may be silent.
    silence: Mutex<Option<Duration>>,
}

impl LastingLinks {
    fn find(&self, pair: &Pair<'_>) -> Option<Arc<Lasting>> {
        let all = lock(&self.all);
        all.iter().rev().find(|l| (l.group_id, l.peer) == (pair.group_id, pair.peer)).cloned()
    }

    /// Whether there are such links.
    pub(in crate::transport::tcp) fn has_any(&self) -> bool {
        !lock(&self.all).is_empty()
    }

    /// Whether the link of this pair is here.
    pub(in crate::transport::tcp) fn has(&self, pair: &Pair<'_>) -> bool {
        self.find(pair).is_some()
    }

    /// Whether it is, and not as good as new.
    pub(in crate::transport::tcp) fn has_old(&self, pair: &Pair<'_>) -> bool {
        self.find(pair).is_some_and(|link| lock(&link.out).made().elapsed() >= MADE)
    }

    /// The number of the next making, if the link of this pair is here.
    pub(in crate::transport::tcp) fn next_making(&self, pair: &Pair<'_>) -> Option<u16> {
        self.find(pair).map(|link| link.makings.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// A new link, over connections of which the last is for telling that they are used.
    pub(in crate::transport::tcp) fn make(
        self: &Arc<Self>,
        pair: &Pair<'_>,
        connections: Vec<Connection>,
        options: &TcpOptions,
        silence: Option<Duration>,
    ) -> NewLink {
        let (outgoing, incoming) = apart(connections, pair.making)?;
        let at = (pair.group_id, pair.peer);
        *lock(&self.silence) = silence;
        Ok(Box::new(LastingLink::make(self, at, outgoing, incoming, options)?))
    }

    pub(super) fn add(&self, link: &Arc<Lasting>) {
        lock(&self.all).push(Arc::clone(link));
    }

    /// The link of a pair goes on over these.
    pub(in crate::transport::tcp) fn renew(
        &self,
        pair: &Pair<'_>,
        making: u16,
        connections: Vec<Connection>,
    ) -> io::Result<()> {
        let Some(link) = self.find(pair) else { return Ok(()) };
        link.makings.fetch_max(making, Ordering::AcqRel);
        let (outgoing, incoming) = apart(connections, making)?;
        link.renew(outgoing, incoming)
    }

    /// The groups and ranks of the links that need other connections; `None` where no link lasts ([`Transport::tend`](crate::transport::Transport::tend)).
    pub(in crate::transport::tcp) fn tend(&self) -> Option<Vec<(u64, usize)>> {
        let living = lock(&self.all).clone();
        if living.is_empty() {
            return None;
        }
        let (running, silence) = (addresses_in_use(), *lock(&self.silence));
        let patience = silence.map_or(PATIENCE, |limit| limit / 5);
        let cut = living.iter().filter(|link| link.tend(&running, patience)).map(|l| (l.group_id, l.peer));
        let cut = cut.collect();
        lock(&self.all).retain(|link| !link.is_over());
        Some(cut)
    }

    /// The ranks that may lack what was sent to them over links of this group ([`Transport::owes`](crate::transport::Transport::owes)).
    pub(in crate::transport::tcp) fn owes(&self, group_id: u64) -> Vec<Owed> {
        let all: Vec<_> = lock(&self.all).iter().filter(|l| l.group_id == group_id).cloned().collect();
        let owed = all.iter().filter(|link| !link.has_come());
        owed.map(|link| Owed { peer: link.peer, is_cut: link.is_cut() }).collect()
    }

    /// Forget this group's links: they last no longer ([`Transport::forgive`](crate::transport::Transport::forgive)).
    pub(in crate::transport::tcp) fn forgive(&self, group_id: u64) {
        lock(&self.all).iter().filter(|l| l.group_id == group_id).for_each(|l| l.forgive());
        lock(&self.all).retain(|link| !link.is_over());
    }

    /// A link is no more: whether what was sent over it is still on its way.
    pub(super) fn closed(&self) {
        lock(&self.all).retain(|link| !link.is_over());
    }
}

/// What each half of a link gets of new connections.
fn apart(mut connections: Vec<Connection>, making: u16) -> io::Result<(OutgoingPath, NewPath)> {
    let desk = connections.pop().map(|(stream, sealing)| Conn::new(stream, sealing));
    let Some(desk) = desk.filter(|_| !connections.is_empty()) else {
        return Err(io::Error::new(io::ErrorKind::NotConnected, "a link that lasts needs two connections"));
    };
    let (mut streams, mut send, mut recv) = (Vec::with_capacity(connections.len()), Vec::new(), Vec::new());
    for (stream, sealing) in connections {
        if let Stream::Tcp(stream) = stream {
            streams.push(stream);
            if let Some(both) = sealing {
                send.push(both.send);
                recv.push(both.recv);
            }
        }
    }
    let sockets: Arc<[_]> = streams.into();
    Ok((OutgoingPath { making, sockets: Arc::clone(&sockets), seals: send, desk }, (sockets, recv)))
}
