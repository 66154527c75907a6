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
pub(crate) fn can_be_told(members: &[usize]) -> bool {
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

impl Writer {
    /// Appends a message about the group that follows one.
    pub(crate) fn reform(&mut self, message: &Message) {
        match message {
            Message::Call { missing } => {
                self.u8(1);
                self.ranks(missing);
            }
            Message::Ready { asking, terms, promised, accepted } => {
                self.u8(2);
                self.u32(*asking);
                self.u32(terms.fewest as u32);
                self.u8(u8::from(terms.rule == Rule::Store));
                self.ballot(*promised);
                self.vote(accepted.as_ref());
            }
            Message::Form { ballot, plan } => {
                self.u8(3);
                self.ballot(*ballot);
                self.plan(plan);
            }
            Message::Formed { ballot, fault, accepted } => {
                self.u8(4);
                self.ballot(*ballot);
                self.u8(u8::from(fault.is_some()));
                fault.iter().for_each(|words| self.text(words));
                self.vote(accepted.as_ref());
            }
            Message::Behind { promised } => {
                self.u8(5);
                self.ballot(*promised);
            }
            Message::Accept { ballot, plan } => {
                self.u8(6);
                self.ballot(*ballot);
                self.plan(plan);
            }
            Message::Accepted { ballot } => {
                self.u8(7);
                self.ballot(*ballot);
            }
            Message::Decided { plan } => {
                self.u8(8);
                self.plan(plan);
            }
            Message::Refused { asking, why } => {
                self.u8(9);
                self.u32(*asking);
                self.refusal(why);
            }
            Message::Left => self.u8(10),
            Message::Withdraw => self.u8(11),
        }
    }

    fn ballot(&mut self, Ballot { round, by }: Ballot) {
        self.u32(round);
        self.u32(by);
    }

    fn vote(&mut self, vote: Option<&(Ballot, Plan)>) {
        self.u8(u8::from(vote.is_some()));
        if let Some((ballot, plan)) = vote {
            self.ballot(*ballot);
            self.plan(plan);
        }
    }

    fn plan(&mut self, plan: &Plan) {
        let all = stretches(&plan.members);
        self.u16(all.len().min(MAX_STRETCHES) as u16);
        for (first, n) in all.into_iter().take(MAX_STRETCHES) {
            self.u32(first as u32);
            self.u32(n as u32);
        }
        self.u16(plan.left.len() as u16);
        for (member, why) in &plan.left {
            self.u32(*member as u32);
            self.text(why);
        }
        let extra = plan.extra.get(..plan.extra.len().min(MAX_EXTRA)).unwrap_or_default();
        self.u16(extra.len() as u16);
        self.0.extend(extra);
    }

    fn refusal(&mut self, why: &Refusal) {
        match why {
            Refusal::Few { here, fewest } => {
                self.u8(1);
                self.ranks(here);
                self.u32(*fewest as u32);
            }
            Refusal::Minority { here } => {
                self.u8(2);
                self.ranks(here);
            }
            Refusal::Terms { member } => {
                self.u8(3);
                self.u32(*member as u32);
            }
            Refusal::Late { by, missing } => {
                self.u8(4);
                self.u32(*by as u32);
                self.ranks(missing);
            }
            Refusal::Fault { member, words } => {
                self.u8(5);
                self.u32(*member as u32);
                self.text(words);
            }
        }
    }
}

impl Reader<'_> {
    /// Takes a message about the group that follows one.
    pub(crate) fn reform(&mut self) -> Result<Message, Malformed> {
        Ok(match self.u8()? {
            1 => Message::Call { missing: self.ranks()? },
            2 => {
                let asking = self.u32()?;
                let fewest = self.u32()? as usize;
                let rule = if self.flag()? { Rule::Store } else { Rule::Majority };
                Message::Ready {
                    asking,
                    terms: Terms { fewest, rule },
                    promised: self.ballot()?,
                    accepted: self.vote()?,
                }
            }
            3 => Message::Form { ballot: self.ballot()?, plan: self.plan()? },
            4 => {
                let ballot = self.ballot()?;
                let fault = if self.flag()? { Some(self.text()?) } else { None };
                Message::Formed { ballot, fault, accepted: self.vote()? }
            }
            5 => Message::Behind { promised: self.ballot()? },
            6 => Message::Accept { ballot: self.ballot()?, plan: self.plan()? },
            7 => Message::Accepted { ballot: self.ballot()? },
            8 => Message::Decided { plan: self.plan()? },
            9 => Message::Refused { asking: self.u32()?, why: self.refusal()? },
            10 => Message::Left,
            11 => Message::Withdraw,
            _ => return Err(Malformed),
        })
    }

    fn ballot(&mut self) -> Result<Ballot, Malformed> {
        Ok(Ballot { round: self.u32()?, by: self.u32()? })
    }

    fn vote(&mut self) -> Result<Option<(Ballot, Plan)>, Malformed> {
        Ok(if self.flag()? { Some((self.ballot()?, self.plan()?)) } else { None })
    }

    fn plan(&mut self) -> Result<Plan, Malformed> {
        let mut members = Vec::new();
        let mut end = None;
        let n = self.u16()?;
        if usize::from(n) > MAX_STRETCHES {
            return Err(Malformed);
        }
        for _ in 0..n {
            let first = self.u32()? as usize;
            let n = self.u32()? as usize;
            // In order, none twice, with a gap between two stretches, and no more than a job has.
            if end.is_some_and(|end| first <= end) || n == 0 || first > MAX_SIZE || n > MAX_SIZE - first {
                return Err(Malformed);
            }
            members.extend(first..first + n);
            end = Some(first + n);
        }
        let mut left = Vec::new();
        for _ in 0..self.u16()? {
            left.push((self.u32()? as usize, self.text()?));
        }
        let extra = self.slice(MAX_EXTRA)?.to_vec();
        Ok(Plan { members, left, extra })
    }

    fn refusal(&mut self) -> Result<Refusal, Malformed> {
        Ok(match self.u8()? {
            1 => Refusal::Few { here: self.ranks()?, fewest: self.u32()? as usize },
            2 => Refusal::Minority { here: self.ranks()? },
            3 => Refusal::Terms { member: self.u32()? as usize },
            4 => Refusal::Late { by: self.u32()? as usize, missing: self.ranks()? },
            5 => Refusal::Fault { member: self.u32()? as usize, words: self.text()? },
            _ => return Err(Malformed),
        })
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
            Message::Ready { asking: 1, terms, promised: ballot, accepted: Some((ballot, plan.clone())) },
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
            w.reform(&message);
            let mut r = Reader(&w.0);
            assert_eq!(r.reform(), Ok(message.clone()));
            assert!(r.0.is_empty(), "{message:?}");
            for n in 0..w.0.len() {
                assert!(Reader(&w.0[..n]).reform().is_err(), "{message:?} cut at {n}");
            }
        }
        // Members twice, or more than a job has.
        for (first, n) in [(0u32, 0u32), (u32::MAX, 1), (1, u32::MAX)] {
            let mut w = Writer(vec![8, 0, 1]);
            w.u32(first);
            w.u32(n);
            w.0.extend([0; 4]);
            assert_eq!(Reader(&w.0).reform(), Err(Malformed));
        }
    }
}
