//! The agreement step by step.

use super::*;

fn begin(reform: &mut Reform, fewest: usize) {
    let now = Instant::now();
    let terms = Terms { fewest, ..Terms::default() };
    reform.begin(terms, now + Duration::from_secs(5), now);
}

/// Have members that are there agree; the result of each.
fn agree(members: &mut [Reform], store: &mut Option<Voter>) -> Vec<ReformAction> {
    let size = members.len();
    let mut ends = Vec::new();
    loop {
        let mut quiet = true;
        for me in 0..size {
            for action in members[me].actions() {
                quiet = false;
                let now = Instant::now();
                match action {
                    ReformAction::Send { to, message } if to == size => {
                        if let Some(answer) = store.as_mut().and_then(|s| s.answer(message)) {
                            members[me].hear(size, answer, now);
                        }
                    }
                    ReformAction::Send { to, message } => members[to].hear(me, message, now),
                    ReformAction::Draft { members: m } => members[me].draft(&m, vec![7], now),
                    ReformAction::Form { plan } => members[me].formed(&plan, None, now),
                    ReformAction::Abandon { .. } => {}
                    end => ends.push(end),
                }
            }
        }
        if quiet {
            return ends;
        }
    }
}

fn all(size: usize, dead: &[usize], store: bool) -> Vec<Reform> {
    let mut members: Vec<_> = (0..size).map(|me| Reform::new(me, size, store)).collect();
    let now = Instant::now();
    members.iter_mut().for_each(|m| dead.iter().for_each(|d| m.gone(*d, "died", now)));
    members
}

#[test]
fn survivors_get_one_plan() {
    let mut members = all(4, &[1], false);
    [0, 2, 3].iter().for_each(|m| begin(&mut members[*m], 1));
    let ends = agree(&mut members, &mut None);
    let plan = Plan { members: vec![0, 2, 3], left: vec![(1, "died".into())], extra: vec![7] };
    assert_eq!(ends, vec![ReformAction::Done { plan }; 3]);
}

#[test]
fn of_two_halves_the_one_with_the_store_goes_on() {
    // The first member has the store's voice where none outlives it.
    for (dead, store, goes_on) in [([1], false, true), ([0], false, false), ([0], true, true)] {
        let mut members = all(2, &dead, store);
        begin(&mut members[1 - dead[0]], 1);
        let ends = agree(&mut members, &mut store.then(Voter::default));
        assert_eq!(matches!(ends[..], [ReformAction::Done { .. }]), goes_on, "{dead:?} {store}: {ends:?}");
    }
}

#[test]
fn fewer_than_asked_for_are_refused() {
    let mut members = all(4, &[3], false);
    (0..3).for_each(|m| begin(&mut members[m], 4));
    let why = Refusal::Few { here: vec![0, 1, 2], fewest: 4 };
    assert_eq!(agree(&mut members, &mut None), vec![ReformAction::Refused { why }; 3]);
    // They may ask again for fewer.
    (0..3).for_each(|m| begin(&mut members[m], 3));
    assert_eq!(agree(&mut members, &mut None).len(), 3);
    assert!(members[2].decided().is_some());
}

/// A member answers each call of the roll, so its first request may be heard once more after its refusal.
#[test]
fn a_request_that_was_refused_is_none_of_the_next_roll() {
    let mut members = all(2, &[], false);
    let now = Instant::now();
    (0..2).for_each(|m| begin(&mut members[m], 3));
    let late = members[1].ready(Terms { fewest: 3, ..Terms::default() });
    assert_eq!(agree(&mut members, &mut None).len(), 2);
    (0..2).for_each(|m| begin(&mut members[m], 2));
    members[0].hear(1, late, now);
    let ends = agree(&mut members, &mut None);
    assert!(ends.len() == 2 && ends.iter().all(|e| matches!(e, ReformAction::Done { .. })), "{ends:?}");
}

#[test]
fn a_member_with_other_terms_is_named() {
    let mut members = all(3, &[], false);
    (0..3).for_each(|m| begin(&mut members[m], m.max(1)));
    let why = Refusal::Terms { member: 2 };
    assert_eq!(agree(&mut members, &mut None), vec![ReformAction::Refused { why }; 3]);
}

/// Its part would wait for that member.
#[test]
fn a_plan_is_given_up_while_its_part_is_made_when_a_member_is_gone() {
    let mut members = all(3, &[], false);
    let now = Instant::now();
    (0..3).for_each(|m| begin(&mut members[m], 1));
    let plan = Plan { members: vec![0, 1, 2], left: Vec::new(), extra: vec![7] };
    let form = Message::Form { ballot: Ballot { round: 1, by: 0 }, plan: plan.clone() };
    members[1].hear(0, form, now);
    assert!(members[1].actions().contains(&ReformAction::Form { plan: plan.clone() }));
    members[1].gone(2, "died", now);
    assert!(members[1].actions().contains(&ReformAction::Abandon { plan: plan.clone() }));
    // Made, it stands: whoever has voted for it may be gone, too.
    members[1].formed(&plan, None, now);
    members[1].gone(0, "died", now);
    assert!(!members[1].actions().contains(&ReformAction::Abandon { plan }));
}

#[test]
fn who_does_not_come_is_named_by_all() {
    let mut members = all(3, &[], false);
    [0, 1].iter().for_each(|m| begin(&mut members[*m], 1));
    assert_eq!(agree(&mut members, &mut None), []);
    members[0].tick(Instant::now() + Duration::from_secs(6));
    let why = Refusal::Late { by: 0, missing: vec![2] };
    assert_eq!(agree(&mut members, &mut None), vec![ReformAction::Refused { why }; 2]);
}
