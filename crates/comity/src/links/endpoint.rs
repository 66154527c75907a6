//! This process as a member of a world of processes.

mod connect;

use super::{maker::Makers, mesh::Mesh};
use crate::{
    Config, ConnectWhen, Error, JoinCause, JoinError, Key, LinkCosts, LinkKind, Peer, Result, Secure,
    channel::{Acceptor, Secret},
    control::{LinkDesk, Probes, Rules, Running, pace},
    rendezvous::{Facts, Store, StoreClient, Table, agree_on_secrecy, announce, facts},
    root_cause::RootCauseReport,
    status::{Failure, GroupStatus, Header, Links, World},
    sys::here,
    transport::{Announced, Card, JobInfo, Transports},
};
use comity_plan::Algorithm;
use std::{
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

/// The longest time that a rank keeps connections for a group that it has not opened itself.
const PARKING: Duration = Duration::from_secs(300);
/// See the module. Dropping it says goodbye to the others and ends its threads.
#[derive(Debug)]
pub(crate) struct Endpoint {
    me: usize,
    peers: Vec<Peer>,
    hosts: Vec<usize>,
    cores: usize,
    facts: Arc<[Facts]>,
    /// The cards of `facts`.
    cards: Arc<[Card]>,
    world: u64,
    secret: Secret,
    root_cause: Option<RootCauseReport>,
    sealed: bool,
    costs: OnceLock<LinkCosts>,
    algorithm: Option<Algorithm>,
    /// Ended before the goodbye, so that all that was sent has come when the others hear it.
    transports: Arc<Transports>,
    /// The kind of link that goes before all others.
    first: Option<LinkKind>,
    /// How long the making of a link may take.
    limit: Duration,
    /// All links are made when a group opens.
    all: bool,
    makers: Arc<Makers>,
    /// None for a world of one.
    running: Option<Running>,
    /// Kept for those that are slower to meet.
    _store: Option<Store>,
}

impl Endpoint {
    /// Meet the others, and connect to each of them.
    pub(crate) fn join(config: &Config) -> Result<Arc<Self>> {
        config.check()?;
        if config.size == 1 {
            return Ok(Arc::new(Self::alone(config)));
        }
        let job = JobInfo {
            rank: config.rank,
            size: config.size,
            sealed: config.secure == Secure::Data,
            wanted: config.backend.link().map(|kind| (kind, config.backend.name())),
        };
        let mut transports = Transports::find(config.links, &config.transports, &job)?;
        let (mut meeting, secret) = StoreClient::find(config)?;
        let (listeners, facts) = meeting
            .listen(config)
            .and_then(|listeners| announce(config, transports.announce(), listeners))
            .inspect_err(|e| meeting.give_up(e))?;
        let table = meeting.join(facts)?;
        agree_on_secrecy(&table.facts).inspect_err(|e| meeting.give_up(e))?;
        // Nobody has a reason to connect before all have met.
        for listener in &listeners {
            listener.listen().map_err(|e| Error::os("listening", e)).inspect_err(|e| meeting.give_up(e))?;
        }
        let mut endpoint = Self::new(config, secret, table);
        transports.meet(config.rank, &endpoint.cards);
        endpoint.transports = Arc::new(transports);
        let acceptor = Acceptor::new(listeners, endpoint.secret.clone());
        let rules = Rules {
            links: endpoint.transports.kinds(),
            sealed: endpoint.sealed,
            patience: PARKING,
            silence: pace::of(&endpoint.facts),
        };
        let probes = Probes::new(
            endpoint.me,
            endpoint.world,
            endpoint.sealed,
            endpoint.secret.clone(),
            rules.silence.limit,
        );
        let running = Running::start(endpoint.me, config.size, endpoint.world, rules, acceptor, probes)
            .inspect_err(|e| meeting.give_up(e))?;
        running.control().on_links(endpoint.desk());
        match endpoint.connect(running.control(), &mut meeting) {
            Ok(()) => {
                endpoint._store = meeting.ready(running.share());
                endpoint.running = Some(running);
                Ok(Arc::new(endpoint))
            }
            Err(e) => {
                // Others may only have seen that this one turned them away.
                let own = running.control().lacked().filter(|_| e.ranks().contains(&config.rank));
                let e = own.unwrap_or(e);
                meeting.give_up(&e);
                let mut running = running;
                running.end(&e.to_string(), &e.ranks());
                Err(e)
            }
        }
    }

    /// Of a job of one rank.
    fn alone(config: &Config) -> Self {
        let facts = vec![facts(config, Announced::default(), Vec::new(), String::new())];
        Self::new(config, Secret::new(&Key::zeros(), &config.job, 0), Table { world: 0, facts })
    }

    fn new(config: &Config, secret: Secret, Table { world, facts }: Table) -> Self {
        let peer =
            |(rank, f): (usize, &Facts)| Peer { rank, host: Some(f.host.as_str().into()), pid: Some(f.pid) };
        Self {
            me: config.rank,
            peers: facts.iter().enumerate().map(peer).collect(),
            hosts: here::number_hosts(facts.iter().map(|f| f.card.host_id)),
            cores: facts.iter().map(|f| usize::from(f.card.cores)).min().unwrap_or(1).max(1),
            cards: facts.iter().map(|f| f.card.clone()).collect(),
            facts: facts.into(),
            world,
            secret,
            root_cause: config.root_cause.clone(),
            costs: OnceLock::new(),
            algorithm: config.algorithm,
            sealed: config.secure == Secure::Data,
            transports: Arc::default(),
            first: config.backend.link(),
            limit: config.join_timeout,
            all: config.connect_when == ConnectWhen::All,
            makers: Makers::new(),
            running: None,
            _store: None,
        }
    }

    /// Whom the control thread tells who wants links.
    fn desk(&self) -> Weak<dyn LinkDesk> {
        let makers: Weak<Makers> = Arc::downgrade(&self.makers);
        makers
    }

    /// What making links takes.
    fn mesh(&self, running: &Running) -> Mesh {
        Mesh {
            me: self.me,
            world: self.world,
            facts: Arc::clone(&self.facts),
            secret: self.secret.clone(),
            sealed: self.sealed,
            control: Arc::clone(running.control()),
            cards: Arc::clone(&self.cards),
            transports: Arc::clone(&self.transports),
            first: self.first,
            limit: self.limit,
            all: self.all,
        }
    }

    /// The ranks do not come together on account of `rank`: the rest of the sentence about it, and what became of it.
    fn broken(&self, rank: usize, words: &str, cause: JoinCause) -> JoinError {
        if let Some(root_cause) = &self.root_cause {
            root_cause.tell(rank);
        }
        let who = self.peers.get(rank).map_or_else(|| format!("rank {rank}"), ToString::to_string);
        JoinError::new(format!("{who} {words}")).of([rank]).because(cause)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // They hold transports, which end before the goodbye.
        self.makers.end();
    }
}

impl World for Endpoint {
    fn rank(&self) -> usize {
        self.me
    }

    fn peers(&self) -> &[Peer] {
        &self.peers
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn cores(&self) -> usize {
        self.cores
    }

    fn shares_memory(&self) -> bool {
        self.cards.iter().all(|c| c.links.shares_memory())
    }

    fn silence(&self) -> Option<Duration> {
        pace::of(&self.facts).limit
    }

    fn prefers(&self) -> Option<Algorithm> {
        let ring = self.facts.iter().any(|f| f.ring).then_some(Algorithm::Ring);
        self.algorithm.or(ring)
    }

    fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links> {
        let Some(running) = &self.running else { return Ok(members.iter().map(|_| None).collect()) };
        self.mesh(running).open(group_id, members, status, until, &self.makers)
    }

    fn want(&self, group_id: u64, ranks: &[usize]) {
        self.makers.want(group_id, ranks);
    }

    fn likely_link(&self, rank: usize) -> Option<LinkKind> {
        self.mesh(self.running.as_ref()?).likely(rank)
    }

    fn costs(&self) -> Option<&LinkCosts> {
        self.costs.get()
    }

    fn learn(&self, costs: LinkCosts) {
        // The first stays: groups may be open by it.
        let _ = self.costs.set(costs);
    }

    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()> {
        let mine = members.iter().position(|&m| m == self.me).unwrap_or_default();
        let Some(running) = &self.running else { return Ok(()) };
        if !running.control().enter(group_id, members, mine, status) {
            return Err(Error::config(format!(
                "group {group_id:x} is open already; this is a bug in Comity"
            )));
        }
        // It has its links.
        running.control().begin();
        Ok(())
    }

    fn leave(&self, group_id: u64) {
        self.makers.forget(group_id);
        if let Some(running) = &self.running {
            running.control().leave(group_id, true);
        }
    }

    fn ask(&self, group_id: u64, ranks: &[usize], call: &Header) {
        if let Some(running) = &self.running {
            running.control().ask(group_id, ranks, call);
        }
    }

    fn census(&self, group_id: u64, at: u64, ranks: &[usize]) {
        if let Some(running) = &self.running {
            running.control().census(group_id, at, ranks);
        }
    }

    fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        self.running.as_ref()?.control().waits(group_id, rank)
    }

    fn abort(&self, group_id: u64, failure: &Failure) {
        if let Some(running) = &self.running {
            running.control().abort(group_id, failure);
        }
    }
}

#[cfg(test)]
impl Endpoint {
    /// Be in a group, without links.
    pub(super) fn enter_for_test(&self, group_id: u64, members: &[usize]) -> Arc<GroupStatus> {
        let status = Arc::new(GroupStatus::new(members.len(), Arc::default()).unwrap());
        let mine = members.iter().position(|m| *m == self.me).unwrap();
        let control = self.running.as_ref().unwrap().control();
        assert!(control.enter(group_id, members, mine, &status));
        control.begin();
        status
    }

    /// End as a killed process does: its connections close, and nothing is said.
    pub(super) fn die(&self) {
        if let Some(running) = &self.running {
            running.control().die();
        }
    }

    /// As if the socket of `rank` could not be reached from here.
    pub(super) fn spoil_unix_of(&mut self, rank: usize) {
        Arc::make_mut(&mut self.cards)[rank].unix.push('x');
    }

    /// As if `rank` listened elsewhere.
    pub(super) fn readdress(&mut self, rank: usize, at: std::net::SocketAddr) {
        Arc::make_mut(&mut self.cards)[rank].addrs = vec![at];
    }

    /// How many links of a group were made.
    pub(super) fn links_made_for_test(&self, group_id: u64) -> usize {
        self.makers.made_for_test(group_id)
    }

    pub(super) fn card_of(&self, rank: usize) -> &Card {
        &self.cards[rank]
    }
}
