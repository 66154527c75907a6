//! The links of a process that last, and how new connections come to them.

use super::{Lasting, make};
use crate::{
    channel::{Conn, Seal, Stream},
    sync::lock,
    sys::addresses_in_use,
    transport::{Connection, NewLink, Pair, tcp::TcpOptions},
};
use std::{
    io,
    net::TcpStream,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

/// A link that is younger needs no other connections: whoever wants some has asked for its first ones.
const MADE: Duration = Duration::from_secs(1);
/// A cable is in doubt after so much silence, where the job allows any silence.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct LastingLinks {
    all: Mutex<Vec<(Weak<Lasting>, Arc<AtomicU16>)>>,
    /// How long a rank may be silent.
    silence: Mutex<Option<Duration>>,
}

impl LastingLinks {
    /// The link of a pair, and the number of its last making.
    fn find(&self, pair: &Pair<'_>) -> Option<(Arc<Lasting>, Arc<AtomicU16>)> {
        let all = lock(&self.all);
        let mut living = all.iter().filter_map(|(link, making)| Some((link.upgrade()?, making)));
        let found = living.find(|(l, _)| (l.group_id, l.peer) == (pair.group_id, pair.peer))?;
        Some((found.0, Arc::clone(found.1)))
    }

    /// Whether the link of this pair is here, and not as good as new.
    pub(in crate::transport::tcp) fn has(&self, pair: &Pair<'_>) -> bool {
        self.find(pair).is_some_and(|(link, _)| link.made().elapsed() >= MADE)
    }

    /// The number of the next making, if the link of this pair is here.
    pub(in crate::transport::tcp) fn next_making(&self, pair: &Pair<'_>) -> Option<u16> {
        self.find(pair).map(|(_, making)| making.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// A new link.
    pub(in crate::transport::tcp) fn make(
        &self,
        pair: &Pair<'_>,
        connections: Vec<Connection>,
        options: &TcpOptions,
        silence: Option<Duration>,
    ) -> NewLink {
        let (streams, seals, _) = apart(connections, false);
        let (link, shared) = make((pair.group_id, pair.peer), streams, seals, options, 1)?;
        *lock(&self.silence) = silence;
        let mut all = lock(&self.all);
        all.retain(|(link, _)| link.strong_count() > 0);
        all.push((Arc::downgrade(&shared), Arc::new(AtomicU16::new(1))));
        Ok(Box::new(link))
    }

    /// The link of a pair goes on over these.
    pub(in crate::transport::tcp) fn renew(
        &self,
        pair: &Pair<'_>,
        making: u16,
        connections: Vec<Connection>,
    ) -> io::Result<()> {
        let Some((link, latest)) = self.find(pair) else { return Ok(()) };
        latest.fetch_max(making, Ordering::AcqRel);
        let (streams, seals, desk) = apart(connections, true);
        let Some(desk) = desk else { return Err(io::ErrorKind::NotConnected.into()) };
        link.renew(making, streams, seals, desk)
    }

    /// See [`Transport::tend`](crate::transport::Transport::tend).
    pub(in crate::transport::tcp) fn tend(&self) -> Option<Vec<(u64, usize)>> {
        let living: Vec<_> = lock(&self.all).iter().filter_map(|(link, _)| link.upgrade()).collect();
        if living.is_empty() {
            return None;
        }
        let (running, silence) = (addresses_in_use(), *lock(&self.silence));
        let patience = silence.map_or(PATIENCE, |limit| limit / 5);
        let cut = living.iter().filter(|link| link.tend(&running, patience));
        Some(cut.map(|link| (link.group_id, link.peer)).collect())
    }
}

/// What seals each connection, out and in; nothing in the clear.
pub(super) type BothWays = (Vec<Seal>, Vec<Seal>);

/// The streams and what seals each way; and the last of them apart, if it is for telling.
fn apart(
    mut connections: Vec<Connection>,
    has_desk: bool,
) -> (Vec<TcpStream>, BothWays, Option<Conn>) {
    let desk = if has_desk { connections.pop() } else { None };
    let (mut streams, mut seals) = (Vec::with_capacity(connections.len()), (Vec::new(), Vec::new()));
    for (stream, sealing) in connections {
        if let Stream::Tcp(stream) = stream {
            streams.push(stream);
            if let Some(both) = sealing {
                seals.0.push(both.send);
                seals.1.push(both.recv);
            }
        }
    }
    (streams, seals, desk.map(|(stream, sealing)| Conn::new(stream, sealing)))
}
