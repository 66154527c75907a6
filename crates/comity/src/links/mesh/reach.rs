//! Reaching a lower rank: over shared memory, RDMA or TCP, in the order that the pair prefers.

use super::{Opening, Trouble};
use crate::{
    channel::{Channel, Hello, Miss, Patience, Refusal, Sealing, Stream, Target, dial},
    rendezvous::Facts,
    transport::{
        tcp::{TcpOptions, Ways},
        verbs::Edges,
    },
};
use rustix::event::PollFlags;
use std::{
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
};

impl<L> Opening<'_, L> {
    /// Connect to a lower rank. A stream: shared memory will come over it.
    pub(super) fn connect(&mut self, rank: usize) -> Result<Option<UnixStream>, Trouble> {
        if self.over_edge(rank)? {
            return Ok(None);
        }
        let (ours, theirs) = self.facts(rank)?;
        let (ours_rdma, theirs_rdma) = (ours.rdma, theirs.rdma);
        let rdma = ours_rdma && theirs_rdma;
        let share = ours.shm && theirs.shm && ours.host_id == theirs.host_id && !theirs.unix.is_empty();
        let tcp = ours.tcp && theirs.tcp;
        let (addrs, unix) = (theirs.addrs.clone(), theirs.unix.clone());
        let mut why_not = vec![if share { String::new() } else { "its host is another".to_owned() }];
        if rdma && self.mesh.prefers_rdma && self.raise(rank, &addrs, &mut why_not)? {
            return Ok(None);
        }
        if share {
            match self.dial(rank, Target::Unix(unix), Channel::Shm) {
                Ok((Stream::Unix(stream), _)) => return Ok(Some(stream)),
                Ok((Stream::Tcp(_), _)) => {}
                Err(miss @ (Miss::Nowhere(_) | Miss::Refused(Refusal::No(_)))) => {
                    tracing::debug!(rank, %miss, "no shared memory, taking TCP");
                    why_not[0] = miss.to_string();
                }
                Err(miss) => return Err(self.missed(rank, "its socket on this host", miss)),
            }
        }
        if rdma && !self.mesh.prefers_rdma && self.raise(rank, &addrs, &mut why_not)? {
            return Ok(None);
        }
        if !tcp {
            let over_rdma = match (why_not.get(1), rdma) {
                (Some(why), _) => format!(", not over RDMA ({why})"),
                (None, false) if ours_rdma != theirs_rdma => {
                    format!(
                        ", not over RDMA (rank {} has no device for it)",
                        if ours_rdma { rank } else { self.mine }
                    )
                }
                _ => String::new(),
            };
            return Err(self.explained(
                rank,
                format!(
                    "cannot be reached: not over shared memory ({}){over_rdma}, and TCP is not allowed; allow it (COMITY_LINKS=shm,tcp)",
                    why_not[0]
                ),
            ));
        }
        let of = u16::try_from(addrs.len() * usize::from(self.connections(rank))).unwrap_or(u16::MAX);
        let mut streams = Vec::with_capacity(usize::from(of));
        let options = self.tcp_options(rank, true);
        // Where directions are kept apart each address serves both.
        let each = if options.ways == Ways::All { 1 } else { 2 };
        let turns = addrs.iter().flat_map(|a| std::iter::repeat_n(a, each)).cycle();
        for (index, addr) in (0..of).zip(turns) {
            match self.dial(rank, Target::Tcp(*addr), Channel::Tcp { index, of }) {
                Ok((Stream::Tcp(stream), seals)) => streams.push((stream, seals)),
                Ok((Stream::Unix(_), _)) => {}
                Err(miss) => return Err(self.missed(rank, &addr.to_string(), miss)),
            }
        }
        self.keep(rank, "TCP", (self.makers.tcp)(streams, &options))?;
        Ok(None)
    }

    /// How the connections with a rank are used, which this side made or took.
    pub(super) fn tcp_options(&self, rank: usize, made: bool) -> TcpOptions {
        let ways = match (self.connections(rank).is_multiple_of(2), made) {
            (true, true) => Ways::First,
            (true, false) => Ways::Second,
            (false, _) => Ways::All,
        };
        let couriers = Some(Arc::clone(self.mesh.couriers));
        TcpOptions { ways, couriers, ..TcpOptions::default() }
    }

    /// How many connections the pair has per address.
    fn connections(&self, rank: usize) -> u16 {
        Facts::connections(self.mesh.facts, [self.mesh.me, self.world_rank(rank)])
    }

    /// Take the wires that the pair has already, if it has.
    pub(super) fn over_edge(&mut self, rank: usize) -> Result<bool, Trouble> {
        let link = self.mesh.edges.and_then(|e| e.link(self.world_rank(rank), self.context));
        let made = link.is_some();
        if let Some(link) = link {
            self.keep(rank, "RDMA", link.map(self.makers.rdma))?;
        }
        Ok(made)
    }

    /// Make wires to a lower rank; the reason is added where there are none.
    fn raise(
        &mut self,
        rank: usize,
        addrs: &[SocketAddr],
        why_not: &mut Vec<String>,
    ) -> Result<bool, Trouble> {
        let Some(edges) = self.mesh.edges.filter(|e| e.leads_to(self.world_rank(rank))) else {
            why_not.push("no device leads to it".into());
            return Ok(false);
        };
        let mut words = Vec::new();
        for addr in addrs {
            let stream = match self.dial(rank, Target::Tcp(*addr), Channel::Rdma) {
                Ok((Stream::Tcp(stream), _)) => stream,
                Ok((Stream::Unix(_), _)) => continue,
                Err(Miss::Refused(Refusal::No(why))) => {
                    words.push(why);
                    break;
                }
                Err(miss) => return Err(self.missed(rank, &addr.to_string(), miss)),
            };
            if self.wire(rank, edges, stream, &mut words)? {
                return Ok(true);
            }
            // Named devices do not depend on the address.
            if edges.are_named() {
                break;
            }
        }
        words.dedup();
        edges.give_up(self.world_rank(rank));
        why_not.push(words.join("; "));
        Ok(false)
    }

    /// Make wires beside a connection of the pair.
    pub(super) fn wire(
        &mut self,
        rank: usize,
        edges: &Edges,
        stream: TcpStream,
        words: &mut Vec<String>,
    ) -> Result<bool, Trouble> {
        let raised = self.patiently(|patience| {
            edges.raise(self.world_rank(rank), stream, self.until, &|fd, until| {
                patience.wait(Some((fd, PollFlags::IN)), until)
            })
        });
        match raised {
            Ok(Ok(())) => self.over_edge(rank),
            Ok(Err(why)) => {
                let peer = self.mesh.peer(self.members, rank);
                tracing::warn!(%peer, why, "no RDMA wire to a rank; another link is taken");
                words.push(why);
                Ok(false)
            }
            Err(error) => Err(self.missed(rank, "its RDMA device", Miss::Stop(error))),
        }
    }

    /// Do what waits, until the group fails or time is up.
    fn patiently<T>(&self, run: impl FnOnce(&Patience<'_>) -> T) -> T {
        let check = || {
            self.watch.hush();
            self.watch.failure().map_or(Ok(()), |f| Err(self.failed(f)))?;
            self.failed_above().map_or(Ok(()), Err)
        };
        let above = self.watch.above().map(|w| w.bell_fd());
        let bells = [self.watch.bell_fd()].into_iter().chain(above).collect();
        run(&Patience { until: self.until, bells, check: &check })
    }

    fn dial(&self, rank: usize, target: Target, channel: Channel) -> Result<(Stream, Sealing), Miss> {
        let hello = Hello {
            from: self.mesh.me as u32,
            to: self.world_rank(rank) as u32,
            world: self.mesh.world,
            context: self.context,
            channel,
            sealed: self.mesh.sealed,
        };
        self.patiently(|patience| dial(&[target], self.mesh.secret, &hello, patience))
    }
}
