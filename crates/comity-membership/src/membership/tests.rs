//! Single decisions; the simulator has what follows from them.

mod sparse;

use super::*;
use crate::{
    DIED, Fault, Heard, RESENT,
    simulate::{SimulatedFailure, SimulatedReason},
};

const LIMIT: Duration = Duration::from_secs(5);

fn failure(culprit: usize, by: usize) -> SimulatedFailure {
    let why = if culprit == by { SimulatedReason::Reported } else { SimulatedReason::Lost };
    SimulatedFailure { culprit, by, cause: "lost its disk".into(), why }
}

fn abort(group_id: u64, f: &SimulatedFailure) -> Heard<SimulatedFailure> {
    Heard::Note(Note::Abort { group_id, failure: f.clone() })
}

/// Process 0 of `size`, connected to all, in group 1 of all.
fn met(size: usize, silence: Option<Duration>) -> (Membership<SimulatedFailure>, Instant) {
    let now = Instant::now();
    let mut m = Membership::new(0, size, silence);
    (1..size).for_each(|r| assert!(m.attach(r, now) && !m.attach(r, now)));
    assert!(m.enter(1, &(0..size).collect::<Vec<_>>(), 0) && !m.enter(1, &[0], 0));
    m.actions();
    (m, now)
}

/// Receivers of a note about a failure, and the failure that is taken over.
fn failed(m: &mut Membership<SimulatedFailure>) -> (Vec<usize>, Option<SimulatedFailure>) {
    let mut told = Vec::new();
    let mut found = None;
    for action in m.actions() {
        match action {
            Action::Tell { to, note: Note::Abort { .. } } => told.extend(to),
            Action::Fail { failure, .. } => found = Some(failure),
            _ => {}
        }
    }
    (told, found)
}

#[test]
fn the_witness_tells_all_and_the_others_only_whom_it_is_about() {
    let (mut m, now) = met(64, Some(LIMIT));
    m.abort(1, failure(3, 0));
    assert_eq!(failed(&mut m), ((1..64).collect(), Some(failure(3, 0))));
    m.abort(1, failure(4, 0));
    assert_eq!(failed(&mut m), (vec![], None));

    let (mut m, _) = met(64, Some(LIMIT));
    m.hear(vec![(7, abort(1, &failure(3, 7)))], now);
    assert_eq!(failed(&mut m), (vec![3], Some(failure(3, 7))));
}

#[test]
fn what_others_say_of_a_group_before_it_is_open_is_known() {
    let (mut m, now) = met(4, Some(LIMIT));
    m.hear(vec![(1, Heard::Note(Note::Leave { group_id: 2 })), (2, abort(1, &failure(3, 2)))], now);
    assert_eq!(m.early_abort(), None);
    m.hear(vec![(2, abort(2, &failure(3, 2)))], now);
    assert_eq!(
        m.early_abort(),
        Some(Fault { rank: 3, words: "lost its disk".into(), because_of: Vec::new() })
    );
}

#[test]
fn leaving_a_failed_group_says_why() {
    let (mut m, now) = met(4, Some(LIMIT));
    m.hear(vec![(2, abort(1, &failure(3, 2)))], now);
    m.actions();
    assert!(m.leave(1, true) && !m.leave(1, true) && m.is_closed(1));
    // 2 has said so itself, and 3 was told at once. Nobody is told that this rank left in good order.
    assert_eq!(failed(&mut m).0, [1]);

    let (mut m, now) = met(4, Some(LIMIT));
    m.hear(vec![(2, abort(1, &failure(3, 2)))], now);
    m.actions();
    m.end("", &[]);
    let notes = m.actions();
    assert!(
        matches!(&notes[..], [Action::Tell { to, note: Note::Abort { .. } }, Action::Tell { note: Note::Goodbye { .. }, .. }] if *to == [1]),
        "{notes:?}"
    );
    m.hear(vec![(1, Heard::End(DIED))], now);
    m.tick(now + LIMIT * RESENT, now + LIMIT * RESENT, 0);
    assert!(m.actions().is_empty() && m.next().is_none());
}

#[test]
fn who_was_given_up_blames_itself_also_in_groups_it_opens_later() {
    let (mut m, now) = met(3, Some(LIMIT));
    m.hear(vec![(2, Heard::End(DIED)), (2, Heard::Note(Note::GivenUp { silence: 5000 }))], now);
    let given_up = |f: Option<SimulatedFailure>| f.map(|f| (f.culprit, f.by, f.cause.contains("5.0 s")));
    assert_eq!(given_up(failed(&mut m).1), Some((0, 2, true)));
    m.enter(2, &[2, 0], 1);
    assert_eq!(given_up(failed(&mut m).1), Some((1, 0, true)));
    let Fault { rank, words, .. } = m.absent().unwrap_err();
    assert!(rank == 2 && words.contains("gave this process up after 5.0 s"), "{words}");
}

#[test]
fn what_no_member_can_say_is_not_believed() {
    let (mut m, now) = met(3, Some(LIMIT));
    m.hear(vec![(1, abort(1, &failure(3, 1))), (1, abort(1, &failure(2, 9)))], now);
    m.enter(2, &[0, 2], 0);
    m.hear(vec![(1, abort(2, &failure(1, 1)))], now);
    assert_eq!(failed(&mut m), (vec![], None));
}

#[test]
fn whoever_is_given_up_is_told_by_those_it_still_reaches() {
    let (mut m, now) = met(4, Some(LIMIT));
    m.hear(vec![(1, abort(1, &failure(3, 1)))], now);
    // 1 tells the others, but 3 may not hear it.
    assert_eq!(failed(&mut m), (vec![3], Some(failure(3, 1))));
}

#[test]
fn a_rank_that_hears_nobody_says_that_it_may_be_its_own_host() {
    let alone = |others: usize, heard: &[usize]| {
        let (mut m, now) = met(others + 1, Some(LIMIT));
        // They are judged from their first beats.
        m.hear((1..=others).map(|r| (r, Heard::Note(Note::Heartbeat { progress: 0 }))).collect(), now);
        let beat = |r: &usize| (*r, Heard::Note(Note::Heartbeat { progress: 0 }));
        // It has its turns all the time.
        for i in 0..=20 {
            let at = now + LIMIT * i / 20;
            if i == 15 {
                m.hear(heard.iter().map(beat).collect(), at);
            }
            m.tick(at, at, 0);
        }
        failed(&mut m).1.map(|f| f.cause.contains("perhaps it is this host"))
    };
    assert_eq!(alone(3, &[]), Some(true));
    assert_eq!(alone(3, &[2]), Some(false));
    // With one other only, nobody knows whose fault it is.
    assert_eq!(alone(1, &[]), Some(false));
}

#[test]
fn a_process_of_which_the_system_says_that_it_has_no_turn_is_given_another_limit() {
    let lost_after = |without_turn: Option<u32>| {
        let (mut m, now) = met(4, Some(LIMIT));
        let beat = |r: usize| (r, Heard::Note(Note::Heartbeat { progress: 0 }));
        m.hear((1..4).map(beat).collect(), now);
        (1..60).find(|i| {
            let at = now + LIMIT * *i / 20;
            m.hear(vec![beat(2), beat(3)], at);
            if without_turn == Some(*i) {
                m.has_no_turn(1, at);
            }
            m.tick(at, at, 0);
            failed(&mut m).1.is_some_and(|f| f.culprit == 1)
        })
    };
    let usual = lost_after(None).unwrap();
    assert_eq!(lost_after(Some(15)), Some(usual + 15));
}
