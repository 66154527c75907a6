//! While ranks run, the launchers tell each other ten times a second how theirs are.
use super::agree::{NodeWord, gather};
use crate::machine::findings::{NodeFindings, judge, verdict_alone};
use crate::machine::{Event, Machine, Verdict};
use crate::upstream::{Order, Tidings, Upstream};
use comity::Group;
use comity_base::{sync::lock, sys::Waker};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const TOLD: Duration = Duration::from_millis(100);

/// State of a node's ranks, where they do not just run: a rank has failed, or the job is to end for another reason.
const FAILING: u8 = 1;
/// All have ended.
const OVER: u8 = 2;

#[derive(Debug)]
pub(crate) struct Nodes {
    words: Vec<NodeWord>,
    /// When the nodes had agreed: the same moment on all, but for the way there.
    pub(crate) since: Instant,
    heard: Arc<Overheard>,
    waker: Arc<Waker>,
}

#[derive(Debug, Default)]
struct Overheard {
    /// This node's.
    state: AtomicU8,
    /// A rank that one of this node's gave up before it ended well: its number and one, and that of the rank that gave it up.
    given_up: AtomicU64,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    /// A node that ends its ranks; the first.
    failing: Option<usize>,
    /// The same of the other nodes.
    given_up: Vec<u64>,
    /// Reason for which the nodes hear nothing from each other any more, and whose fault it is.
    lost: Option<(Option<usize>, String)>,
    own: Option<NodeFindings>,
    all: Option<Vec<NodeFindings>>,
    told: bool,
}

impl Overheard {
    fn news(&self) -> MutexGuard<'_, News> {
        lock(&self.news)
    }
}

impl Nodes {
    pub(super) fn watch(group: Group, words: Vec<NodeWord>) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let ring = Arc::clone(&waker);
        let heard = Arc::<Overheard>::default();
        let theirs = Arc::clone(&heard);
        std::thread::Builder::new().name("nodes".into()).spawn(move || {
            let node = |e: &comity::Error| match e.kind() {
                comity::ErrorKind::PeerLost { peer, .. } => Some(peer.rank),
                _ => None,
            };
            if let Err((e, text)) = follow(&group, &theirs, &ring) {
                theirs.news().lost = Some((e.as_ref().and_then(node), text));
            }
            ring.wake();
            let _ = group.close();
        })?;
        Ok(Self { words, since: Instant::now(), heard, waker })
    }

    /// Tells the other nodes how the ranks here ended: `own` says it.
    pub(crate) fn tell_findings(&self, own: NodeFindings, is_failing: bool) {
        self.heard.news().own = Some(own);
        let state = if is_failing { OVER | FAILING } else { OVER };
        self.heard.state.fetch_or(state, Ordering::AcqRel);
    }

    /// Progress of the other nodes.
    pub(crate) fn progress(&self) -> Event {
        let news = self.heard.news();
        Event::Others { heard: news.all.is_some() || news.lost.is_some(), failing: news.failing.is_some() }
    }

    /// The last line and the exit code, of the whole job where all have said what they found. `name` has a rank's name for people.
    pub(crate) fn verdict(&self, machine: &Machine, name: &dyn Fn(usize) -> String) -> Verdict {
        let news = self.heard.news();
        match &news.all {
            Some(all) => judge(all),
            None => {
                let lost = news.lost.as_ref().map(|(node, why)| self.lost(*node, why));
                verdict_alone(machine, lost, name)
            }
        }
    }

    fn lost(&self, node: Option<usize>, why: &str) -> String {
        match node.and_then(|n| Some((n, self.words.get(n)?))) {
            Some((n, word)) => {
                let first: usize = self.words[..n].iter().map(|w| w.size).sum();
                let last = first + word.size - 1;
                let ranks =
                    if word.size == 1 { format!("rank {last}") } else { format!("ranks {first}-{last}") };
                format!("node {n} (host {}, {ranks}) was lost: {why}", word.host)
            }
            None => format!("the launchers of the nodes lost each other: {why}"),
        }
    }

    /// Ranks that those of other nodes gave up before these ended well, and by whom; one of each node.
    fn given_up(&self) -> Vec<(usize, usize)> {
        let low = |word: u64| (word & u64::from(u32::MAX)) as usize;
        let pair = |word: &u64| Some((low(*word).checked_sub(1)?, low(*word >> 32)));
        self.heard.news().given_up.iter().filter_map(pair).collect()
    }
}

type LostNode = (Option<comity::Error>, String);

/// Until all ranks of all nodes have ended.
fn follow(group: &Group, heard: &Overheard, ring: &Waker) -> Result<(), LostNode> {
    let mut words = vec![0u64; 2 * group.size()];
    loop {
        let own = [heard.state.load(Ordering::Acquire).into(), heard.given_up.load(Ordering::Acquire)];
        group.all_gather(&own, &mut words).map_err(|e| (Some(e.clone()), e.to_string()))?;
        let states: Vec<u8> = words.iter().step_by(2).map(|w| *w as u8).collect();
        let given_up: Vec<u64> = words.iter().skip(1).step_by(2).copied().filter(|w| *w != 0).collect();
        let failing = states.iter().position(|s| s & FAILING != 0);
        let mut news = heard.news();
        if failing.is_some() && news.failing.is_none() || news.given_up != given_up {
            news.failing = news.failing.or(failing);
            news.given_up = given_up;
            ring.wake();
        }
        drop(news);
        if states.iter().all(|s| s & OVER != 0) {
            break;
        }
        std::thread::sleep(TOLD);
    }
    let own = heard.news().own.clone().unwrap_or_default();
    let all = gather(group, &own).map_err(|e| (None, e))?;
    heard.news().all = Some(all);
    Ok(())
}

impl Upstream for Nodes {
    fn want(&self) -> Option<PollFd<'_>> {
        Some(PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN))
    }

    /// Another node ends its ranks, or is gone; or ranks there gave up some here.
    fn take(&mut self) -> Vec<Order> {
        self.waker.drain();
        let given_up = self.given_up();
        let mut news = self.heard.news();
        let node = match (&news.lost, news.failing) {
            (Some((node, _)), _) => Some(node.unwrap_or(usize::MAX)),
            (None, node) => node,
        };
        let node = node.filter(|_| !std::mem::replace(&mut news.told, node.is_some()));
        let ends = node.map(|node| Event::OtherEnds { node });
        std::iter::once(Event::GivenUp(given_up)).chain(ends).map(Order::News).collect()
    }

    /// Tells the others how this node's ranks are.
    fn keep_in_touch(&mut self, tidings: Tidings<'_>) -> Vec<Order> {
        if tidings.machine.is_failing() {
            self.heard.state.fetch_or(FAILING, Ordering::AcqRel);
        }
        if let Some((rank, by)) = tidings.machine.given_up_here().next() {
            let rank = rank as u64 + 1;
            let by = by as u64;
            self.heard.given_up.store(by << 32 | rank, Ordering::Release);
        }
        Vec::new()
    }
}
