//! How a rank meets the others: finds the store, says what it is, and gets the table of everyone.

use super::{
    exchanged,
    store::{NoStore, Store, StoreJob, cannot_listen},
    wire::{Facts, FromStore, ToStore},
};
use crate::{
    Config, Error, HostPort, JoinCause, JoinError, Key, Meet, Result, Secure,
    channel::{
        Channel, Conn, DialLimits, Hello, Listener, Miss, Refusal, STORE, Secret, Stream, Target, dial,
    },
    config::Trust,
    error::seconds,
    sys::{Waker, here, poll_until},
    transport::MAX_ADDRS,
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Weak,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// How much longer than its own limit a rank waits for the store, which says who is missing.
const GRACE: Duration = Duration::from_secs(2);

/// How long rank 0 waits for an answer of whoever holds its address.
const CLAIM: Duration = Duration::from_secs(2);

/// A rank that speaks with the store.
#[derive(Debug)]
pub(crate) struct StoreClient {
    conn: Conn,
    /// The store, if this rank runs it.
    pub(crate) store: Option<Store>,
    /// This process's address on the way to the store.
    local: IpAddr,
    at: Site,
    rank: usize,
    size: usize,
    until: Instant,
    limit: Duration,
    /// Why rank 0 runs no store, where somebody else listens at its address.
    taken: Option<Error>,
}

/// Everyone.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) world: u64,
    pub(crate) facts: Vec<Facts>,
}

impl StoreClient {
    /// Find the store, or start it, and connect; also what the ranks know one another by.
    pub(crate) fn find(config: &Config) -> Result<(Self, Secret)> {
        let limit = config.join_timeout;
        let until = Instant::now() + limit;
        let Located { addrs, store, key, taken } = locate(config, until)?;
        // Whoever holds the port is asked at once, and not waited for.
        let answer = if taken.is_some() { until.min(Instant::now() + CLAIM) } else { until };
        let secret = Secret::new(&key, &config.job, 0);
        let at = Site::new(config, &addrs);
        let hello = Hello {
            from: config.rank as u32,
            to: STORE,
            world: 0,
            group_id: 0,
            channel: Channel::Join,
            sealed: config.secure == Secure::Data,
        };
        let silent = Waker::new().map_err(|e| Error::os("joining", e))?;
        let patience = DialLimits { until: answer, wakers: vec![silent.fd()], check: &|| Ok(()) };
        let targets: Vec<Target> = addrs.iter().copied().map(Target::Tcp).collect();
        let (stream, seals) = dial(&targets, &secret, &hello, &patience)
            .map_err(|miss| at.missed(config, miss, taken.as_ref()))?;
        let local = match &stream {
            Stream::Tcp(s) => s.local_addr().map_err(|e| Error::os("joining", e))?.ip(),
            Stream::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        };
        let conn = Conn::new(stream, seals);
        Ok((
            Self { conn, store, local, at, rank: config.rank, size: config.size, until, limit, taken },
            secret,
        ))
    }

    /// Listen where the configuration says, else on the address that leads to the store.
    pub(crate) fn listen(&self, config: &Config) -> Result<Vec<Listener>> {
        let mut addrs = config.addrs.clone();
        if addrs.is_empty()
            && let Meet::Hostfile(ranks) = &config.meet
        {
            for (i, at) in ranks.get(self.rank).into_iter().flatten().enumerate() {
                if at.is_unspecified() {
                    continue;
                }
                let mut at = at.resolve(self.until)?.into_iter().take(1);
                // The store has rank 0's first port.
                let port_is_taken = self.rank == 0 && i == 0;
                addrs.extend(at.next().map(|a| if port_is_taken { SocketAddr::new(a.ip(), 0) } else { a }));
            }
        }
        if addrs.is_empty() {
            addrs.push(SocketAddr::new(self.local, 0));
        }
        if addrs.len() > MAX_ADDRS {
            return Err(Error::config(format!(
                "rank {} has {} addresses to listen on (COMITY_ADDRS or the hostfile); allowed are {MAX_ADDRS}",
                self.rank,
                addrs.len()
            )));
        }
        let who = format!("rank {}", self.rank);
        let listen = |at| {
            config.insecure.check_listen(&who, at)?;
            Listener::tcp(at).map_err(|e| cannot_listen(&who, at, &e))
        };
        addrs.into_iter().map(listen).collect()
    }

    /// Tell the store who is here, and wait for everyone.
    pub(crate) fn join(&mut self, facts: Facts) -> Result<Table> {
        let patience = self.limit.as_millis();
        let mut until = Instant::now() + self.limit + GRACE;
        let join = ToStore::Join {
            rank: self.rank as u32,
            size: self.size as u32,
            patience: patience as u64,
            facts,
        };
        self.conn.send(&join.encode()).map_err(|e| self.lost(&e.to_string()))?;
        let mut world = None;
        let mut table: Vec<Option<Facts>> = Vec::new();
        table.resize_with(self.size, || None);
        let mut here = 0;
        loop {
            let open = self.conn.fill();
            while let Some(message) = self.conn.next().map_err(|_| self.nonsense())? {
                match FromStore::decode(&message).map_err(|_| self.nonsense())? {
                    FromStore::Welcome { world: w, size } if size as usize == self.size => world = Some(w),
                    FromStore::Entry { rank, facts } => match table.get_mut(rank as usize) {
                        Some(place @ None) => {
                            *place = Some(facts);
                            here += 1;
                        }
                        _ => return Err(self.nonsense()),
                    },
                    FromStore::Refused { why } => return Err(self.refused(why)),
                    // The store counts from the last one that came, and so does this rank.
                    FromStore::Waiting { .. } => until = Instant::now() + self.limit + GRACE,
                    FromStore::Welcome { .. } => return Err(self.nonsense()),
                }
                // What the store says after it, on account of another rank's trouble, is for later.
                if let Some(world) = world
                    && here == self.size
                {
                    return Ok(Table { world, facts: table.into_iter().flatten().collect() });
                }
            }
            if !open {
                return Err(self.lost("it ended"));
            }
            let write = if self.conn.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds = [PollFd::new(self.conn.stream(), PollFlags::IN | write)];
            // WAIT(until): who is there: past the join deadline by a moment at most
            if poll_until(&mut fds, Some(until)).map_err(|e| Error::os("joining", e))? == 0 {
                return Err(self
                    .at
                    .about(format!(
                        "rank {}: {} did not say within {} who is there",
                        self.rank,
                        self.at.name,
                        seconds(self.limit)
                    ))
                    .into());
            }
            self.conn.flush().map_err(|e| self.lost(&e.to_string()))?;
        }
    }

    /// How long to wait for the next rank to come.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    pub(crate) fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Whether the store says that it did not come to a group, or has ended (false).
    pub(crate) fn hear(&mut self) -> Result<bool> {
        let open = self.conn.fill();
        match self.conn.next().map(|m| m.map(|m| FromStore::decode(&m))) {
            Ok(Some(Ok(FromStore::Refused { why }))) => Err(why.into()),
            Ok(None) => Ok(open),
            _ => Err(self.nonsense()),
        }
    }

    /// All of this rank's connections stand. A launcher's store has no rank that would tell it who lives, or end the job for
    /// it: ranks stay connected with that one.
    pub(crate) fn ready(mut self, job: Weak<dyn StoreJob>) -> (Option<Store>, Option<Self>) {
        // If the store is gone, nobody needs to know.
        let _ = self.conn.send(&ToStore::Ready.encode());
        match self.store.take() {
            Some(store) => {
                store.attend(job);
                (Some(store), None)
            }
            None => (None, self.at.host.is_none().then_some(self)),
        }
    }

    /// Nothing more is to be heard, though a copy of the process may hold the connection.
    pub(crate) fn leave(self) {
        // It may have ended by itself.
        let _ = rustix::net::shutdown(self.conn.stream(), rustix::net::Shutdown::Both);
    }

    /// This rank gives up.
    pub(crate) fn give_up(&mut self, why: &Error) {
        let _ = self.conn.send(&ToStore::Failed { why: why.as_join() }.encode());
    }

    fn refused(&self, why: JoinError) -> Error {
        match &self.taken {
            Some(taken) => why.in_words(format!("{taken}. What listens there says: {why}")).into(),
            None => why.into(),
        }
    }

    pub(crate) fn lost(&self, how: &str) -> Error {
        self.at
            .about(format!(
                "rank {} lost {} before all ranks had met ({how}); was {} killed?",
                self.rank,
                self.at.name,
                if self.at.host.is_some() { "rank 0" } else { "its process" },
            ))
            .because(JoinCause::Ended)
            .into()
    }

    fn nonsense(&self) -> Error {
        self.at.about(format!(
            "rank {}: {} says what this version of Comity does not understand; use one version everywhere",
            self.rank, self.at.name
        ))
        .into()
    }
}

/// The store, as errors speak of it.
#[derive(Debug)]
struct Site {
    /// "rank 0's store at 10.0.0.1:7000".
    name: String,
    address: Option<SocketAddr>,
    /// Rank 0, if it is that one, and not this, that runs the store.
    host: Option<usize>,
}

impl Site {
    fn new(config: &Config, addrs: &[SocketAddr]) -> Self {
        let address = addrs.first().copied();
        let host = (config.rank != 0 && !matches!(config.meet, Meet::Store(_))).then_some(0);
        let name = match (address, host) {
            (Some(at), None) => format!("the store at {at}"),
            (Some(at), Some(_)) => format!("rank 0's store at {at}"),
            (None, _) => "the store".into(),
        };
        Self { name, address, host }
    }

    /// What is wrong with it, on account of whoever runs it.
    fn about(&self, words: String) -> JoinError {
        let why = JoinError::new(words).of(self.host);
        match self.address {
            Some(at) => why.at(at),
            None => why,
        }
    }

    /// Why this rank has no connection to it; `taken` is why rank 0 runs no store itself.
    fn missed(&self, config: &Config, miss: Miss, taken: Option<&Error>) -> Error {
        let (rank, name) = (config.rank, &self.name);
        match (miss, taken) {
            (Miss::Stop(e), _) => e,
            (_, Some(taken)) => taken.clone(),
            (Miss::Nobody(e) | Miss::Nowhere(e) | Miss::Refused(Refusal::Ended(Some(e))), None) => {
                let words = format!(
                    "rank {rank}: {name} did not answer within {} ({e}); is {} running, and is the address right?",
                    seconds(config.join_timeout),
                    if matches!(config.meet, Meet::Store(_)) { "the launcher" } else { "rank 0" },
                );
                self.about(words).because(JoinCause::Missing).into()
            }
            (Miss::Refused(why), None) => {
                self.about(format!("rank {rank}: {name} refused this process: {why}")).into()
            }
        }
    }
}

/// Without a launcher, whoever started the job reads what rank 0 says.
fn tell(words: &str) {
    // Nobody may read it.
    let _ = writeln!(std::io::stderr(), "comity: rank 0: {words}");
}

/// Where the store is.
struct Located {
    addrs: Vec<SocketAddr>,
    /// The store itself, if this rank runs it.
    store: Option<Store>,
    /// Of zeros where none is wanted.
    key: Key,
    /// Why this rank runs none, where it should.
    taken: Option<Error>,
}

/// Find the store, or start it. A rank 0 whose address is taken claims its place at whoever listens there: if that is a job with
/// the same key, its other ranks may be joining that one.
fn locate(config: &Config, until: Instant) -> Result<Located> {
    let found = |addrs, store, key| Located { addrs, store, key, taken: None };
    let trust = config.trust()?;
    let known = match trust {
        Trust::Held(key) => key.clone(),
        Trust::Nobody => Key::zeros(),
        Trust::Exchange if config.rank == 0 => Key::random()?,
        Trust::Exchange => Key::zeros(),
    };
    let serve = |at: SocketAddr| {
        Store::start_with(at, config.size, &known, &config.job, config.join_timeout, config.insecure)
    };
    let serve = |at: SocketAddr| serve(at).inspect(|s| s.on_waiting(tell));
    let at_rank_0 = |at: &HostPort| {
        let addrs = at.resolve(until)?;
        match addrs.first() {
            Some(first) if config.rank == 0 => match serve(*first) {
                Ok(store) => Ok(found(vec![store.addr()], Some(store), known.clone())),
                Err(NoStore::Taken(e)) => {
                    tell(&e.to_string());
                    let located = found(vec![*first], None, known.clone());
                    Ok(Located { taken: Some(e), ..located })
                }
                Err(NoStore::Other(e)) => Err(e),
            },
            _ => Ok(found(addrs, None, known.clone())),
        }
    };
    match &config.meet {
        Meet::Alone => Err(Error::config(format!("{} ranks need a place to meet", config.size))),
        Meet::Store(at) => Ok(found(at.resolve(until)?, None, known)),
        Meet::Host(at) => at_rank_0(at),
        Meet::Hostfile(ranks) => match ranks.first().and_then(|r| r.first()) {
            Some(at) if !at.is_unspecified() => at_rank_0(at),
            _ => Err(Error::config("the hostfile does not tell an address of rank 0, where the ranks meet")),
        },
        Meet::Exchange(exchange) => over_exchange(config, &**exchange, (trust, &known), &serve, until),
    }
}

/// The store's address goes from rank 0 to all over a launcher's own channel.
fn over_exchange(
    config: &Config,
    exchange: &dyn crate::exchange::Exchange,
    (trust, known): (Trust<'_>, &Key),
    serve: &dyn Fn(SocketAddr) -> Result<Store, NoStore>,
    until: Instant,
) -> Result<Located> {
    let share =
        |mine: Option<&str>| exchange.share(config.rank, config.size, mine, until).map(Zeroizing::new);
    if config.rank != 0 {
        let (at, key) = exchanged::read(&share(None)?, trust, config.rank)?;
        return Ok(Located { addrs: vec![at], store: None, key, taken: None });
    }
    let all_here = config.local.is_some_and(|(_, n)| n == config.size);
    let ip = match config.addrs.first() {
        Some(a) => a.ip(),
        None if all_here => Ipv4Addr::LOCALHOST.into(),
        None => {
            let toward = exchange.address().map(|at| at.resolve(until)).transpose()?;
            here::outward(&toward.unwrap_or_default())
        }
    };
    let store = serve(SocketAddr::new(ip, 0)).map_err(|no| match no {
        NoStore::Taken(e) | NoStore::Other(e) => e,
    })?;
    share(Some(&exchanged::compose(store.addr(), trust, known)))?;
    Ok(Located { addrs: vec![store.addr()], store: Some(store), key: known.clone(), taken: None })
}
