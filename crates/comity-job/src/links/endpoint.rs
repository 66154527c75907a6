//! This process as a member of a world of processes.

use super::{
    elastic::Elastic,
    maker::Makers,
    mesh::OpenedGroup,
    way::{Redial, Ways},
};
use crate::{
    ConnectTiming, Error, ErrorKind, JoinCause, JoinError, Key, LinkCosts, LinkKind, Peer, Protection,
    Result,
    channel::{Acceptor, Channel, DialLimits, Hello, Listener, Miss, Relay, STORE, Secret, Stream},
    control::{ControlNote, ControlPlane, LinkDesk, Probes, Rules, Running, pace},
    error::seconds,
    lanes::{OwnCores, most_lanes},
    links::mesh::likely,
    rendezvous::{Facts, PassingOn, Store, StoreClient, Table, agree_on_secrecy, announce, facts},
    root_cause::RootCauseReport,
    settings::Settings,
    status::{Failure, GroupStatus, Header, Links, Outcome, Parts, World},
    sys::{JobPlace, Waker, here, poll_joining, poll_until},
    transport::{AddressBook, Announced, Card, JobInfo, Transports},
};
use comity_membership::{Fault, Terms, overlay_neighbours};
use comity_plan::{Algorithm, Lanes};
use rustix::event::{PollFd, PollFlags};
use std::{
    cell::RefCell,
    os::fd::AsFd,
    sync::{Arc, OnceLock, Weak},
    thread,
    time::{Duration, Instant},
};

mod for_tests;

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

/// A failure that took less was no wait.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A pause of one who looks at a store that has ended.
const ENDED: Duration = Duration::from_millis(10);
/// Time limit for a better reason than that a rank ended.
const EXPLANATION: Duration = Duration::from_millis(50);
/// Time beyond its own limit for which a rank waits for the others' connections. A rank that did not come may have waited for a third
/// rank until the limit. It reports so now.
const WORD: Duration = Duration::from_millis(200);

impl Endpoint {
    /// Make a control connection with everyone: this rank connects to lower ranks and waits for higher ones.
    pub(super) fn connect(&self, control: &ControlPlane, meeting: &mut StoreClient) -> Result<()> {
        let limit = meeting.limit();
        let store = Arc::clone(meeting.conn().stream());
        let meeting = RefCell::new(meeting);
        let Some(news) = control.news() else { return Ok(()) };
        let check = || {
            news.drain();
            if let Some(e) = control.starved() {
                return Err(e);
            }
            let mut meeting = meeting.borrow_mut();
            let absent = control
                .missing()
                .map_err(|found| self.reason(control, &mut meeting, found, JoinCause::Ended))?;
            // Rank 0 may have met everyone and left, and its store with it.
            if !meeting.hear()? {
                if absent.contains(&0) {
                    return Err(meeting.lost("it ended"));
                }
                // Its end is readable for ever, and a dial that goes on looks at it.
                // WAIT(ENDED): 10 ms
                thread::sleep(ENDED);
            }
            Ok(())
        };
        // Each connection shows that things go on, and gives the next one the whole limit.
        let patience = || DialLimits {
            until: Instant::now() + limit,
            wakers: vec![news.fd(), store.as_fd()],
            check: &check,
        };
        let lower: Vec<usize> = match self.sparse {
            true => overlay_neighbours(self.ways.me, self.ways.peers.len()),
            false => (0..self.ways.me).collect(),
        };
        for rank in lower.into_iter().filter(|rank| *rank < self.ways.me) {
            self.dial_one(rank, control, &meeting, &patience())?;
        }
        self.await_higher(control, &meeting, &news, &store, &check)
    }

    /// A control connection to a lower rank.
    fn dial_one(
        &self,
        rank: usize,
        control: &ControlPlane,
        meeting: &RefCell<&mut StoreClient>,
        patience: &DialLimits<'_>,
    ) -> Result<()> {
        let limit = meeting.borrow().limit();
        let begun = Instant::now();
        let Some(card) = self.ways.cards.get(rank) else { return Ok(()) };
        let hello = self.ways.hello(rank, 0, Channel::Control);
        let (targets, vain) = self.ways.control_targets(rank, patience);
        match self.ways.dial(rank, &targets, &vain, &hello, patience) {
            Ok((stream, seals)) => control.attach(rank, stream, seals),
            Err(Miss::Stop(e)) => return Err(e),
            Err(miss) => {
                let here = self.facts.get(self.ways.me).map_or("", |f| f.host.as_str());
                // Where there is no way it is known at once.
                let waited = begun.elapsed().min(limit);
                let within =
                    if waited < AT_ONCE { String::new() } else { format!(" within {}", seconds(waited)) };
                let words = format!(
                    "could not be reached at {} from rank {} on host {here}{within} ({miss}); can the hosts connect to each other there, or does a firewall drop these ports (COMITY_PORTS chooses them)? A cable or a network that both have would do, or a rank that reaches both (COMITY_RELAY=1); COMITY_ADDRS on rank {rank} chooses other addresses",
                    card.place(),
                    self.ways.me
                );
                let found = Fault { rank, words, because_of: Vec::new() };
                let unreachable = JoinCause::Unreachable;
                return Err(self.reason(control, &mut meeting.borrow_mut(), found, unreachable));
            }
        }
        Ok(())
    }

    /// Wait until all higher ranks have connected; each that comes gives the others the whole limit anew.
    fn await_higher(
        &self,
        control: &ControlPlane,
        meeting: &RefCell<&mut StoreClient>,
        news: &Waker,
        store: &Stream,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let limit = meeting.borrow().limit();
        let mut until = Instant::now() + limit;
        let mut left = usize::MAX;
        loop {
            check()?;
            let absent = control
                .missing()
                .map_err(|found| self.reason(control, &mut meeting.borrow_mut(), found, JoinCause::Ended))?;
            let Some(first) = absent.first() else { return Ok(()) };
            if absent.len() < left {
                until = Instant::now() + limit;
                left = absent.len();
            }
            if Instant::now() >= until + WORD {
                let words = format!(
                    "joined but did not connect to rank {} at {} within {}; can its host reach this one there, or does a firewall drop these ports (COMITY_PORTS chooses them)?",
                    self.ways.me,
                    self.ways.cards.get(self.ways.me).map(Card::place).unwrap_or_default(),
                    seconds(limit)
                );
                // That one may still have been waiting for a third, which others know of.
                let others = || {
                    let Fault { rank, words, because_of } =
                        control.early_abort().filter(|f| f.rank != self.ways.me)?;
                    let next = "look at that rank's last output, then restart the job";
                    let words = format!("{words}, as others say; {next}");
                    Some(self.on_account(Fault { rank, words, because_of }, JoinCause::Ended))
                };
                let own = control.lacked().or_else(others);
                return Err(own.unwrap_or_else(|| self.broken(*first, &words, JoinCause::Unreachable).into()));
            }
            let mut fds = vec![PollFd::from_borrowed_fd(news.fd(), PollFlags::IN)];
            // A store that has ended is readable for ever, and will say nothing more.
            if meeting.borrow_mut().hear()? {
                fds.push(PollFd::new(store, PollFlags::IN));
            }
            // WAIT(until): the higher ranks: past the join deadline by a moment at most
            poll_joining(&mut fds, Some(until + WORD))?;
        }
    }

    /// The ranks do not come together on account of `found`, or of those on whose account it gave up.
    fn on_account(&self, found: Fault, cause: JoinCause) -> Error {
        let why = self.broken(found.rank, &found.words, cause);
        if found.because_of.is_empty() { why.into() } else { why.of(found.because_of).into() }
    }

    /// Error for ranks that do not come together; `found` was seen to have ended.
    ///
    /// The rank may have given up because of another before it could say so here. Then somebody else knows.
    fn reason(
        &self,
        control: &ControlPlane,
        meeting: &mut StoreClient,
        found: Fault,
        cause: JoinCause,
    ) -> Error {
        let until = Instant::now() + EXPLANATION;
        let mut store = true;
        let news = control.news();
        loop {
            news.iter().for_each(|news| news.drain());
            if let Some(said) = control.gave_up() {
                return self.on_account(said, JoinCause::GaveUp);
            }
            if store {
                match meeting.hear() {
                    Ok(open) => store = open,
                    Err(e) => return e,
                }
            }
            if Instant::now() >= until {
                return self.on_account(found, cause);
            }
            let stream = Arc::clone(meeting.conn().stream());
            let mut fds: Vec<_> =
                news.iter().map(|news| PollFd::from_borrowed_fd(news.fd(), PollFlags::IN)).collect();
            fds.extend(store.then(|| PollFd::new(&stream, PollFlags::IN)));
            // WAIT(until): word of whose fault it was: 50 ms at most
            if poll_until(&mut fds, Some(until)).is_err() {
                return self.on_account(found, cause);
            }
        }
    }
}

impl World for Endpoint {
    fn rank(&self) -> usize {
        self.ways.me
    }

    fn peers(&self) -> &[Peer] {
        &self.ways.peers
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn cores(&self) -> usize {
        self.cores
    }

    fn shares_memory(&self) -> bool {
        self.ways.cards.iter().all(|c| c.links.shares_memory())
    }

    fn silence(&self) -> Option<Duration> {
        pace::of(&self.facts, self.sparse).limit
    }

    fn prefers(&self) -> Option<Algorithm> {
        let ring = self.facts.iter().any(|f| f.ring).then_some(Algorithm::Ring);
        self.algorithm.or(ring)
    }

    fn lanes(&self) -> Lanes {
        self.lanes
    }

    fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links> {
        let Some(running) = &self.running else { return Ok(members.iter().map(|_| None).collect()) };
        self.group(running, group_id, members, status)?.open(until, &self.makers)
    }

    fn want(&self, group_id: u64, ranks: &[usize]) {
        self.makers.want(group_id, ranks);
    }

    fn likely_link(&self, rank: usize) -> Option<LinkKind> {
        self.running.as_ref()?;
        likely(&self.ways, &self.transports, self.first, rank)
    }

    fn costs(&self) -> Option<&LinkCosts> {
        self.costs.get()
    }

    fn own_cores(&self) -> usize {
        self.ways.cards.get(self.ways.me).map_or(1, |card| usize::from(card.cores).max(1))
    }

    fn learn(&self, costs: LinkCosts) {
        // The first stays: groups may be open by it.
        let _ = self.costs.set(costs);
    }

    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()> {
        let mine = members.iter().position(|&m| m == self.ways.me).unwrap_or_default();
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
            running.control().say(ranks, ControlNote::Waits { group_id, call: *call });
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

    fn joiners(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.control().joiners().len())
    }

    fn draft(&self, members: usize, epoch: u32) -> Result<Vec<u8>> {
        self.invite(members, epoch)
    }

    fn blame_joiners(&self, words: &str) {
        if let Some(running) = &self.running {
            running.control().blame_joiners(words);
        }
    }

    fn meet_joiners(&self, rank: usize, extra: &[u8], until: Instant) -> Result<Option<Arc<dyn World>>> {
        self.meet_anew(rank, extra, until)
    }

    fn succeed(&self) {
        self.take_over();
    }

    fn reform(
        &self,
        group_id: u64,
        members: &[usize],
        terms: Terms,
        until: Instant,
        parts: &mut dyn Parts,
    ) -> Result<Outcome> {
        let Some(running) = &self.running else { return Err(ErrorKind::Closed.into()) };
        let out = running.control().reform(group_id, members, terms, until, parts);
        self.elastic.end_meetings(running.control());
        out
    }

    fn abort(&self, group_id: u64, failure: &Failure) {
        if let Some(running) = &self.running {
            running.control().abort(group_id, failure);
        }
    }
}
