//! Two binary trees at once, each with half of the buffer; a rank that passes on in one is a leaf of the other.
//!
//! ```text
//!   broadcast of 7 from 0:    left half:  0 ──> 4 ──> 2 ──> 1      right half:  0 ──> 3 ──> 5 ──> 6
//!                                         │     │     └───> 3                   │     │     └───> 4
//!                                         │     └───> 6 ──> 5                   │     └───> 1 ──> 2
//!   reduce: backwards
//! ```
//!
//! Cost per rank, n ranks, B bytes, k = log2 n rounded up: at most k + 1 rounds, B sent and B received. Elements travel on while more
//! arrive, so the time is that of B and of k first pieces: a chain's bytes in a tree's rounds. Source: P. Sanders, J. Speck, J. L. Träff,
//! "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
//!
//! The trees stand over the labels 1 to m = n-1, the distances from the root. In the first an odd label is a leaf, as each range of labels
//! is led by the one with most zeros at its end. The second is the first, mirrored where m is even and moved on by one where it is odd:
//! either turns odd labels into even ones, but for one that is a leaf of both.

use super::{Cuts, Definition, Order, PartLengths, Segment, Service, of_rounds};
use crate::{
    Slice,
    draft::{Draft, Team, even},
    model::Model,
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "double-tree",
    order: Order::ByHost,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::Broadcast,
            steps: |d, s| broadcast(d, s.team, s.root_at(), s.dst),
            seconds: |m| passed_on(m),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |e| e.count + 1,
        },
        Service {
            kind: Kind::Reduce,
            steps: reduce,
            seconds: |m| passed_on(m) + m.add(m.bytes),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |e| e.count + 1,
        },
    ],
};

/// Each level waits for the first pieces of the one above, two messages at a time; then all send at once.
fn passed_on(m: &Model<'_>) -> f64 {
    let first = m.bytes.min(65536.0);
    m.levels(m.n, |by| 2.0 * m.hop(by, first / 2.0)) + m.shift(m.bytes - first)
}

#[derive(Clone, Copy)]
enum Tree {
    First,
    Second,
}

/// A label's place in a tree; labels are those of the first.
struct Place {
    /// `None` for the label that leads all.
    parent: Option<usize>,
    children: Vec<usize>,
    /// 1 for the label that leads all.
    depth: u32,
}

/// The label from `lo` to before `hi` with most zeros at its end.
fn head(lo: usize, hi: usize) -> usize {
    let highest = |k: u32| (hi - 1) >> k << k;
    (0..usize::BITS - 1).rev().map(highest).find(|&l| l >= lo && l > 0).unwrap_or(lo)
}

fn place(label: usize, m: usize) -> Place {
    let mut lo = 1;
    let mut hi = m + 1;
    let mut parent = None;
    let mut depth = 1;
    loop {
        let at = head(lo, hi);
        if at == label {
            let ranges = [(lo, at), (at + 1, hi)];
            let children = ranges.into_iter().filter(|(a, b)| a < b).map(|(a, b)| head(a, b)).collect();
            return Place { parent, children, depth };
        }
        parent = Some(at);
        depth += 1;
        if label < at {
            hi = at;
        } else {
            lo = at + 1;
        }
    }
}

/// Returns the depth of a tree over 1 to `m`.
fn height(m: usize) -> u32 {
    m.checked_ilog2().map_or(0, |k| k + 1)
}

impl Tree {
    const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// From a distance to its label, and back: the second tree has its own numbers.
    fn label(self, distance: usize, m: usize) -> usize {
        match self {
            Self::First => distance,
            Self::Second if m.is_multiple_of(2) => m + 1 - distance,
            Self::Second => (distance + m - 2) % m + 1,
        }
    }

    fn distance(self, label: usize, m: usize) -> usize {
        match self {
            Self::First => label,
            Self::Second if m.is_multiple_of(2) => m + 1 - label,
            Self::Second => label % m + 1,
        }
    }
}

/// The half of a tree, and this rank's neighbours in it, as positions in the team.
struct View {
    half: (usize, usize),
    /// `None` at the root.
    parent: Option<usize>,
    children: Vec<usize>,
    depth: u32,
}

fn views(team: &Team, root: usize, len: usize) -> [View; 2] {
    let n = team.len();
    let m = team.len() - 1;
    let position = |distance: usize| (distance + root) % n;
    let far = (team.me + n - root) % n;
    let halves = even(len, 2);
    Tree::BOTH.map(|tree| {
        let half = halves[tree as usize];
        let at = |label: usize| position(tree.distance(label, m));
        if far == 0 {
            let children = if m == 0 { Vec::new() } else { vec![at(head(1, m + 1))] };
            return View { half, parent: None, children, depth: 0 };
        }
        let place = place(tree.label(far, m), m);
        let parent = Some(place.parent.map_or(root, at));
        View { half, parent, children: place.children.into_iter().map(at).collect(), depth: place.depth }
    })
}

fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    let first = d.round;
    for view in views(team, root, buf.len) {
        let half = buf.part(view.half);
        if let Some(parent) = view.parent {
            d.round = first + view.depth - 1;
            d.recv(team, parent, half);
        }
        d.round = first + view.depth;
        view.children.into_iter().for_each(|child| d.send(team, child, half));
    }
    d.round = first + height(team.len() - 1);
}

fn reduce(d: &mut Draft, s: &Segment<'_>) {
    let team = s.team;
    let first = d.round;
    let height = height(s.team.len() - 1);
    if team.len() == 1 {
        return d.copy(s.src, s.dst);
    }
    for view in views(team, s.root_at(), s.src.len) {
        let mut held = s.src.part(view.half);
        if !view.children.is_empty() {
            // Only the root's `Out` may be written; the others keep their sums in memory of their own.
            let sum = if s.is_root() { s.dst.part(view.half) } else { d.reserve(view.half.1) };
            let mut ranks: Vec<_> = view.children.iter().map(|&c| team.rank(c)).collect();
            ranks.push(team.rank(team.me));
            d.round = first + height - view.depth - 1;
            d.n_way_reduce(&Team::at(ranks, view.children.len()), held, sum, s.is_root());
            held = sum;
        }
        if let Some(parent) = view.parent {
            d.round = first + height - view.depth;
            d.send(team, parent, held);
        }
    }
    d.round = first + height;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_passes_on_in_one_tree_at_most_and_neither_is_deep() {
        for m in 1..=70 {
            let mut deepest = 0;
            for distance in 1..=m {
                let [a, b] = Tree::BOTH.map(|t| place(t.label(distance, m), m));
                assert!(a.children.is_empty() || b.children.is_empty(), "{distance} of {m}");
                assert!(Tree::BOTH.iter().all(|t| t.distance(t.label(distance, m), m) == distance));
                deepest = deepest.max(a.depth).max(b.depth);
            }
            assert!(deepest <= height(m), "{deepest} of {m}");
        }
    }
}
