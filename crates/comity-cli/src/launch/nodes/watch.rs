//! While ranks run, the launchers tell each other ten times a second how theirs are.
use super::agree::{NodeWord, gather};
use super::findings::NodeFindings;
use crate::launch::supervisor::Supervisor;
use comity::Group;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the nodes tell each other their state.
const TOLD: Duration = Duration::from_millis(100);
/// Time that the others' ranks have to end when this node's have, beside `--grace`.
const OTHERS: Duration = Duration::from_secs(20);

/// State of a node's ranks: they run.
pub(super) const RUNNING: u8 = 0;
/// A rank has failed, or the job is to end for another reason.
pub(super) const FAILING: u8 = 1;
/// All have ended.
const OVER: u8 = 2;

/// The other launchers.
#[derive(Debug)]
pub(in crate::launch) struct Nodes {
    pub(super) words: Vec<NodeWord>,
    /// When the nodes had agreed: the same moment on all, but for the way there.
    pub(super) since: Instant,
    pub(super) heard: Arc<Overheard>,
    waker: UnixStream,
}

/// State that the thread and the supervisor share.
#[derive(Debug, Default)]
pub(super) struct Overheard {
    /// This node's.
    state: AtomicU8,
    /// A rank that one of this node's gave up before it ended well: its number and one, and that of the rank that gave it up.
    given_up: AtomicU64,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
pub(super) struct News {
    /// A node that ends its ranks; the first.
    pub(super) failing: Option<usize>,
    /// The same of the other nodes.
    given_up: Vec<u64>,
    /// Why the nodes hear nothing from each other any more, and whose fault it is.
    pub(super) lost: Option<(Option<usize>, String)>,
    pub(super) own: Option<NodeFindings>,
    pub(super) all: Option<Vec<NodeFindings>>,
    told: bool,
}

impl Overheard {
    pub(super) fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nodes {
    pub(super) fn watch(group: Group, words: Vec<NodeWord>) -> io::Result<Self> {
        let (waker, ring) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        let heard = Arc::<Overheard>::default();
        let theirs = Arc::clone(&heard);
        std::thread::Builder::new().name("nodes".into()).spawn(move || {
            let node = |e: &comity::Error| match e {
                comity::Error::PeerLost { peer, .. } => Some(peer.rank),
                _ => None,
            };
            if let Err((e, text)) = follow(&group, &theirs, &ring) {
                theirs.news().lost = Some((e.as_ref().and_then(node), text));
            }
            let _ = io::Write::write(&mut &ring, &[1]);
            let _ = group.close();
        })?;
        Ok(Self { words, since: Instant::now(), heard, waker })
    }

    /// Ranks that those of other nodes gave up before these ended well, and by whom; one of each node.
    pub(in crate::launch) fn given_up(&self) -> Vec<(usize, usize)> {
        let low = |word: u64| (word & u64::from(u32::MAX)) as usize;
        let pair = |word: &u64| Some((low(*word).checked_sub(1)?, low(*word >> 32)));
        self.heard.news().given_up.iter().filter_map(pair).collect()
    }

    pub(in crate::launch) fn want(&self) -> PollFd<'_> {
        PollFd::new(&self.waker, PollFlags::IN)
    }
}

type Broken = (Option<comity::Error>, String);

/// Until all ranks of all nodes have ended.
fn follow(group: &Group, heard: &Overheard, mut ring: &UnixStream) -> Result<(), Broken> {
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
            let _ = io::Write::write(&mut ring, &[1]);
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

impl Supervisor {
    /// Another node ends its ranks, or is gone.
    pub(in crate::launch) fn hear_nodes(&mut self) {
        let Some(nodes) = &self.nodes else { return };
        let mut sink = [0; 64];
        while matches!(rustix::io::read(&nodes.waker, &mut sink), Ok(n) if n > 0) {}
        let mut news = nodes.heard.news();
        let node = match (&news.lost, news.failing) {
            (Some((node, _)), _) => Some(node.unwrap_or(usize::MAX)),
            (None, node) => node,
        };
        if let (Some(node), false) = (node, news.told) {
            news.told = true;
            drop(news);
            self.another_ends(node);
        }
    }

    /// Tells the others how this node's ranks are.
    pub(in crate::launch) fn tell_nodes(&self) {
        if let Some(nodes) = &self.nodes
            && self.is_ending()
        {
            nodes.heard.state.fetch_or(FAILING, Ordering::AcqRel);
        }
        if let (Some(nodes), Some((rank, by))) = (&self.nodes, self.given_up_here().first()) {
            let rank = *rank as u64 + 1;
            let by = *by as u64;
            nodes.heard.given_up.store(by << 32 | rank, Ordering::Release);
        }
    }

    /// Waits for the others' ranks to end, and for what they found.
    pub(in crate::launch) fn wait_for_nodes(&mut self) {
        let Some(heard) = self.nodes.as_ref().map(|n| Arc::clone(&n.heard)) else { return };
        let mut until = None;
        let mut told = None;
        loop {
            let ending = self.is_ending();
            if told != Some(ending) {
                told = Some(ending);
                heard.news().own = Some(self.findings());
                heard.state.fetch_or(if ending { OVER | FAILING } else { OVER }, Ordering::AcqRel);
            }
            let news = heard.news();
            if news.all.is_some() || news.lost.is_some() {
                return;
            }
            if news.failing.is_some() || ending {
                until = until.or_else(|| Instant::now().checked_add(OTHERS + self.job.grace));
            }
            drop(news);
            if until.is_some_and(|u| Instant::now() > u) {
                return;
            }
            self.idle(Instant::now() + TOLD);
        }
    }
}
