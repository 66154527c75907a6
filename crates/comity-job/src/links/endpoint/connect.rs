//! A control connection to every other rank: this one connects to lower ranks, and waits for higher ones.

use super::Endpoint;
use crate::{
    Error, JoinCause, Result,
    channel::{Channel, DialLimits, Miss, Stream},
    control::ControlPlane,
    error::seconds,
    rendezvous::StoreClient,
    sys::{Waker, poll_joining, poll_until},
    transport::Card,
};
use comity_membership::{Fault, overlay_neighbours};
use rustix::event::{PollFd, PollFlags};
use std::{
    cell::RefCell,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

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
