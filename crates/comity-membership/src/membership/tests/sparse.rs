//! A large job whose ranks exchange notes in one thread: what reaches whom, while they meet and afterwards.

use super::*;
use crate::{Heard, overlay_neighbours};
use std::collections::{BTreeSet, VecDeque};

type SparseRank = Membership<SimulatedFailure>;

/// Ranks, and what is on its way between them: from, to, and what.
struct SparseJob {
    ranks: Vec<SparseRank>,
    wire: VecDeque<(usize, usize, Note<SimulatedFailure>)>,
    /// Actions of each besides telling others.
    done: Vec<Vec<Action<SimulatedFailure>>>,
    now: Instant,
}

impl SparseJob {
    fn new(size: usize) -> Self {
        let ranks = (0..size).map(|r| Membership::sparse(r, size, Some(LIMIT))).collect();
        Self { ranks, wire: VecDeque::new(), done: vec![Vec::new(); size], now: Instant::now() }
    }

    /// Make a job whose ranks have all met.
    fn met(size: usize) -> Self {
        let mut job = Self::new(size);
        for a in 0..size {
            overlay_neighbours(a, size).into_iter().filter(|b| *b < a).for_each(|b| job.connect(a, b));
        }
        job.run();
        job
    }

    fn connect(&mut self, a: usize, b: usize) {
        let now = self.now;
        assert!(self.ranks[a].attach(b, now) && self.ranks[b].attach(a, now));
        self.perform(a);
        self.perform(b);
    }

    fn perform(&mut self, rank: usize) {
        for action in self.ranks[rank].actions() {
            match action {
                Action::Tell { to, note } => {
                    for to in to {
                        assert!(self.ranks[rank].is_connected(to), "{rank} tells {to}");
                        self.wire.push_back((rank, to, note.clone()));
                    }
                }
                action => self.done[rank].push(action),
            }
        }
    }

    /// Until nothing is on its way.
    fn run(&mut self) {
        self.run_where(|_, _| true);
    }

    /// Until nothing is on its way but what goes from one rank to another over a connection that carries nothing now.
    fn run_where(&mut self, carries: impl Fn(usize, usize) -> bool) {
        let mut held = VecDeque::new();
        while let Some((from, to, note)) = self.wire.pop_front() {
            if !carries(from, to) {
                held.push_back((from, to, note));
                continue;
            }
            self.ranks[to].hear(vec![(from, Heard::Note(note))], self.now);
            self.perform(to);
        }
        self.wire = held;
    }

    /// The connection of `one` to `rank` ends without a goodbye.
    fn loses(&mut self, one: usize, rank: usize) {
        self.ranks[one].hear(vec![(rank, Heard::End(DIED))], self.now);
        self.perform(one);
    }

    /// Culprit and witness of a group's failure, as `rank` knows it.
    fn failed(&self, rank: usize, id: u64) -> Option<(usize, usize)> {
        self.done[rank].iter().find_map(|action| match action {
            Action::Fail { group_id, failure } if *group_id == id => Some((failure.culprit, failure.by)),
            _ => None,
        })
    }

    fn enter_all(&mut self) {
        let size = self.ranks.len();
        let all: Vec<usize> = (0..size).collect();
        for rank in 0..size {
            assert!(self.ranks[rank].enter(1, &all, rank));
            self.perform(rank);
        }
    }

    /// The members that have said this to a rank.
    fn said(&self, rank: usize, is: impl Fn(&Note<SimulatedFailure>) -> bool) -> Vec<usize> {
        let of = |action: &Action<SimulatedFailure>| match action {
            Action::Said { member, note, .. } if is(note) => Some(*member),
            _ => None,
        };
        let mut all: Vec<usize> = self.done[rank].iter().filter_map(of).collect();
        all.sort_unstable();
        all
    }
}

/// A rank opens the group as soon as its own neighbours are connected; others are not yet.
#[test]
fn all_hear_that_all_have_opened_a_group_while_some_still_connect() {
    for (size, seed) in [(9, 1), (40, 2), (70, 3), (100, 4)] {
        let mut job = SparseJob::new(size);
        let everyone: Vec<usize> = (0..size).collect();
        let mut pairs: Vec<(usize, usize)> = everyone
            .iter()
            .flat_map(|a| overlay_neighbours(*a, size).into_iter().filter(|b| b < a).map(|b| (*a, b)))
            .collect();
        let mut state: u64 = seed;
        for i in (1..pairs.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            pairs.swap(i, (state >> 33) as usize % (i + 1));
        }
        let mut opened = BTreeSet::new();
        for (a, b) in pairs {
            job.connect(a, b);
            for rank in [a, b] {
                if job.ranks[rank].absent() == Ok(Vec::new()) && opened.insert(rank) {
                    job.ranks[rank].enter(1, &everyone, rank);
                    job.ranks[rank].say(&everyone, Note::Entered { group_id: 1 });
                    job.perform(rank);
                }
            }
            job.run();
        }
        for rank in 0..size {
            let entered = job.said(rank, |note| matches!(note, Note::Entered { .. }));
            let others: Vec<usize> = everyone.iter().copied().filter(|r| *r != rank).collect();
            assert_eq!(entered, others, "{size} ranks, rank {rank}");
        }
    }
}

#[test]
fn what_is_for_some_reaches_them_and_nobody_else() {
    let size = 100;
    let mut job = SparseJob::met(size);
    job.enter_all();
    let others: Vec<usize> = (1..size).collect();
    job.ranks[0].say(&others, Note::Census { group_id: 1, at: 7, digest: 8 });
    job.ranks[0].say(&[43], Note::Connect { group_id: 1 });
    job.ranks[0].say(&[3, 50], Note::Waits { group_id: 1, call: 9 });
    job.perform(0);
    job.run();
    for rank in 1..size {
        let census = job.said(rank, |note| matches!(note, Note::Census { at: 7, .. }));
        let connect = job.said(rank, |note| matches!(note, Note::Connect { .. }));
        let waits = job.said(rank, |note| matches!(note, Note::Waits { .. }));
        for (said, is_for) in [(census, true), (connect, rank == 43), (waits, [3, 50].contains(&rank))] {
            assert_eq!(said, if is_for { vec![0] } else { vec![] }, "{rank}");
        }
        job.ranks[rank].say(&[0], Note::Reached { group_id: 1, reached: rank as u64 });
        job.perform(rank);
    }
    job.run();
    let reached =
        |note: &Note<_>, by: usize| matches!(note, Note::Reached { reached, .. } if *reached == by as u64);
    let answers = (1..size).filter(|by| job.said(0, |note| reached(note, *by)) == [*by]);
    assert!(answers.eq(others));
}

#[test]
fn a_broken_connection_is_no_death_for_those_that_did_not_share_it() {
    let size = 70;
    let mut job = SparseJob::met(size);
    job.enter_all();
    for (rank, mine) in [(5, 0), (20, 1)] {
        job.ranks[rank].enter(2, &[5, 20], mine);
        job.perform(rank);
    }
    // Rank 5 and its neighbour 6 lose each other: the group that has both fails, on all. That of 5 and 20 does not.
    job.loses(5, 6);
    job.loses(6, 5);
    job.run();
    assert!((0..size).all(|r| [Some((5, 6)), Some((6, 5))].contains(&job.failed(r, 1))));
    assert_eq!((job.failed(5, 2), job.failed(20, 2)), (None, None));
    // All neighbours of 5 lose it: so has it died, also for 20, which is none.
    for one in overlay_neighbours(5, size).into_iter().filter(|r| *r != 6) {
        job.loses(one, 5);
    }
    job.run_where(|_, to| to != 5);
    assert_eq!(job.failed(20, 2), Some((0, 1)));
}

/// Rank 12 closes the graph over 4 before it has heard all that is lost of 5, so for it others watch 5 in the place of 4. The others found
/// 5 lost first, and connect to it no more: only their word that no way leads there ends the wait of 12.
#[test]
fn who_heard_first_of_an_end_in_good_order_learns_of_the_death_before_it() {
    let mut job = SparseJob::met(100);
    for (rank, mine) in [(5, 0), (12, 1)] {
        job.ranks[rank].enter(2, &[5, 12], mine);
        job.perform(rank);
    }
    // Only what 4 says itself comes to 12 in time, and nothing comes to 4, which is about to end.
    let carries = |from, to| to != 5 && to != 4 && (to != 12 || from == 4);
    for one in overlay_neighbours(5, 100) {
        job.loses(one, 5);
    }
    job.run_where(carries);
    job.ranks[4].end("", &[]);
    job.perform(4);
    job.run_where(carries);
    assert_eq!(job.failed(12, 2), None);
    job.run_where(|_, to| to != 5 && to != 4);
    assert_eq!(job.failed(12, 2), Some((0, 1)));
}
