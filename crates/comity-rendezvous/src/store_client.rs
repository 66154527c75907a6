//! Meeting of a rank with the others: it finds the store, announces itself, and gets the table of everyone.

use super::{
    locate::{StoreLocation, locate, tell},
    store::{Store, StoreJob, firewall},
    wire::{Facts, FromStore, Summons, ToStore},
};
use crate::{
    Error, Field, JoinCause, JoinError, MeetingPoint, Protection, Result,
    channel::{
        Channel, Conn, DialLimits, Hello, Miss, Refusal, STORE, Sealing, Secret, Stream, Target, dial,
        dial_any,
    },
    error::seconds,
    settings::Settings,
    sys::{Waker, here::host_name, poll_joining, want_paths},
};
use comity_membership::Message;
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// Time beyond its own limit for which a rank waits for the store, which says who is missing.
const GRACE: Duration = Duration::from_secs(2);

/// Time for which rank 0 waits for an answer of the process that holds its address.
const CLAIM: Duration = Duration::from_secs(2);

/// Time before the first report of a store that does not answer: ranks rarely start at the same time.
const UNTOLD: Duration = Duration::from_secs(8);

/// Meetings to which a joiner is called.
const MOST_CALLS: u32 = 2;

/// A rank that speaks with the store.
#[derive(Debug)]
pub struct StoreClient {
    pub(super) conn: Conn,
    /// The store, if this rank runs it.
    pub store: Option<Store>,
    /// This process's address on the way to the store.
    pub(super) local: IpAddr,
    /// The store's.
    pub(super) addrs: Vec<SocketAddr>,
    at: Site,
    pub(super) rank: usize,
    size: usize,
    pub(super) until: Instant,
    limit: Duration,
    /// Limit on the silence of another host, if there is one.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux ends a connection by it"))]
    silence: Option<Duration>,
    /// Error for which rank 0 runs no store: somebody else listens at its address.
    taken: Option<Error>,
    /// Votes of the store that nobody has taken.
    votes: Vec<(u64, Message)>,
    /// Processes that wait at the store to be taken in.
    pub(super) joiners: Vec<u64>,
    /// Processes that it has called to a meeting.
    pub(super) called: Vec<u64>,
    /// Those that this process called last.
    pub(super) last_called: Vec<u64>,
    /// Number of meetings to which it called each joiner, where no group came of them.
    pub(super) in_vain: BTreeMap<u64, u32>,
    /// Reason of the last of these.
    pub(super) fault: String,
    /// Call of this process to a meeting, where it waits itself.
    pub(super) summons: Option<Summons>,
}

/// Everyone.
#[derive(Debug)]
pub struct Table {
    pub world: u64,
    pub facts: Vec<Facts>,
}

impl StoreClient {
    /// Find the store, or start it, and connect; also what the ranks know one another by.
    pub fn find(config: &Settings) -> Result<(Self, Secret)> {
        want_paths(config.mptcp);
        let limit = config.join_timeout;
        let until = Instant::now() + limit;
        let StoreLocation { addrs, relays, store, key, taken } = locate(config, until)?;
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
            sealed: config.secure == Protection::Data,
        };
        let (stream, seals) = at
            .dial(config, &addrs, &relays, &secret, &hello, answer)
            .map_err(|miss| at.missed(config, miss, taken.as_ref()))?;
        let local = match &stream {
            Stream::Tcp(s) => s.local_addr().map_err(|e| Error::os("joining", e))?.ip(),
            Stream::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        };
        let conn = Conn::new(stream, seals);
        Ok((
            Self {
                conn,
                store,
                local,
                addrs,
                at,
                rank: config.rank,
                size: config.size,
                until,
                limit,
                silence: config.detection.limit(),
                taken,
                votes: Vec::new(),
                joiners: Vec::new(),
                called: Vec::new(),
                last_called: Vec::new(),
                in_vain: BTreeMap::new(),
                fault: String::new(),
                summons: None,
            },
            secret,
        ))
    }

    /// Tell the store who is here, and wait for everyone.
    pub fn join(&mut self, facts: Facts) -> Result<Table> {
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
            while let Some(message) = self.conn.next_message().map_err(|_| self.nonsense())? {
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
                    FromStore::Joiners { all, called } => (self.joiners, self.called) = (all, called),
                    FromStore::Welcome { .. } | FromStore::Vote { .. } | FromStore::Summoned { .. } => {
                        return Err(self.nonsense());
                    }
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
            if poll_joining(&mut fds, Some(until))? == 0 {
                return Err(self
                    .at
                    .about(format!(
                        "rank {}: {} did not say within {} who is there{}",
                        self.rank,
                        self.at.name,
                        seconds(self.limit),
                        firewall(&self.addrs)
                    ))
                    .into());
            }
            self.conn.flush().map_err(|e| self.lost(&e.to_string()))?;
        }
    }

    /// Returns the time limit for the next rank to come.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Returns false if the store has ended. Fails if it says that the ranks did not come to a group.
    pub fn hear(&mut self) -> Result<bool> {
        let open = self.conn.fill();
        loop {
            match self.conn.next_message().map(|m| m.map(|m| FromStore::decode(&m))) {
                Ok(Some(Ok(FromStore::Refused { why }))) => return Err(why.into()),
                Ok(Some(Ok(FromStore::Vote { group_id, message }))) => self.votes.push((group_id, message)),
                Ok(Some(Ok(FromStore::Joiners { all, called }))) => {
                    self.joiners = all;
                    self.called = called;
                }
                Ok(Some(Ok(FromStore::Summoned { to }))) => self.summons = Some(to),
                Ok(None) => return Ok(open),
                _ => return Err(self.nonsense()),
            }
        }
    }

    /// Ask the store for its vote on the group that follows one. A store that is gone is found when it is next heard. The system ends the
    /// connection to one whose host does not acknowledge the question within the limit on silence.
    pub fn ask_to_vote(&mut self, world: u64, group_id: u64, message: &Message) {
        #[cfg(target_os = "linux")]
        if let (Stream::Tcp(stream), Some(silence)) = (&**self.conn.stream(), self.silence) {
            // Where it cannot be set, `reform` waits until its own limit.
            let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, silence.as_millis() as u32);
        }
        let _ = self.conn.send(&ToStore::Vote { world, group_id, message: message.clone() }.encode());
    }

    /// Takes the votes that have come, by the group's number.
    pub fn take_votes(&mut self) -> Vec<(u64, Message)> {
        std::mem::take(&mut self.votes)
    }

    /// All of this rank's connections stand. A launcher's store has no rank that would tell it who lives, or end the job for
    /// it: ranks stay connected with that one.
    pub fn ready(mut self, job: Weak<dyn StoreJob>) -> (Option<Store>, Option<Self>) {
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
    pub fn leave(self) {
        // It may have ended by itself.
        let _ = rustix::net::shutdown(self.conn.stream(), rustix::net::Shutdown::Both);
    }

    /// This rank gives up.
    pub fn give_up(&mut self, why: &Error) {
        let _ = self.conn.send(&ToStore::Failed { why: why.as_join() }.encode());
    }

    fn refused(&self, why: JoinError) -> Error {
        match &self.taken {
            Some(taken) => why.in_words(format!("{taken}. What listens there says: {why}")).into(),
            None => why.into(),
        }
    }

    pub fn lost(&self, how: &str) -> Error {
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

// Joiners: processes that come while the job runs, and wait at the launcher's store until a group forms again with them.
//
//   joiner:  Wait  ------>  store  ------>  Joiners{all} to every rank that runs
//   the rank that proposes the next group starts a store for its meeting, and has the launcher's call the joiners:
//            Summon{joiners, rank, size, addresses}  ------>  store  ------>  Summoned, to each
//   all meet at that store as at a job's start; in a group that then does not come about the joiner waits again
//   where that happens twice the rank has the joiners sent away (Decline), for they may be the reason
impl StoreClient {
    /// Number of processes that wait to be taken in, as far as the store has told.
    pub fn joiners(&self) -> &[u64] {
        &self.joiners
    }

    /// Returns true if a joiner waits, or has been called and has not said how that went: it has not ended.
    pub fn has(&self, joiner: u64) -> bool {
        self.joiners.contains(&joiner) || self.called.contains(&joiner)
    }

    /// This process's address on the way to the store.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Have the store call joiners.
    pub fn summon(&mut self, joiners: Vec<u64>, to: Summons) {
        // The store says so, too, a moment later.
        self.joiners.retain(|number| !joiners.contains(number));
        self.called.extend(&joiners);
        self.last_called.clone_from(&joiners);
        // A store that is gone is found when it is next heard.
        let _ = self.conn.send(&ToStore::Summon { joiners, to }.encode());
    }

    /// No group came of the last meeting to which joiners were called, and they may be the reason.
    pub fn blame(&mut self, words: &str) {
        self.fault = words.into();
        for joiner in std::mem::take(&mut self.last_called) {
            *self.in_vain.entry(joiner).or_default() += 1;
        }
    }

    /// Returns the joiners to call; those that were called in vain too often are sent away.
    pub fn invited(&mut self) -> Vec<u64> {
        let is_hopeless = |joiner: &u64| self.in_vain.get(joiner).is_some_and(|n| *n >= MOST_CALLS);
        let (hopeless, others): (Vec<u64>, Vec<u64>) = self.joiners.iter().partition(|j| is_hopeless(j));
        if !hopeless.is_empty() {
            let words = format!(
                "the job's ranks form no group with this process, and go on without it: {}; start it as they were started, on a host that reaches theirs",
                self.fault
            );
            tracing::warn!(words, "processes that wait to be taken in are sent away");
            let why = JoinError::new(words).because(JoinCause::Unreachable);
            let _ = self.conn.send(&ToStore::Decline { joiners: hopeless, why }.encode());
            self.joiners.clone_from(&others);
        }
        others
    }

    /// Say that this process waits to be taken in.
    pub fn enlist(&mut self, host: String, place: Option<u32>) -> Result<()> {
        self.summons = None;
        let wait = ToStore::Wait { host, pid: std::process::id(), place };
        self.conn.send(&wait.encode()).map_err(|e| self.gone(&e.to_string()))
    }

    /// Say that this process has been taken in.
    pub fn is_in(&mut self) {
        let _ = self.conn.send(&ToStore::Ready.encode());
    }

    /// Wait until this process is called to a meeting.
    pub fn summoned(&mut self) -> Result<Summons> {
        loop {
            let open = self.hear()?;
            if let Some(to) = self.summons.take() {
                return Ok(to);
            }
            if !open {
                return Err(self.gone("it ended"));
            }
            let stream = Arc::clone(self.conn.stream());
            let write = if self.conn.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            // WAIT(poll_joining): a job that runs, for as long as it does not form again; the store's end is seen
            poll_joining(&mut [PollFd::new(&stream, PollFlags::IN | write)], None)?;
            self.conn.flush().map_err(|e| self.gone(&e.to_string()))?;
        }
    }

    fn gone(&self, how: &str) -> Error {
        Error::join(format!("the joiner lost the job's store ({how}); has the job ended?"))
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
    fn new(config: &Settings, addrs: &[SocketAddr]) -> Self {
        let address = addrs.first().copied();
        let host = (config.rank != 0 && !matches!(config.meeting_point, MeetingPoint::Store(_))).then_some(0);
        let all = addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let name = match (address, host) {
            (Some(_), None) => format!("the store at {all}"),
            (Some(_), Some(_)) => format!("rank 0's store at {all}"),
            (None, _) => "the store".into(),
        };
        Self { name, address, host }
    }

    /// Returns the error for a fault of the store, on account of the rank that runs it.
    fn about(&self, words: String) -> JoinError {
        let why = JoinError::new(words).of(self.host);
        match self.address {
            Some(at) => why.at(at),
            None => why,
        }
    }

    /// The rest of a question about an address of another host.
    fn firewall(&self) -> &'static str {
        match self.address {
            Some(at) if !at.ip().is_loopback() => ", and does a firewall let its port pass",
            _ => "",
        }
    }

    /// Connect to it, at one of its own addresses or through one of `relays`.
    fn dial(
        &self,
        config: &Settings,
        addrs: &[SocketAddr],
        relays: &[SocketAddr],
        secret: &Secret,
        hello: &Hello,
        answer: Instant,
    ) -> Result<(Stream, Sealing), Miss> {
        let silent = Waker::new().map_err(|e| Miss::Stop(Error::os("joining", e)))?;
        let patience = |until| DialLimits { until, wakers: vec![silent.fd()], check: &|| Ok(()) };
        let targets = |addrs: &[SocketAddr]| addrs.iter().copied().map(Target::Tcp).collect::<Vec<_>>();
        let own = targets(addrs);
        let direct = |until| dial_any(&own, secret, hello, &patience(until), !relays.is_empty());
        let mut dialed = direct(answer.min(Instant::now() + UNTOLD));
        if let Err(miss) = &dialed
            && miss.is_passing()
            && Instant::now() < answer
        {
            self.tell_silence(config, miss, answer);
            dialed = direct(answer);
        }
        match dialed {
            Err(Miss::NoWay(why)) => {
                tracing::debug!(%why, "no way to the store, asking ranks that may have one to pass on");
                let all = [addrs, relays].concat();
                // What follows is between this rank and the store.
                dial(&targets(&all), secret, &Hello { sealed: true, ..*hello }, &patience(answer))
            }
            other => other.map(|won| won.connection),
        }
    }

    /// It may be at another address, or come later: whoever started the job can see that now.
    fn tell_silence(&self, config: &Settings, miss: &Miss, until: Instant) {
        let left = seconds(until.saturating_duration_since(Instant::now()));
        let words = format!(
            "{} has not answered yet ({miss}); is it running, and is the address right{}? This rank tries for {left} more",
            self.name,
            self.firewall()
        );
        tell(config.rank, &words);
    }

    /// Error of a rank that has no connection to it; `taken` is why rank 0 runs no store itself.
    fn missed(&self, config: &Settings, miss: Miss, taken: Option<&Error>) -> Error {
        let rank = config.rank;
        let name = &self.name;
        match (miss, taken) {
            (Miss::Stop(e), _) => e,
            (_, Some(taken)) => taken.clone(),
            (
                miss @ (Miss::Nobody(_)
                | Miss::Nowhere(_)
                | Miss::NoWay(_)
                | Miss::Barred(_)
                | Miss::Refused(Refusal::Ended(Some(_)))),
                None,
            ) => {
                let who = if matches!(config.meeting_point, MeetingPoint::Store(_)) {
                    "the launcher"
                } else {
                    "rank 0"
                };
                let host = config.host.clone().unwrap_or_else(host_name);
                let limit = seconds(config.join_timeout);
                let e = miss.to_string();
                let lacks_a_route = miss.lacks_a_route();
                let words = match miss {
                    Miss::Barred(_) => format!(
                        "rank {rank}: there is no way from host {host} to {name}, and the rank between may not pass on what they say ({e}); start that one without COMITY_RELAY=0, or connect the two hosts"
                    ),
                    _ if lacks_a_route => format!(
                        "rank {rank}: {name} did not answer within {limit} ({e}); from host {host} there is no way to some of these addresses, or a firewall keeps their port shut. A rank between that reaches both hosts passes on what they say: write its address after that of rank 0's host, on both, and start none with COMITY_RELAY=0"
                    ),
                    _ => format!(
                        "rank {rank}: {name} did not answer within {limit} ({e}); is {who} running, and is the address right{}?",
                        self.firewall()
                    ),
                };
                self.about(words).because(JoinCause::Missing).into()
            }
            (Miss::Refused(why), None) => {
                self.about(format!("rank {rank}: {name} refused this process: {why}")).into()
            }
        }
    }
}
