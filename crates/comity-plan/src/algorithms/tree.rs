//! Binomial trees.
//!
//! ```text
//!   broadcast of 8 from 0, by round:      0 ──0──> 4 ──1──> 6 ──2──> 7
//!                                         │        └──2──> 5
//!                                         ├──1──> 2 ──2──> 3                  reduce and gather: backwards
//!                                         └──2──> 1
//! ```
//!
//! Cost, n ranks, B bytes (all of the buffer), k = log2 n rounded up:
//! - broadcast, reduce: k rounds; B per edge, so at most kB sent by one rank.
//! - gather, scatter: k rounds; half of everything is sent by the busiest rank besides the root, in k messages.

use super::{Cuts, Definition, Order, PartLengths, Segment, Service, of_rounds};
use crate::{
    Slice,
    draft::{Draft, Parts, Team},
    model::Model,
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "tree",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::Reduce,
            steps: reduce_to_root,
            seconds: |m| m.levels(m.n, |by| m.hop(by, m.bytes) + m.add(m.bytes)),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |e| e.count,
        },
        Service {
            kind: Kind::Broadcast,
            steps: |d, s| broadcast(d, s.team, s.root_at(), s.dst),
            seconds: |m| m.levels(m.n, |by| m.hop(by, m.bytes)),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |e| rounds(e.n) as usize * e.count,
        },
        Service {
            kind: Kind::Gather,
            steps: |d, s| gather(d, s.team, s.root_at(), s.own_src, s.dst, &s.parts),
            seconds: parts_seconds,
            cuts: Cuts::Never,
            sends: |e| ((1 << rounds(e.n)) - 1).min(e.n) * e.count,
        },
        Service {
            kind: Kind::Scatter,
            steps: |d, s| scatter(d, s.team, s.root_at(), s.src, &s.parts, s.own_dst),
            seconds: parts_seconds,
            cuts: Cuts::Never,
            sends: |e| ((1 << rounds(e.n)) - 1).min(e.n) * e.count,
        },
    ],
};

/// Half of everything passes twice, copied once more.
fn parts_seconds(m: &Model<'_>) -> f64 {
    m.levels(m.n, |by| m.hop(by, by * m.bytes)) + m.within(1.0, m.n / 2.0 * m.bytes)
}

/// Only the root's `Out` may be written; the others keep their sums in memory of their own.
fn reduce_to_root(d: &mut Draft, s: &Segment<'_>) {
    let root = s.root_at();
    let keep = s.is_root() || is_leaf(s.team, root);
    let sum = if keep { s.dst } else { d.reserve(s.src.len) };
    reduce(d, s.team, root, s.src, sum);
}

/// The tree seen from one position: numbers are distances from the root, around the team.
struct Branch {
    n: usize,
    root: usize,
    v: usize,
    rounds: u32,
}

impl Branch {
    fn new(team: &Team, root: usize) -> Self {
        let n = team.len();
        Self { n, root, v: (team.me + n - root) % n, rounds: rounds(n) }
    }

    /// The bit that leads to the parent; for the root one above all.
    fn bit(&self) -> u32 {
        if self.v == 0 { self.rounds } else { self.v.trailing_zeros() }
    }

    fn position(&self, v: usize) -> usize {
        (v + self.root) % self.n
    }

    fn parent(&self) -> usize {
        self.position(self.v - (1 << self.bit()))
    }

    /// Bits of the children, nearest first, with their numbers.
    fn children(&self) -> impl DoubleEndedIterator<Item = (u32, usize)> + use<> {
        let v = self.v;
        let n = self.n;
        (0..self.bit()).map(move |b| (b, v + (1 << b))).filter(move |&(_, c)| c < n)
    }

    /// The numbers below and with child `c` at `bit`.
    fn below(&self, bit: u32, c: usize) -> std::ops::Range<usize> {
        c..(c + (1 << bit)).min(self.n)
    }
}

/// Partial sums go to `sum`; at the root that is where the result belongs.
pub(super) fn reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, sum: Slice) {
    let tree = Branch::new(team, root);
    let first = d.round;
    let mut held = src;
    let last = tree.children().last();
    for child in tree.children() {
        d.round = first + child.0;
        d.reduce(team, tree.position(child.1), held, sum, tree.v == 0 && Some(child) == last);
        held = sum;
    }
    if tree.v == 0 {
        d.copy(held, sum);
    } else {
        d.round = first + tree.bit();
        d.send(team, tree.parent(), held);
    }
    d.round = first + tree.rounds;
}

pub(super) fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    let tree = Branch::new(team, root);
    let first = d.round;
    let when = |bit: u32| first + tree.rounds - 1 - bit;
    if tree.v > 0 {
        d.round = when(tree.bit());
        d.recv(team, tree.parent(), buf);
    }
    for (bit, child) in tree.children().rev() {
        d.round = when(bit);
        d.send(team, tree.position(child), buf);
    }
    d.round = first + tree.rounds;
}

/// Returns the number of rounds of [`reduce`] and [`broadcast`] on `n` ranks.
pub(super) fn rounds(n: usize) -> u32 {
    n.next_power_of_two().ilog2()
}

/// Returns true if this position has no children in the tree of `root`, and so never sums.
pub(super) fn is_leaf(team: &Team, root: usize) -> bool {
    Branch::new(team, root).children().next().is_none()
}

/// Returns the slices below a child, in the order of numbers, as this position keeps them: one slice of `mine` elsewhere,
/// at the root the places in the caller's buffer, which wrap at most once.
fn pieces(
    tree: &Branch,
    at: &[usize],
    parts: &Parts,
    whole: Slice,
    mine: Slice,
    v: std::ops::Range<usize>,
) -> Vec<Slice> {
    if tree.v > 0 {
        return vec![mine.part((at[v.start] - at[tree.v], at[v.end] - at[v.start]))];
    }
    let wrap = (tree.n - tree.root).clamp(v.start, v.end);
    let place = |from: usize, to: usize| {
        let start = if from < to { parts[tree.position(from)].0 } else { 0 };
        whole.part((start, at[to] - at[from]))
    };
    vec![place(v.start, wrap), place(wrap, v.end)]
}

/// The same two messages that the root sees, from the child's side.
fn halves(tree: &Branch, at: &[usize], mine: Slice, end: usize) -> Vec<Slice> {
    let len = at[end] - at[tree.v];
    if tree.v != 1 << tree.bit() {
        return vec![mine.part((0, len))];
    }
    let wrap = (tree.n - tree.root).clamp(tree.v, end);
    let head = at[wrap] - at[tree.v];
    vec![mine.part((0, head)), mine.part((head, len - head))]
}

/// Returns the start of each number's part when all lie in the order of numbers.
fn starts(tree: &Branch, parts: &Parts) -> Vec<usize> {
    let mut at = vec![0];
    (0..tree.n).for_each(|v| at.push(at[v] + parts[tree.position(v)].1));
    at
}

fn gather(d: &mut Draft, team: &Team, root: usize, own: Slice, out: Slice, parts: &Parts) {
    let tree = Branch::new(team, root);
    let at = starts(&tree, parts);
    let first = d.round;
    let end = (tree.v + (1 << tree.bit())).min(tree.n);
    let leaf = end == tree.v + 1;
    let mine = if tree.v == 0 || leaf { own } else { d.reserve(at[end] - at[tree.v]) };
    match tree.v {
        0 => d.copy(own, out.part(parts[root])),
        _ => d.copy(own, mine.part((0, own.len))),
    }
    for (bit, child) in tree.children() {
        d.round = first + bit;
        for piece in pieces(&tree, &at, parts, out, mine, tree.below(bit, child)) {
            d.recv(team, tree.position(child), piece);
        }
    }
    if tree.v > 0 {
        d.round = first + tree.bit();
        halves(&tree, &at, mine, end).into_iter().for_each(|half| d.send(team, tree.parent(), half));
    }
    d.round = first + tree.rounds;
}

fn scatter(d: &mut Draft, team: &Team, root: usize, src: Slice, parts: &Parts, own: Slice) {
    let tree = Branch::new(team, root);
    let at = starts(&tree, parts);
    let first = d.round;
    let when = |bit: u32| first + tree.rounds - 1 - bit;
    let end = (tree.v + (1 << tree.bit())).min(tree.n);
    let leaf = end == tree.v + 1;
    let mine = if tree.v == 0 || leaf { own } else { d.reserve(at[end] - at[tree.v]) };
    if tree.v > 0 {
        d.round = when(tree.bit());
        halves(&tree, &at, mine, end).into_iter().for_each(|half| d.recv(team, tree.parent(), half));
    }
    for (bit, child) in tree.children().rev() {
        d.round = when(bit);
        for piece in pieces(&tree, &at, parts, src, mine, tree.below(bit, child)) {
            d.send(team, tree.position(child), piece);
        }
    }
    match tree.v {
        0 => d.copy(src.part(parts[root]), own),
        _ => d.copy(mine.part((0, own.len)), own),
    }
    d.round = first + tree.rounds;
}
