//! This process as a member of a world of processes.

mod connect;
mod for_tests;
mod world;

use super::{elastic::Elastic, maker::Makers, mesh::OpenedGroup, redial::Redial, way::Ways};
use crate::{
    ConnectTiming, Error, JoinCause, JoinError, Key, LinkCosts, LinkKind, Peer, Protection, Result,
    channel::{Acceptor, Channel, Hello, Listener, Relay, STORE, Secret},
    control::{LinkDesk, Probes, Rules, Running, pace},
    lanes::{OwnCores, most_lanes},
    rendezvous::{Facts, PassingOn, Store, StoreClient, Table, agree_on_secrecy, announce, facts},
    root_cause::RootCauseReport,
    settings::Settings,
    status::GroupStatus,
    sys::{JobPlace, here},
    transport::{AddressBook, Announced, Card, JobInfo, Transports},
};
use comity_plan::{Algorithm, Lanes};
use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

/// The longest time that a rank keeps connections for a group that it has not opened itself.
const PARKING: Duration = Duration::from_secs(300);
/// This process as a member of a job of processes: its listener, its control connections, its transports.
///
/// Dropping it says goodbye to the others and ends its threads.
#[derive(Debug)]
pub struct Endpoint {
    ways: Ways,
    hosts: Vec<usize>,
    cores: usize,
    facts: Arc<[Facts]>,
    root_cause: Option<RootCauseReport>,
    costs: OnceLock<LinkCosts>,
    lanes: Lanes,
    algorithm: Option<Algorithm>,
    /// Place in the job, which a forked child does not have. None for a world of one.
    place: Option<JobPlace>,
    /// Ended before the goodbye, so that all that was sent has come when the others hear it.
    transports: Arc<Transports>,
    /// The kind of link that goes before all others.
    first: Option<LinkKind>,
    /// Time limit for making a link.
    limit: Duration,
    /// All links are made when a group opens.
    all: bool,
    makers: Arc<Makers>,
    /// Control connections to neighbours in the graph only.
    sparse: bool,
    /// Makes those anew that are missing since others have ended.
    redial: Option<Arc<Redial>>,
    /// None for a world of one.
    pub(super) running: Option<Running>,
    /// Worlds that follow this one.
    pub(super) elastic: Elastic,
    /// After `running`: what others say to each other through this process goes on for a while when it ends.
    _relays: Vec<Arc<Relay>>,
    /// Kept for those that are slower to meet.
    _store: Option<Store>,
}

/// A process that has met the others, and is connected to none yet.
struct MetAll {
    meeting: StoreClient,
    secret: Secret,
    table: Table,
    listeners: Vec<Listener>,
    /// Relays for the processes that reach the store through this one.
    relays: Vec<Arc<Relay>>,
}

impl MetAll {
    fn all(config: &Settings, transports: &Transports) -> Result<Self> {
        let (mut meeting, secret) = StoreClient::find(config)?;
        let (listeners, facts) = meeting
            .listen(config)
            .and_then(|listeners| announce(config, transports.announce(), listeners))
            .inspect_err(|e| meeting.give_up(e))?;
        // Those who have no way to the store find this rank, and it passes on.
        let (passing, listeners) =
            match meeting.pass_on(config, &secret, listeners).inspect_err(|e| meeting.give_up(e))? {
                Ok(passing) => (Some(passing), Vec::new()),
                Err(listeners) => (None, listeners),
            };
        let table = meeting.join(facts).inspect_err(|e| meeting.give_up(e))?;
        let (listeners, relays) = match passing.map(PassingOn::end) {
            Some((listeners, relay)) => (listeners, vec![relay]),
            None => (listeners, Vec::new()),
        };
        agree_on_secrecy(&table.facts).inspect_err(|e| meeting.give_up(e))?;
        Ok(Self { meeting, secret, table, listeners, relays })
    }
}

impl Endpoint {
    /// Meet the others, and connect to each of them.
    pub fn join(config: &Settings) -> Result<Arc<Self>> {
        Self::join_from(config, config)
    }

    /// Joins as [`join`](Self::join); `lasting` is how it meets others later, while the job runs.
    pub(in crate::links) fn join_from(config: &Settings, lasting: &Settings) -> Result<Arc<Self>> {
        config.check()?;
        if config.size == 1 {
            return Ok(Arc::new(Self::alone(config)));
        }
        let place = JobPlace::take()?;
        let job = JobInfo {
            rank: config.rank,
            size: config.size,
            sealed: config.secure == Protection::Data,
            wanted: config.backend.link().map(|kind| (kind, config.backend.name())),
        };
        let mut transports = Transports::find(config.links, &config.transports, &job)?;
        let MetAll { mut meeting, secret, table, listeners, mut relays } = MetAll::all(config, &transports)?;
        // Nobody has a reason to connect before all have met.
        for listener in &listeners {
            listener.listen().map_err(|e| Error::os("listening", e)).inspect_err(|e| meeting.give_up(e))?;
        }
        let mut endpoint = Self::new(config, secret, table);
        transports.meet(config.rank, &endpoint.ways.cards);
        endpoint.transports = Arc::new(transports);
        endpoint.place = Some(place);
        let relay = endpoint.relay(config);
        relays.extend(relay.clone());
        endpoint._relays = relays;
        let acceptor = Acceptor::new(listeners, endpoint.ways.secret.clone()).with_relay(relay);
        let running = endpoint.start_control(acceptor).inspect_err(|e| meeting.give_up(e))?;
        endpoint.redial_with(&running);
        let endpoint = endpoint.settle(running, meeting)?;
        endpoint.elastic.remember(lasting);
        Ok(endpoint)
    }

    /// The thread that hears the others, and lets them in.
    fn start_control(&self, acceptor: Acceptor) -> Result<Running> {
        let rules = Rules {
            links: self.transports.kinds(),
            sealed: self.ways.sealed,
            patience: PARKING,
            silence: pace::of(&self.facts, self.sparse),
            sparse: self.sparse,
        };
        let Ways { me, world, sealed, secret, peers, .. } = &self.ways;
        let probes = Probes::new(*me, *world, *sealed, secret.clone(), rules.silence.limit);
        let running = Running::start(*me, peers.len(), *world, rules, acceptor, probes)?;
        running.live_on(&self.hosts);
        running.control().on_links(self.desk());
        Ok(running)
    }

    /// In a large job: what makes control connections that are missing.
    fn redial_with(&mut self, running: &Running) {
        if self.sparse {
            let redial = Redial::new(self.ways.clone(), Arc::downgrade(running.control()));
            let dialer: Weak<Redial> = Arc::downgrade(&redial);
            running.control().on_missing(dialer);
            self.redial = Some(redial);
        }
    }

    /// Connect to all, and tell the store how it went.
    fn settle(mut self, mut running: Running, mut meeting: StoreClient) -> Result<Arc<Self>> {
        match self.connect(running.control(), &mut meeting) {
            Ok(()) => {
                running.control().have_met();
                self._store = running.attend(meeting);
                self.running = Some(running);
                Ok(Arc::new(self))
            }
            Err(e) => {
                // Others may only have seen that this one turned them away.
                let own = running.control().lacked().filter(|_| e.ranks().contains(&self.ways.me));
                let e = own.unwrap_or(e);
                meeting.give_up(&e);
                running.end(&e.to_string(), &e.ranks());
                Err(e)
            }
        }
    }

    /// Makes the endpoint of a job of one rank.
    fn alone(config: &Settings) -> Self {
        let facts = vec![facts(config, Announced::default(), Vec::new(), String::new())];
        Self::new(config, Secret::new(&Key::zeros(), &config.job, 0), Table { world: 0, facts })
    }

    fn new(config: &Settings, secret: Secret, Table { world, facts }: Table) -> Self {
        let cards: Arc<[Card]> = facts.iter().map(|f| f.card.clone()).collect();
        let peer =
            |(rank, f): (usize, &Facts)| Peer { rank, host: Some(f.host.as_str().into()), pid: Some(f.pid) };
        let hosts = here::number_hosts(facts.iter().map(|f| f.card.host_id));
        let cores = |(&host, card): (&usize, &Card)| {
            let shared = usize::from(card.cores);
            OwnCores { host, shared, own: card.links.own_cores().unwrap_or(shared) }
        };
        let found = || most_lanes(&hosts.iter().zip(cards.iter()).map(cores).collect::<Vec<_>>());
        let lanes = config.lanes.map_or_else(|| Lanes::UpTo(found()), Lanes::Just);
        Self {
            ways: Ways {
                me: config.rank,
                world,
                cards: Arc::clone(&cards),
                peers: facts.iter().enumerate().map(peer).collect(),
                book: Arc::new(AddressBook::new(config.interfaces.clone())),
                secret,
                sealed: config.secure == Protection::Data,
            },
            hosts,
            cores: facts.iter().map(|f| usize::from(f.card.cores)).min().unwrap_or(1).max(1),
            facts: facts.into(),
            root_cause: config.root_cause.clone(),
            costs: OnceLock::new(),
            algorithm: config.algorithm,
            lanes,
            place: None,
            transports: Arc::default(),
            first: config.backend.link(),
            limit: config.join_timeout,
            all: config.connect_when == ConnectTiming::All,
            makers: Makers::new(cards),
            sparse: config.size > config.sparse_above,
            redial: None,
            running: None,
            elastic: Elastic::default(),
            _relays: Vec::new(),
            _store: None,
        }
    }

    /// Returns the desk to which the control thread reports ranks that want links.
    fn desk(&self) -> Weak<dyn LinkDesk> {
        let makers: Weak<Makers> = Arc::downgrade(&self.makers);
        makers
    }

    /// Returns a group of `members`, as this process makes links in it.
    fn group(
        &self,
        running: &Running,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
    ) -> Result<OpenedGroup> {
        let internal =
            |what: &str| Error::config(format!("group {group_id:x}: {what}; this is a bug in Comity"));
        let mine = members.iter().position(|m| *m == self.ways.me);
        let mine = mine.ok_or_else(|| internal("this rank is not a member"))?;
        if members.iter().any(|m| *m >= self.facts.len()) {
            return Err(internal("a member is not in the world"));
        }
        Ok(OpenedGroup {
            ways: self.ways.clone(),
            facts: Arc::clone(&self.facts),
            control: Arc::clone(running.control()),
            transports: Arc::clone(&self.transports),
            first: self.first,
            limit: self.limit,
            all: self.all,
            group_id,
            members: members.to_vec(),
            mine,
            status: Arc::clone(status),
        })
    }

    /// Returns the relay between ranks that have no way to each other.
    fn relay(&self, config: &Settings) -> Option<Arc<Relay>> {
        if !config.relay || self.ways.peers.len() < 3 {
            return None;
        }
        let me = self.ways.me;
        let world = self.ways.world;
        let cards = Arc::clone(&self.ways.cards);
        let book = Arc::clone(&self.ways.book);
        let find = move |hello: &Hello| {
            let to = hello.to as usize;
            // The two encrypt what they say. One who asks for a sign of life says nothing.
            let is_closed = hello.sealed || hello.channel == Channel::Probe;
            let is_other = hello.to != STORE && to != me && hello.world == world;
            let card = cards.get(to).filter(|card| is_closed && is_other && card.relays)?;
            Some(book.candidates(card).all.iter().map(|c| c.at).collect())
        };
        Some(Arc::new(Relay::new(find)))
    }

    /// The ranks do not come together on account of `rank`: the rest of the sentence about it, and what became of it.
    fn broken(&self, rank: usize, words: &str, cause: JoinCause) -> JoinError {
        if let Some(root_cause) = &self.root_cause {
            root_cause.tell(rank);
        }
        let who = self.ways.peers.get(rank).map_or_else(|| format!("rank {rank}"), ToString::to_string);
        JoinError::new(format!("{who} {words}")).of([rank]).because(cause)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(redial) = &self.redial {
            redial.end();
        }
        // They hold transports, which end before the goodbye.
        self.makers.end();
    }
}
