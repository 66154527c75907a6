//! Messages of members that agree on a new group, as bytes: between two of them, and to the store, which votes.

use crate::{
    Field, MAX_SIZE,
    channel::{Malformed, Reader, Writer},
    fields,
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

fields!(Field: enum Message {
    1 Call { missing },
    2 Ready { asking, terms, promised, accepted, gone },
    3 Form { ballot, plan },
    4 Formed { ballot, fault, accepted },
    5 Behind { promised },
    6 Accept { ballot, plan },
    7 Accepted { ballot },
    8 Decided { plan },
    9 Refused { asking, why },
    10 Left,
    11 Withdraw,
});
fields!(Field: enum Refusal {
    1 Few { here, fewest },
    2 Minority { here },
    3 Terms { member },
    4 Late { by, missing },
    5 Fault { member, words },
});
fields!(Field: Terms { fewest, rule });
fields!(Field: Ballot { round, by });

impl Field for Rule {
    fn put(&self, w: &mut Writer) {
        (*self == Self::Store).put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if r.flag()? { Self::Store } else { Self::Majority })
    }
}

impl Field for Plan {
    fn put(&self, w: &mut Writer) {
        let all = stretches(&self.members);
        w.u16(all.len().min(MAX_STRETCHES) as u16);
        for (first, n) in all.into_iter().take(MAX_STRETCHES) {
            w.u32(first as u32);
            w.u32(n as u32);
        }
        w.u16(self.left.len() as u16);
        for (member, why) in &self.left {
            w.u32(*member as u32);
            w.text(why);
        }
        let extra = self.extra.get(..self.extra.len().min(MAX_EXTRA)).unwrap_or_default();
        w.u16(extra.len() as u16);
        w.0.extend(extra);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
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
        Ok(Self { members, left, extra })
    }
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
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            for n in 0..bytes.len() {
                assert!(Message::decode(&bytes[..n]).is_err(), "{message:?} cut at {n}");
            }
        }
        // Members twice, or more than a job has.
        for (first, n) in [(0u32, 0u32), (u32::MAX, 1), (1, u32::MAX)] {
            let mut w = Writer(vec![8, 0, 1]);
            w.u32(first);
            w.u32(n);
            w.0.extend([0; 4]);
            assert_eq!(Message::decode(&w.0), Err(Malformed));
        }
    }
}
