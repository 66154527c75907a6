//! The graph in which the ranks of a large job watch each other, and what goes over it.
//!
//! Up to 64 ranks every pair has a control connection. Above, a rank connects only to its neighbours: those at distance 1, 2, 4, 8, ...
//! on both sides of it, around the ring of the ranks that are there. Ranks that are known to be gone are stepped over. No number of them
//! tears the ring, because the ranks beside a rank are always among its neighbours.
//!
//! ```text
//!   256 ranks, as seen by 0:   1 2 4 8 16 32 64 128 and 255 254 252 248 240 224 192
//!
//!   news of all (a rank opens a group, leaves it, has failed it, ends; "I lost 3")     news of one (Waits, Census, Reached, Connect)
//!        0 --> its neighbours --> theirs, each once                                        0 --> 64 --> 96 --> 100: each step to the
//!        a number for each rank's news, so that each is taken once                         neighbour that is nearest to the target
//! ```
//!
//! | ranks | neighbours | steps of news to all | steps of news to one | connections of the job, before |
//! |---|---|---|---|---|
//! | 65 to 128 | 13 | 4 at most | 5 at most | 832, 8,128 |
//! | 256 | 15 | 5 | 6 | 1,920, 32,640 |
//! | 4,096 | 23 | 7 | 8 | 47,104, 8,386,560 |
//!
//! News of all cost each rank one note to each neighbour; the caller sends those of one turn together. Connections keep their order, and
//! each rank passes news on before it acts on them. So what a rank said before it ended is known everywhere before its end.
//!
//! # Who is dead
//! Only neighbours judge. A rank loses a neighbour when its connection ends, or when it is silent. Then it fails the groups that both are in,
//! tells all, and says that this edge of the graph is gone. Every rank remembers which edges are gone, and by whose word.
//! **A rank that no edge leads to any more is lost.** A rank whose connection to a single neighbour broke is not: its other neighbours still
//! watch it. In a job that is cut in two, each half finds that no edge leads to the other.
//!
//! # When ranks end
//! The graph closes over them. A beat later each rank finds its neighbours anew among those that are there, and connects to those that it
//! lacks; the higher rank of a pair first. A rank where nobody listens has ended in good order: a death would have been told.
//!
//! Imports nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// More steps than news of one rank take on any graph that is whole.
pub(crate) const MOST_HOPS: u8 = 40;
/// The most targets of one note.
pub(crate) const MOST_TARGETS: usize = 512;
/// Failed groups remembered, so that each failure is passed on once.
const MAX_TOLD: usize = 4096;
/// Numbers kept beyond a gap in what a rank says.
const MAX_AHEAD: usize = 256;
/// While no more than twice as many edges are gone: look first for ranks that have lost all of theirs.
const NEAR: usize = 16;
/// If more ranks than this are lost by hearsay, a whole part of the graph is lost, and others find it in one piece too.
const MANY: usize = 64;
/// Cause of the loss of a rank whose process does not listen any more.
pub(crate) const NOT_THERE: &str = "has ended";

/// The partners of `mine` among the ranks that are `there`: the nearest one at distance 1, 2, 4, 8, ... on either side.
fn partners(mine: usize, size: usize, there: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut partners = Vec::new();
    let mut distance = 1;
    while distance < size {
        for back in [false, true] {
            let at = |d: usize| (mine + if back { size - d } else { d }) % size;
            if let Some(partner) = (distance..size).map(at).find(|m| there(*m))
                && !partners.contains(&partner)
            {
                partners.push(partner);
            }
        }
        distance *= 2;
    }
    partners
}

/// The neighbours of `mine` among the ranks that are `there`: its partners, and those whose partner it is.
pub(crate) fn around(mine: usize, size: usize, there: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut all = partners(mine, size, &there);
    let mut distance = 1;
    while distance < size {
        for back in [false, true] {
            let at = |d: usize| (mine + if back { size - d } else { d }) % size;
            for gap in 0..size - distance {
                // Whoever is there in between is that one's partner.
                if gap > 0 && there(at(gap)) {
                    break;
                }
                let one = at(distance + gap);
                if one != mine && there(one) && !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        distance *= 2;
    }
    all
}

/// The ranks of a large job of `size` to which `me` has control connections.
pub fn overlay_neighbours(me: usize, size: usize) -> Vec<usize> {
    around(me, size, |_| true)
}

/// State of the graph, as one rank knows it.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) me: usize,
    pub(crate) size: usize,
    /// Number of neighbours that have not connected yet, while the ranks meet.
    pub(crate) missing: usize,
    /// The ranks to which this one has a connection.
    pub(crate) connected: BTreeSet<usize>,
    /// Number of news that this rank has sent.
    pub(crate) number: u64,
    /// Numbers of each rank's news that have come.
    seen: BTreeMap<usize, NewsNumbers>,
    /// Groups whose failure was told or passed on.
    told: VecDeque<u64>,
    /// Groups that others have opened and this rank has not, as they came.
    pub(crate) opened: VecDeque<u64>,
    /// Edges that are gone: who says so, and of whom.
    pub(crate) lost: BTreeMap<(usize, usize), Loss>,
    /// Ranks that the graph has closed over: they ended in good order, or no edge leads to them. One that is only dead to this rank is in it.
    out: Vec<bool>,
    /// Number of those ranks.
    outs: usize,
    /// The neighbours of each rank, once that was needed.
    graph: Option<Graph>,
    /// Lost by the word of others alone: this rank has told nobody.
    pub(crate) hearsay: BTreeSet<usize>,
    /// `lost`, or who is there, has changed since the last look.
    pub(crate) stirred: bool,
    /// For how many milliseconds nothing was heard from the one that is being given up.
    pub(crate) silence: Option<u64>,
    /// When to look whether neighbours are missing.
    pub(crate) rewire: Option<Instant>,
    /// Lower ranks wait so long for the higher one: those were to be connected to at the last look.
    pub(crate) waiting: BTreeSet<usize>,
    /// Being connected to, since when.
    pub(crate) dialing: BTreeMap<usize, Instant>,
    /// Connected to later than at the start, and not heard yet on that connection: the other may be about to end.
    pub(crate) fresh: BTreeSet<usize>,
    /// Ranks that did not answer when they were to be connected to, and since when.
    pub(crate) tried: BTreeMap<usize, Instant>,
}

/// Loss of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) cause: String,
    /// For how many milliseconds nothing was heard, if that is why.
    pub(crate) silence: Option<u64>,
}

/// The neighbours of all ranks, in little room.
#[derive(Debug)]
struct Graph {
    /// Index in `all` at which the neighbours of each rank begin.
    begins: Vec<u32>,
    all: Vec<u32>,
}

impl Graph {
    fn new(of: impl Iterator<Item = Vec<usize>>) -> Self {
        let mut graph = Self { begins: vec![0], all: Vec::new() };
        for near in of {
            graph.all.extend(near.iter().map(|r| *r as u32));
            graph.begins.push(graph.all.len() as u32);
        }
        graph
    }

    fn of(&self, rank: usize) -> impl Iterator<Item = usize> {
        let from = self.begins[rank] as usize;
        let to = self.begins[rank + 1] as usize;
        self.all[from..to].iter().map(|r| *r as usize)
    }
}

impl Loss {
    /// Nobody lost it there: others said so.
    pub(crate) fn by_hearsay() -> Self {
        Self { cause: String::new(), silence: None }
    }

    /// Return whether somebody saw that the rank is lost.
    pub(crate) fn is_seen(&self) -> bool {
        !self.cause.is_empty() && self.cause != NOT_THERE
    }
}

/// Numbers of a rank's news that have come.
#[derive(Debug, Default)]
struct NewsNumbers {
    upto: u64,
    /// The numbers beyond a gap: a new connection may carry later ones first.
    ahead: BTreeSet<u64>,
}

impl NewsNumbers {
    /// False if it has come before.
    fn take(&mut self, number: u64) -> bool {
        if number <= self.upto || !self.ahead.insert(number) {
            return false;
        }
        while self.ahead.first() == Some(&(self.upto + 1)) || self.ahead.len() > MAX_AHEAD {
            self.upto = self.ahead.pop_first().unwrap_or(self.upto);
        }
        true
    }
}

impl Overlay {
    pub(crate) fn new(me: usize, size: usize) -> Self {
        let missing = overlay_neighbours(me, size).len();
        Self { me, size, missing, out: vec![false; size], ..Self::default() }
    }

    /// Return whether news of this number from `origin` have not come before.
    pub(crate) fn is_new(&mut self, origin: usize, number: u64) -> bool {
        origin < self.size && origin != self.me && self.seen.entry(origin).or_default().take(number)
    }

    /// Return whether the failure of a group is to be passed on: each rank does so once.
    pub(crate) fn tells(&mut self, group_id: u64) -> bool {
        if self.told.contains(&group_id) {
            return false;
        }
        if self.told.len() >= MAX_TOLD {
            self.told.pop_front();
        }
        self.told.push_back(group_id);
        true
    }

    /// The neighbour that leads to `target`; not back to `from`, unless it is the target.
    pub(crate) fn next_to(&self, target: usize, from: Option<usize>) -> Option<usize> {
        if self.connected.contains(&target) {
            return Some(target);
        }
        let apart = |a: usize| {
            let forth = (a + self.size - target) % self.size;
            forth.min(self.size - forth)
        };
        self.connected.iter().copied().filter(|k| Some(*k) != from).min_by_key(|k| (apart(*k), *k))
    }

    fn is_gone(&self, a: usize, b: usize) -> bool {
        self.lost.contains_key(&(a, b)) || self.lost.contains_key(&(b, a))
    }

    /// The neighbours of `rank` to which its edge is not gone.
    pub(crate) fn edges(&self, rank: usize) -> Vec<usize> {
        let mut all = self.around(rank);
        if rank == self.me {
            all.extend(self.connected.iter().copied().filter(|c| self.is_in(*c)));
        } else if self.connected.contains(&rank) {
            all.push(self.me);
        }
        all.retain(|one| !self.is_gone(rank, *one));
        all
    }

    /// The neighbours of a rank, whether their edges are gone or not.
    pub(crate) fn around(&self, rank: usize) -> Vec<usize> {
        around(rank, self.size, |r| self.is_in(r))
    }

    pub(crate) fn is_in(&self, rank: usize) -> bool {
        self.out.get(rank) == Some(&false)
    }

    /// The graph closes over a rank.
    pub(crate) fn close_over(&mut self, rank: usize) {
        if let Some(out) = self.out.get_mut(rank)
            && !std::mem::replace(out, true)
        {
            self.stirred = true;
            self.graph = None;
            self.outs += 1;
        }
    }

    /// Lost ranks of which this rank only heard, and of which somebody may think that this rank watches them. They are announced now.
    ///
    /// Somebody may think so now, or when others end: a rank that heard of some ends first has closed the graph over those ranks already.
    pub(crate) fn take_near_hearsay(&mut self) -> Vec<usize> {
        if self.hearsay.is_empty() {
            return Vec::new();
        }
        let in_pieces = self.hearsay.len() <= MANY;
        let mut there: Vec<bool> = self.out.iter().map(|out| !out).collect();
        self.lost.keys().for_each(|(_, rank)| there[*rank] = false);
        if !in_pieces {
            self.hearsay.iter().for_each(|rank| there[*rank] = true);
        }
        // How many are there before each place, around the ring twice.
        let mut before = vec![0_u32];
        for place in 0..2 * self.size {
            before.push(before[place] + u32::from(there[place % self.size]));
        }
        let is_empty = |from: usize, to: usize| before[from] == before[to];
        let reaches = |from: usize, to: usize| {
            let to = if to < from { to + self.size } else { to };
            // From either end, the longest step that does not pass the other.
            let step = 1 << (to - from).ilog2();
            is_empty(from + step, to) || is_empty(from + 1, to - step + 1)
        };
        let near = |rank: &usize| reaches(self.me, *rank) || reaches(*rank, self.me);
        let near: Vec<usize> = self.hearsay.iter().copied().filter(near).collect();
        self.hearsay.retain(|rank| !near.contains(rank));
        near
    }

    /// The ranks of the graph to which no edge leads from here any more, and who is on this side.
    pub(crate) fn unreachable(&mut self) -> Option<(Vec<usize>, Vec<bool>)> {
        if !std::mem::take(&mut self.stirred) {
            return None;
        }
        let of = |(by, rank): &&(usize, usize)| self.is_in(*by) && self.is_in(*rank);
        let live = self.lost.keys().filter(of).count();
        // Cutting a whole graph takes as many edges as a rank has.
        let least = if self.outs == 0 { self.around(self.me).len() } else { 1 };
        if live < least {
            return None;
        }
        let mut here = vec![false; self.size];
        if live > 2 * least.max(NEAR) {
            return self.across_the_graph(here);
        }
        let alone = |rank: usize| self.edges(rank).is_empty();
        let ends = self.lost.keys().filter(of).flat_map(|(a, b)| [*a, *b]).filter(|r| *r != self.me);
        let single: BTreeSet<usize> = ends.collect();
        let single: Vec<usize> = single.into_iter().filter(|r| alone(*r)).collect();
        if !single.is_empty() && !alone(self.me) {
            (0..self.size).for_each(|r| here[r] = self.is_in(r) && !single.contains(&r));
            return Some((single, here));
        }
        self.across_the_graph(here)
    }

    /// Find the same by a walk over the whole graph. The graph is kept for the next time, unless ranks end meanwhile.
    fn across_the_graph(&mut self, mut here: Vec<bool>) -> Option<(Vec<usize>, Vec<bool>)> {
        if self.graph.is_none() {
            let all = (0..self.size).map(|r| if self.is_in(r) { self.around(r) } else { Vec::new() });
            self.graph = Some(Graph::new(all));
        }
        let Some(graph) = &self.graph else { return None };
        let mut hurt = vec![false; self.size];
        self.lost.keys().flat_map(|(a, b)| [*a, *b]).for_each(|r| hurt[r] = true);
        let mut next = vec![self.me];
        here[self.me] = true;
        while let Some(rank) = next.pop() {
            let own = self.connected.iter().filter(|_| rank == self.me);
            for one in graph.of(rank).chain(own.copied()).filter(|one| self.is_in(*one)) {
                if !(here[one] || hurt[rank] && hurt[one] && self.is_gone(rank, one)) {
                    here[one] = true;
                    next.push(one);
                }
            }
        }
        let gone: Vec<usize> = (0..self.size).filter(|r| self.is_in(*r) && !here[*r]).collect();
        (!gone.is_empty()).then_some((gone, here))
    }
}

#[cfg(test)]
mod tests;
