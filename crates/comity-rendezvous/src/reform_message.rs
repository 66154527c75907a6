//! Messages of members that agree on a new group, as bytes: between two of them, and to the store, which votes.

use crate::{
    MAX_SIZE,
    channel::{Malformed, Reader, Writer},
};
use comity_membership::{Ballot, Message, Plan, Refusal, Rule, Terms};

/// The most stretches of ranks in a list.
const MAX_STRETCHES: usize = 2048;
/// The most bytes that the library adds to a plan.
const MAX_EXTRA: usize = 20 * 1024;

/// Returns true if a plan of these members can be told: they lie in few enough stretches.
pub fn can_be_told(members: &[usize]) -> bool {
    stretches(members).len() <= MAX_STRETCHES
}

/// Stretches of successive ranks: the first of each, and how many.
fn stretches(ranks: &[usize]) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match all.last_mut() {
            Some((first, n)) if *first + *n == *rank => *n += 1,
            _ => all.push((*rank, 1)),
        }
    }
    all
}

/// Appends a message about the group that follows one.
pub fn put_reform(w: &mut Writer, message: &Message) {
    match message {
        Message::Call { missing } => {
            w.u8(1);
            w.ranks(missing);
        }
        Message::Ready { asking, terms, promised, accepted, gone } => {
            w.u8(2);
            w.u32(*asking);
            w.u32(terms.fewest as u32);
            w.u8(u8::from(terms.rule == Rule::Store));
            put_ballot(w, *promised);
            put_vote(w, accepted.as_ref());
            w.ranks(gone);
        }
        Message::Form { ballot, plan } => {
            w.u8(3);
            put_ballot(w, *ballot);
            put_plan(w, plan);
        }
        Message::Formed { ballot, fault, accepted } => {
            w.u8(4);
            put_ballot(w, *ballot);
            w.u8(u8::from(fault.is_some()));
            fault.iter().for_each(|words| w.text(words));
            put_vote(w, accepted.as_ref());
        }
        Message::Behind { promised } => {
            w.u8(5);
            put_ballot(w, *promised);
        }
        Message::Accept { ballot, plan } => {
            w.u8(6);
            put_ballot(w, *ballot);
            put_plan(w, plan);
        }
        Message::Accepted { ballot } => {
            w.u8(7);
            put_ballot(w, *ballot);
        }
        Message::Decided { plan } => {
            w.u8(8);
            put_plan(w, plan);
        }
        Message::Refused { asking, why } => {
            w.u8(9);
            w.u32(*asking);
            put_refusal(w, why);
        }
        Message::Left => w.u8(10),
        Message::Withdraw => w.u8(11),
    }
}

fn put_ballot(w: &mut Writer, Ballot { round, by }: Ballot) {
    w.u32(round);
    w.u32(by);
}

fn put_vote(w: &mut Writer, vote: Option<&(Ballot, Plan)>) {
    w.u8(u8::from(vote.is_some()));
    if let Some((ballot, plan)) = vote {
        put_ballot(w, *ballot);
        put_plan(w, plan);
    }
}

fn put_plan(w: &mut Writer, plan: &Plan) {
    let all = stretches(&plan.members);
    w.u16(all.len().min(MAX_STRETCHES) as u16);
    for (first, n) in all.into_iter().take(MAX_STRETCHES) {
        w.u32(first as u32);
        w.u32(n as u32);
    }
    w.u16(plan.left.len() as u16);
    for (member, why) in &plan.left {
        w.u32(*member as u32);
        w.text(why);
    }
    let extra = plan.extra.get(..plan.extra.len().min(MAX_EXTRA)).unwrap_or_default();
    w.u16(extra.len() as u16);
    w.0.extend(extra);
}

fn put_refusal(w: &mut Writer, why: &Refusal) {
    match why {
        Refusal::Few { here, fewest } => {
            w.u8(1);
            w.ranks(here);
            w.u32(*fewest as u32);
        }
        Refusal::Minority { here } => {
            w.u8(2);
            w.ranks(here);
        }
        Refusal::Terms { member } => {
            w.u8(3);
            w.u32(*member as u32);
        }
        Refusal::Late { by, missing } => {
            w.u8(4);
            w.u32(*by as u32);
            w.ranks(missing);
        }
        Refusal::Fault { member, words } => {
            w.u8(5);
            w.u32(*member as u32);
            w.text(words);
        }
    }
}

/// Takes a message about the group that follows one.
pub fn take_reform(r: &mut Reader<'_>) -> Result<Message, Malformed> {
    Ok(match r.u8()? {
        1 => Message::Call { missing: r.ranks()? },
        2 => {
            let asking = r.u32()?;
            let fewest = r.u32()? as usize;
            let rule = if r.flag()? { Rule::Store } else { Rule::Majority };
            Message::Ready {
                asking,
                terms: Terms { fewest, rule },
                promised: take_ballot(r)?,
                accepted: take_vote(r)?,
                gone: r.ranks()?,
            }
        }
        3 => Message::Form { ballot: take_ballot(r)?, plan: take_plan(r)? },
        4 => {
            let ballot = take_ballot(r)?;
            let fault = if r.flag()? { Some(r.text()?) } else { None };
            Message::Formed { ballot, fault, accepted: take_vote(r)? }
        }
        5 => Message::Behind { promised: take_ballot(r)? },
        6 => Message::Accept { ballot: take_ballot(r)?, plan: take_plan(r)? },
        7 => Message::Accepted { ballot: take_ballot(r)? },
        8 => Message::Decided { plan: take_plan(r)? },
        9 => Message::Refused { asking: r.u32()?, why: take_refusal(r)? },
        10 => Message::Left,
        11 => Message::Withdraw,
        _ => return Err(Malformed),
    })
}

fn take_ballot(r: &mut Reader<'_>) -> Result<Ballot, Malformed> {
    Ok(Ballot { round: r.u32()?, by: r.u32()? })
}

fn take_vote(r: &mut Reader<'_>) -> Result<Option<(Ballot, Plan)>, Malformed> {
    Ok(if r.flag()? { Some((take_ballot(r)?, take_plan(r)?)) } else { None })
}

fn take_plan(r: &mut Reader<'_>) -> Result<Plan, Malformed> {
    let mut members = Vec::new();
    let mut end = None;
    let n = r.u16()?;
    if usize::from(n) > MAX_STRETCHES {
        return Err(Malformed);
    }
    for _ in 0..n {
        let first = r.u32()? as usize;
        let n = r.u32()? as usize;
        // In order, none twice, with a gap between two stretches, and no more than a job has.
        if end.is_some_and(|end| first <= end) || n == 0 || first > MAX_SIZE || n > MAX_SIZE - first {
            return Err(Malformed);
        }
        members.extend(first..first + n);
        end = Some(first + n);
    }
    let mut left = Vec::new();
    for _ in 0..r.u16()? {
        left.push((r.u32()? as usize, r.text()?));
    }
    let extra = r.slice(MAX_EXTRA)?.to_vec();
    Ok(Plan { members, left, extra })
}

fn take_refusal(r: &mut Reader<'_>) -> Result<Refusal, Malformed> {
    Ok(match r.u8()? {
        1 => Refusal::Few { here: r.ranks()?, fewest: r.u32()? as usize },
        2 => Refusal::Minority { here: r.ranks()? },
        3 => Refusal::Terms { member: r.u32()? as usize },
        4 => Refusal::Late { by: r.u32()? as usize, missing: r.ranks()? },
        5 => Refusal::Fault { member: r.u32()? as usize, words: r.text()? },
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went() {
        let ballot = Ballot { round: 3, by: 2 };
        let plan = Plan {
            members: vec![0, 1, 2, 5, 9],
            left: vec![(3, "died".into()), (4, String::new())],
            extra: vec![1, 2, 3],
        };
        let terms = Terms { fewest: 2, rule: Rule::Store };
        let refused = |why| Message::Refused { asking: 2, why };
        let all = [
            Message::Call { missing: vec![4] },
            Message::Ready {
                asking: 1,
                terms,
                promised: ballot,
                accepted: Some((ballot, plan.clone())),
                gone: vec![2],
            },
            Message::Form { ballot, plan: plan.clone() },
            Message::Formed { ballot, fault: Some("no".into()), accepted: None },
            Message::Behind { promised: ballot },
            Message::Accept { ballot, plan: plan.clone() },
            Message::Accepted { ballot },
            Message::Decided { plan },
            refused(Refusal::Few { here: vec![1], fewest: 2 }),
            refused(Refusal::Minority { here: vec![0, 1] }),
            refused(Refusal::Terms { member: 7 }),
            refused(Refusal::Late { by: 1, missing: vec![3] }),
            refused(Refusal::Fault { member: 1, words: "no".into() }),
            Message::Left,
            Message::Withdraw,
        ];
        for message in all {
            let mut w = Writer::default();
            put_reform(&mut w, &message);
            let mut r = Reader(&w.0);
            assert_eq!(take_reform(&mut r), Ok(message.clone()));
            assert!(r.0.is_empty(), "{message:?}");
            for n in 0..w.0.len() {
                assert!(take_reform(&mut Reader(&w.0[..n])).is_err(), "{message:?} cut at {n}");
            }
        }
        // Members twice, or more than a job has.
        for (first, n) in [(0u32, 0u32), (u32::MAX, 1), (1, u32::MAX)] {
            let mut w = Writer(vec![8, 0, 1]);
            w.u32(first);
            w.u32(n);
            w.0.extend([0; 4]);
            assert_eq!(take_reform(&mut Reader(&w.0)), Err(Malformed));
        }
    }
}
