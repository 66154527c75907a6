//! This process as a member of a world of processes.

use super::mesh::Mesh;
use crate::{
    Config, Error, Key, LinkCosts, LinkKind, Peer, Result, Secure,
    blame::Blame,
    channel::{Acceptor, Channel, Hello, Miss, Patience, Secret, Target, dial},
    control::{Control, Probes, Rules, Running, pace},
    error::seconds,
    rendezvous::{Facts, Meeting, Store, Table, agree_on_secrecy, announce, facts},
    status::{Failure, Header, Links, Watch, World},
    sys::{here, poll_until},
    transport::{Announced, Card, Job, Transports},
};
use comity_plan::Algorithm;
use rustix::event::{PollFd, PollFlags};
use std::{
    cell::RefCell,
    os::fd::AsFd,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// The longest time that a rank keeps connections for a group that it has not opened itself.
const PARKING: Duration = Duration::from_secs(300);
/// How long to wait for a better reason than that a rank ended.
const EXPLANATION: Duration = Duration::from_millis(50);
/// How much longer a rank waits for the others' connections than for its own: one that did not come may have waited for a third
/// rank until the limit, and says so now.
const WORD: Duration = Duration::from_millis(200);

/// See the module. Dropping it says goodbye to the others and ends its threads.
#[derive(Debug)]
pub(crate) struct Endpoint {
    me: usize,
    peers: Vec<Peer>,
    hosts: Vec<usize>,
    cores: usize,
    facts: Vec<Facts>,
    /// The cards of `facts`.
    cards: Vec<Card>,
    world: u64,
    secret: Secret,
    blame: Option<Blame>,
    sealed: bool,
    costs: OnceLock<LinkCosts>,
    algorithm: Option<Algorithm>,
    /// Ended before the goodbye, so that all that was sent has come when the others hear it.
    transports: Transports,
    /// The kind of link that goes before all others.
    first: Option<LinkKind>,
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
            let secret = Secret::new(&Key::zeros(), &config.job, 0);
            let table = Table {
                world: 0,
                facts: vec![facts(config, Announced::default(), Vec::new(), String::new())],
            };
            return Ok(Arc::new(Self::new(config, secret, table)));
        }
        let job = Job {
            rank: config.rank,
            size: config.size,
            sealed: config.secure == Secure::Data,
            wanted: config.backend.link().map(|kind| (kind, config.backend.name())),
        };
        let transports = Transports::find(config.links, &config.transports, &job)?;
        let (mut meeting, secret) = Meeting::find(config)?;
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
        endpoint.transports = transports;
        endpoint.transports.meet(config.rank, &endpoint.cards);
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
        match endpoint.connect(running.control(), &mut meeting) {
            Ok(()) => {
                endpoint._store = meeting.ready(running.share());
                endpoint.running = Some(running);
                Ok(Arc::new(endpoint))
            }
            Err(e) => {
                // Others may only have seen that this one turned them away.
                let is_about_us = e.to_string().contains(&format!("rank {} (", config.rank));
                let own = running.control().lacked().filter(|_| is_about_us);
                let e = own.unwrap_or(e);
                meeting.give_up(&e);
                let mut running = running;
                running.end(&e.to_string());
                Err(e)
            }
        }
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
            facts,
            world,
            secret,
            blame: config.blame.clone(),
            costs: OnceLock::new(),
            algorithm: config.algorithm,
            sealed: config.secure == Secure::Data,
            transports: Transports::default(),
            first: config.backend.link(),
            running: None,
            _store: None,
        }
    }

    /// Make a control connection with everyone: this rank connects to lower ranks and waits for higher ones.
    fn connect(&self, control: &Control, meeting: &mut Meeting) -> Result<()> {
        let limit = meeting.limit();
        let store = Arc::clone(meeting.conn().stream());
        let meeting = RefCell::new(meeting);
        let check = || {
            control.news().hush();
            if let Some(e) = control.starved() {
                return Err(e);
            }
            let mut meeting = meeting.borrow_mut();
            let absent = control.standing().map_err(|found| self.reason(control, &mut meeting, found))?;
            // Rank 0 may have met everyone and left, and its store with it.
            if !meeting.hear()? && absent.contains(&0) {
                return Err(meeting.lost("it ended"));
            }
            Ok(())
        };
        let bells = || vec![control.news().fd(), store.as_fd()];
        for rank in 0..self.me {
            let Some(card) = self.cards.get(rank) else { continue };
            let hello = Hello {
                from: self.me as u32,
                to: rank as u32,
                world: self.world,
                context: 0,
                channel: Channel::Control,
                sealed: self.sealed,
            };
            let mut targets: Vec<Target> = card.addrs.iter().copied().map(Target::Tcp).collect();
            if self.cards.get(self.me).is_some_and(|c| c.host_id == card.host_id) && !card.unix.is_empty() {
                targets.insert(0, Target::Unix(card.unix.clone()));
            }
            // Each connection shows that things go on, and gives the next one the whole limit.
            let patience = Patience { until: Instant::now() + limit, bells: bells(), check: &check };
            match dial(&targets, &self.secret, &hello, &patience) {
                Ok((stream, seals)) => control.attach(rank, stream, seals),
                Err(Miss::Stop(e)) => return Err(e),
                Err(miss) => {
                    let at: Vec<String> = card.addrs.iter().map(ToString::to_string).collect();
                    let words = format!(
                        "could not be reached at {} within {} ({miss}); can the hosts connect to each other there? COMITY_ADDRS on rank {rank} chooses other addresses",
                        at.join(", "),
                        seconds(limit)
                    );
                    return Err(self.reason(control, &mut meeting.borrow_mut(), (rank, words)));
                }
            }
        }
        let (mut until, mut left) = (Instant::now() + limit, usize::MAX);
        loop {
            check()?;
            let absent =
                control.standing().map_err(|found| self.reason(control, &mut meeting.borrow_mut(), found))?;
            let Some(first) = absent.first() else { return Ok(()) };
            if absent.len() < left {
                (until, left) = (Instant::now() + limit, absent.len());
            }
            if Instant::now() >= until + WORD {
                let words = format!(
                    "joined but did not connect to rank {} within {}; can its host reach this one?",
                    self.me,
                    seconds(limit)
                );
                // That one may still have been waiting for a third, which others know of.
                let others = || {
                    let (rank, words) = control.foretold().filter(|(rank, _)| *rank != self.me)?;
                    let next = "look at that rank's last output, then restart the job";
                    Some(self.broken(rank, &format!("{words}, as others say; {next}")))
                };
                let own = control.lacked().or_else(others);
                return Err(own.unwrap_or_else(|| self.broken(*first, &words)));
            }
            let mut fds = vec![PollFd::from_borrowed_fd(control.news().fd(), PollFlags::IN)];
            // A store that has ended is readable for ever, and will say nothing more.
            if meeting.borrow_mut().hear()? {
                fds.push(PollFd::new(&store, PollFlags::IN));
            }
            poll_until(&mut fds, Some(until + WORD)).map_err(|e| Error::os("joining", e))?;
        }
    }

    /// Why the ranks do not come together, where `rank` was seen to have ended: it may have given up on account of another one
    /// before it could say so here, and somebody else knows.
    fn reason(&self, control: &Control, meeting: &mut Meeting, (rank, words): (usize, String)) -> Error {
        let until = Instant::now() + EXPLANATION;
        let mut store = true;
        loop {
            control.news().hush();
            if let Some((rank, words)) = control.gave_up() {
                return self.broken(rank, &words);
            }
            if store {
                match meeting.hear() {
                    Ok(open) => store = open,
                    Err(e) => return e,
                }
            }
            if Instant::now() >= until {
                return self.broken(rank, &words);
            }
            let stream = Arc::clone(meeting.conn().stream());
            let mut fds = vec![PollFd::from_borrowed_fd(control.news().fd(), PollFlags::IN)];
            fds.extend(store.then(|| PollFd::new(&stream, PollFlags::IN)));
            if poll_until(&mut fds, Some(until)).is_err() {
                return self.broken(rank, &words);
            }
        }
    }

    fn broken(&self, rank: usize, words: &str) -> Error {
        if let Some(blame) = &self.blame {
            blame.tell(rank);
        }
        let who = self.peers.get(rank).map_or_else(|| format!("rank {rank}"), ToString::to_string);
        Error::Join(format!("{who} {words}"))
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

    fn open(&self, context: u64, members: &[usize], watch: &Arc<Watch>, until: Instant) -> Result<Links> {
        let Some(running) = &self.running else { return Ok(members.iter().map(|_| None).collect()) };
        let mesh = Mesh {
            me: self.me,
            world: self.world,
            facts: &self.facts,
            secret: &self.secret,
            sealed: self.sealed,
            control: running.control(),
            cards: &self.cards,
            transports: &self.transports,
            first: self.first,
        };
        mesh.open(context, members, watch, until)
    }

    fn costs(&self) -> Option<&LinkCosts> {
        self.costs.get()
    }

    fn learn(&self, costs: LinkCosts) {
        // The first stays: groups may be open by it.
        let _ = self.costs.set(costs);
    }

    fn attend(&self, context: u64, members: &[usize], watch: &Arc<Watch>) -> Result<()> {
        let mine = members.iter().position(|&m| m == self.me).unwrap_or_default();
        let Some(running) = &self.running else { return Ok(()) };
        if !running.control().enter(context, members, mine, watch) {
            return Err(Error::Config(format!("group {context:x} is open already; this is a bug in Comity")));
        }
        // It has its links.
        running.control().begin();
        Ok(())
    }

    fn leave(&self, context: u64) {
        if let Some(running) = &self.running {
            running.control().leave(context, true);
        }
    }

    fn ask(&self, context: u64, ranks: &[usize], call: &Header) {
        if let Some(running) = &self.running {
            running.control().ask(context, ranks, call);
        }
    }

    fn census(&self, context: u64, at: u64) {
        if let Some(running) = &self.running {
            running.control().census(context, at);
        }
    }

    fn waits(&self, context: u64, rank: usize) -> Option<(Header, bool)> {
        self.running.as_ref()?.control().waits(context, rank)
    }

    fn abort(&self, context: u64, failure: &Failure) {
        if let Some(running) = &self.running {
            running.control().abort(context, failure);
        }
    }
}

#[cfg(test)]
impl Endpoint {
    /// Be in a group, without links.
    pub(super) fn enter_for_test(&self, context: u64, members: &[usize]) -> Arc<Watch> {
        let watch = Arc::new(Watch::new(members.len(), Arc::default()).unwrap());
        let mine = members.iter().position(|m| *m == self.me).unwrap();
        let control = self.running.as_ref().unwrap().control();
        assert!(control.enter(context, members, mine, &watch));
        control.begin();
        watch
    }

    /// End as a killed process does: its connections close, and nothing is said.
    pub(super) fn die(&self) {
        if let Some(running) = &self.running {
            running.control().die();
        }
    }

    /// As if the socket of `rank` could not be reached from here.
    pub(super) fn spoil_unix_of(&mut self, rank: usize) {
        self.cards[rank].unix.push('x');
    }

    /// As if `rank` listened elsewhere.
    pub(super) fn readdress(&mut self, rank: usize, at: std::net::SocketAddr) {
        self.cards[rank].addrs = vec![at];
    }

    pub(super) fn card_of(&self, rank: usize) -> &Card {
        &self.cards[rank]
    }
}
