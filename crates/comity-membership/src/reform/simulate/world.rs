//! Members, their messages and time, none of them real, around the true [`Reform`].

use super::{
    mutant::Mutant,
    scenario::{Fault, MS, SECOND, Scenario},
};
use crate::{Ballot, Message, Plan, Reform, ReformAction, Terms, Voter, reform::message::Votes};
use scope::{Agenda, Rng};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::{Duration, Instant},
};

/// Event of a run.
#[derive(Clone, Debug)]
enum Event {
    Strike(Fault),
    Begin(usize),
    Deliver {
        from: usize,
        to: usize,
        message: Message,
    },
    /// `member` learns that `of` is gone.
    Gone {
        member: usize,
        of: usize,
    },
    /// `member` hears that `of` has made its part of a plan. Each member hears that of each other one: they share the plan.
    Entered {
        member: usize,
        of: usize,
        plan: Rc<Plan>,
    },
    /// `member` has made its part, and waits for no other one's.
    Stands {
        member: usize,
        plan: Rc<Plan>,
    },
    Draft {
        member: usize,
        members: Vec<usize>,
    },
    /// `member` learns that a part cannot be made.
    Fault {
        member: usize,
        plan: Rc<Plan>,
    },
    StoreGone {
        member: usize,
    },
    Tick(usize),
}

/// Member of the group.
#[derive(Debug)]
struct Member {
    reform: Reform,
    runs: bool,
    stopped: u64,
    sends: Option<u32>,
    /// Those it takes for dead: nothing is exchanged with them.
    gone: BTreeSet<usize>,
    has_left: bool,
    lacks: bool,
    /// The plan whose part it makes.
    making: Option<Rc<Plan>>,
    /// By plan: those whose parts it knows of.
    entered: Vec<(Rc<Plan>, BTreeSet<usize>)>,
    made: Vec<Rc<Plan>>,
    asked: Option<u64>,
    answered: Option<u64>,
    done: Option<Plan>,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    mutant: Option<Mutant>,
    rng: Rng,
    start: Instant,
    now: u64,
    members: Vec<Member>,
    store: Option<Voter>,
    events: Agenda<Event>,
    /// When the last message of a pair arrives.
    last: BTreeMap<(usize, usize), u64>,
    cut: Option<(Vec<bool>, u64)>,
    decided: Option<Plan>,
    /// Plans that were seen, each once.
    plans: Vec<Rc<Plan>>,
    votes: BTreeMap<Ballot, BTreeSet<usize>>,
    pub(super) sent: u64,
    pub(super) trace: bool,
    broken: Option<String>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, mutant: Option<Mutant>) -> Self {
        let member = |me| Member {
            reform: Reform::new(me, scenario.size, scenario.store),
            runs: true,
            stopped: 0,
            sends: None,
            gone: BTreeSet::new(),
            has_left: false,
            lacks: false,
            making: None,
            entered: Vec::new(),
            made: Vec::new(),
            asked: None,
            answered: None,
            done: None,
        };
        let mut world = Self {
            scenario,
            mutant,
            rng: Rng::new(scenario.seed ^ 0x5eed),
            start: Instant::now(),
            now: 0,
            members: (0..scenario.size).map(member).collect(),
            store: scenario.store.then(Voter::default),
            events: Agenda::default(),
            last: BTreeMap::new(),
            cut: None,
            decided: None,
            plans: Vec::new(),
            votes: BTreeMap::new(),
            sent: 0,
            trace: false,
            broken: None,
        };
        for fault in &scenario.faults {
            let at = match fault {
                Fault::Kill { at, .. }
                | Fault::Stop { at, .. }
                | Fault::Cut { at, .. }
                | Fault::Reset { at, .. }
                | Fault::StoreEnds { at } => *at,
                Fault::Lack { .. } | Fault::Leave { .. } => 0,
            };
            world.push(at, Event::Strike(fault.clone()));
        }
        for (member, at) in scenario.begin.iter().enumerate() {
            if let Some(at) = at {
                world.push(*at, Event::Begin(member));
            }
        }
        world
    }

    fn push(&mut self, at: u64, event: Event) {
        self.events.plan(at, event);
    }

    fn at(&self, us: u64) -> Instant {
        self.start + Duration::from_micros(us)
    }

    fn delay(&mut self) -> u64 {
        let (low, high) = self.scenario.delay;
        self.rng.between(low, high)
    }

    /// Returns the virtual time that has passed.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    /// Returns the plan's number of members, if one was decided.
    pub(super) fn run(&mut self) -> Result<Option<usize>, String> {
        while let Some((at, event)) = self.events.take(self.scenario.end) {
            self.now = self.now.max(at);
            if let Some(member) = whose(&event)
                && let Some(m) = self.members.get(member)
            {
                if !m.runs {
                    continue;
                }
                if m.stopped > at {
                    let until = m.stopped;
                    self.push(until, event);
                    continue;
                }
            }
            if self.trace {
                println!("{at:>9} {event:?}");
            }
            self.happen(event);
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        self.judge()?;
        Ok(self.decided.as_ref().map(|p| p.members.len()))
    }

    fn happen(&mut self, event: Event) {
        let now = self.at(self.now);
        match event {
            Event::Strike(fault) => self.strike(fault),
            Event::Begin(member) => {
                let terms = Terms { fewest: self.scenario.fewest, rule: self.scenario.rule };
                let until = self.at(self.now + self.scenario.patience);
                self.members[member].asked = Some(self.now);
                self.members[member].reform.begin(terms, until, now);
                self.act(member, true);
            }
            Event::Deliver { from, to, message } if to == self.scenario.size => self.ask_store(from, message),
            Event::Deliver { from, to, message } => self.deliver(from, to, message),
            Event::Gone { member, of } => {
                if self.members[member].gone.insert(of) {
                    self.members[member].reform.gone(of, "died", now);
                    self.act(member, false);
                    let waits = |plan: &Rc<Plan>| plan.members.contains(&of) && self.scenario.gathers;
                    if self.members[member].making.as_ref().is_some_and(waits) {
                        self.fail_making(member);
                    }
                    // The connection ends for both.
                    let later = self.delay();
                    self.push(self.now + later, Event::Gone { member: of, of: member });
                }
            }
            Event::Entered { member, of, plan } => {
                note(&mut self.members[member].entered, &plan).insert(of);
                self.look(member);
            }
            Event::Stands { member, plan } => self.stand(member, plan),
            Event::Draft { member, members } => {
                let extra = self.rng.between(0, u64::MAX - 1).to_be_bytes().to_vec();
                let reform = &mut self.members[member].reform;
                let gone = match self.mutant {
                    Some(Mutant::NamesNobody) => std::mem::take(&mut reform.gone),
                    _ => BTreeMap::new(),
                };
                reform.draft(&members, extra, now);
                reform.gone.extend(gone);
                self.act(member, false);
            }
            Event::Fault { member, plan } => {
                if self.scenario.gathers && is_one_of(self.members[member].making.as_slice(), &plan) {
                    self.fail_making(member);
                }
            }
            Event::StoreGone { member } => {
                self.members[member].reform.store_gone(now);
                self.act(member, false);
            }
            Event::Tick(member) => {
                if self.members[member].reform.next().is_some_and(|next| next <= now) {
                    self.members[member].reform.tick(now);
                    self.act(member, false);
                }
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        if self.members[to].gone.contains(&from) {
            return;
        }
        if self.members[to].has_left {
            let is_told = matches!(
                message,
                Message::Left | Message::Decided { .. } | Message::Refused { .. } | Message::Withdraw
            );
            if !is_told {
                self.send(to, from, Message::Left);
            }
            return;
        }
        if self.mutant == Some(Mutant::ForgetsPromises) {
            self.members[to].reform.voter.promised = Ballot::default();
        }
        if self.mutant == Some(Mutant::ForgetsVotes) {
            self.members[to].reform.voter.accepted = None;
        }
        let now = self.at(self.now);
        self.members[to].reform.hear(from, message, now);
        self.act(to, false);
    }

    fn ask_store(&mut self, from: usize, message: Message) {
        let Some(store) = &mut self.store else { return };
        let Some(answer) = store.answer(message) else { return };
        self.voted(self.scenario.size, &answer);
        let later = self.delay();
        let event = Event::Deliver { from: self.scenario.size, to: from, message: answer };
        self.push(self.now + later, event);
    }

    fn voted(&mut self, voter: usize, message: &Message) {
        if let Message::Accepted { ballot } = message {
            self.votes.entry(*ballot).or_default().insert(voter);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if let Some(sends) = &mut self.members[from].sends {
            if *sends == 0 {
                return self.kill(from);
            }
            *sends -= 1;
        }
        self.sent += 1;
        self.voted(from, &message);
        let mut at = self.now + self.delay();
        if let Some((side, until)) = &self.cut
            && side.get(from) != side.get(to)
            && to < self.scenario.size
        {
            at = at.max(*until);
        }
        let last = self.last.entry((from, to)).or_default();
        at = at.max(*last + 1);
        *last = at;
        self.push(at, Event::Deliver { from, to, message });
    }

    /// Carry out what a member decided.
    fn act(&mut self, member: usize, is_first: bool) {
        let mut actions = self.members[member].reform.actions();
        // It tells itself without a message.
        let own = self.members[member].reform.voter.accepted.as_ref().map(|(b, _)| *b);
        if let Some(ballot) = own {
            self.votes.entry(ballot).or_default().insert(member);
        }
        if let Some(mutant) = self.mutant {
            mutant.act(is_first, &mut actions);
        }
        for action in actions {
            if !self.members[member].runs {
                return;
            }
            match action {
                ReformAction::Send { to, message } => {
                    self.plant(member, &message);
                    self.send(member, to, message);
                }
                ReformAction::Draft { members } => {
                    let later = self.delay();
                    self.push(self.now + later, Event::Draft { member, members });
                }
                ReformAction::Form { plan } => {
                    let plan = self.shared(plan);
                    self.make(member, plan);
                }
                ReformAction::Abandon { plan } => {
                    let plan = self.shared(plan);
                    self.push(self.now + 1, Event::Fault { member, plan });
                }
                ReformAction::Done { plan } => self.finish(member, plan),
                ReformAction::Refused { .. } => self.members[member].answered = Some(self.now),
            }
        }
        if let Some(next) = self.members[member].reform.next() {
            let at = next.saturating_duration_since(self.start).as_micros() as u64;
            self.push(at.max(self.now + 1), Event::Tick(member));
        }
    }

    /// Mistakes of the member that calls the roll.
    fn plant(&mut self, member: usize, message: &Message) {
        let now = self.at(self.now);
        match (self.mutant, message) {
            (Some(Mutant::NeedsNoVotes), Message::Accept { plan, .. }) => {
                self.members[member].reform.decide(plan.clone());
                self.push(self.now, Event::Tick(member));
                self.finish(member, plan.clone());
            }
            (Some(Mutant::WaitsForNobody), Message::Form { ballot, .. }) => {
                for from in 0..=self.scenario.size {
                    let formed = Message::Formed { ballot: *ballot, fault: None, accepted: None };
                    self.members[member].reform.hear(from, formed, now);
                }
                self.push(self.now, Event::Draft { member, members: Vec::new() });
            }
            _ => {}
        }
    }

    /// Returns the one copy of a plan: comparing those of a thousand members is most of the work otherwise.
    fn shared(&mut self, plan: Plan) -> Rc<Plan> {
        match self.plans.iter().find(|p| ***p == plan) {
            Some(known) => Rc::clone(known),
            None => {
                self.plans.push(Rc::new(plan));
                Rc::clone(&self.plans[self.plans.len() - 1])
            }
        }
    }

    /// Make a part. Where members gather it stands when all parts are begun, and fails with a member.
    fn make(&mut self, member: usize, plan: Rc<Plan>) {
        self.members[member].making = Some(Rc::clone(&plan));
        if !self.scenario.gathers && !self.members[member].lacks {
            let later = self.delay();
            return self.push(self.now + later, Event::Stands { member, plan });
        }
        let lost = plan.members.iter().any(|m| self.members[member].gone.contains(m));
        if lost || std::mem::take(&mut self.members[member].lacks) {
            return self.fail_making(member);
        }
        note(&mut self.members[member].entered, &plan).insert(member);
        for &to in &plan.members {
            if to != member {
                let later = self.delay();
                self.push(
                    self.now + later,
                    Event::Entered { member: to, of: member, plan: Rc::clone(&plan) },
                );
            }
        }
        self.look(member);
    }

    fn look(&mut self, member: usize) {
        let m = &mut self.members[member];
        let Some(plan) = &m.making else { return };
        let entered = note(&mut m.entered, plan);
        if plan.members.iter().all(|m| entered.contains(m)) {
            let plan = Rc::clone(plan);
            self.stand(member, plan);
        }
    }

    fn stand(&mut self, member: usize, plan: Rc<Plan>) {
        self.members[member].made.push(Rc::clone(&plan));
        if self.mutant == Some(Mutant::UsesItsPart) {
            self.finish(member, (*plan).clone());
        }
        self.end_making(member, &plan, None);
    }

    fn fail_making(&mut self, member: usize) {
        let Some(plan) = self.members[member].making.clone() else { return };
        for &to in &plan.members {
            let later = self.delay();
            self.push(self.now + later, Event::Fault { member: to, plan: Rc::clone(&plan) });
        }
        self.end_making(member, &plan, Some("cannot be made".into()));
    }

    fn end_making(&mut self, member: usize, plan: &Plan, fault: Option<String>) {
        let now = self.at(self.now);
        self.members[member].making = None;
        self.members[member].reform.formed(plan, fault, now);
        self.act(member, false);
    }

    fn finish(&mut self, member: usize, plan: Plan) {
        let s = self.scenario;
        let made = self.shared(plan.clone());
        let m = &mut self.members[member];
        m.answered = Some(self.now);
        m.done = Some(plan.clone());
        let is_in = plan.members.contains(&member);
        let lacking = plan.members.iter().find(|p| !is_one_of(&self.members[**p].made, &made));
        let votes = Votes::new(s.size, s.store, s.rule);
        let enough = self.votes.values().any(|v| votes.suffice(v.iter().copied()));
        let mut gone: Vec<usize> = plan.left.iter().map(|(m, _)| *m).collect();
        gone.extend(&plan.members);
        gone.sort_unstable();
        let broken = match &self.decided {
            Some(other) if *other != plan => format!("two plans: {other:?} and, on {member}, {plan:?}"),
            _ if is_in && !is_one_of(&self.members[member].made, &made) => {
                format!("{member} has no part of {plan:?}")
            }
            _ if lacking.is_some() => format!("{lacking:?} has made no part of {plan:?}"),
            _ if !enough => format!("{plan:?} has not enough votes"),
            _ if gone != (0..s.size).collect::<Vec<_>>() => {
                format!("{plan:?} does not say what became of each")
            }
            _ if plan.left.iter().any(|(m, _)| !self.is_taken_for_dead(*m)) => {
                format!("{plan:?} leaves out a member that nobody took for dead")
            }
            _ => {
                self.decided = Some(plan);
                return;
            }
        };
        self.broken = Some(broken);
    }

    fn is_taken_for_dead(&self, member: usize) -> bool {
        self.members[member].has_left || self.members.iter().any(|m| m.gone.contains(&member))
    }

    fn kill(&mut self, member: usize) {
        self.members[member].runs = false;
        self.all_lose(member, 50, 20 * MS);
    }

    /// All others learn within a time that a member is gone.
    fn all_lose(&mut self, of: usize, low: u64, high: u64) {
        for member in (0..self.scenario.size).filter(|m| *m != of) {
            let later = self.rng.between(low, high);
            self.push(self.now + later, Event::Gone { member, of });
        }
    }

    fn strike(&mut self, fault: Fault) {
        let limit = self.scenario.limit;
        match fault {
            Fault::Kill { member, sends: None, .. } => self.kill(member),
            Fault::Kill { member, sends, .. } => self.members[member].sends = sends,
            Fault::Stop { member, to, .. } => {
                self.members[member].stopped = to;
                if to > self.now + limit {
                    self.all_lose(member, limit, limit + limit / 10);
                }
            }
            Fault::Cut { side, to, .. } => {
                let lasts = to > self.now + limit;
                for a in 0..self.scenario.size {
                    for b in (0..self.scenario.size).filter(|b| lasts && side[*b] != side[a]) {
                        let later = self.rng.between(limit, limit + limit / 10);
                        self.push(self.now + later, Event::Gone { member: a, of: b });
                    }
                }
                self.cut = Some((side, if lasts { u64::MAX / 4 } else { to }));
            }
            Fault::Reset { a, b, .. } => {
                self.push(self.now, Event::Gone { member: a, of: b });
                self.push(self.now, Event::Gone { member: b, of: a });
            }
            Fault::Lack { member } => self.members[member].lacks = true,
            Fault::Leave { member } => self.members[member].has_left = true,
            Fault::StoreEnds { .. } => {
                self.store = None;
                for member in 0..self.scenario.size {
                    let later = self.delay();
                    self.push(self.now + later, Event::StoreGone { member });
                }
            }
        }
    }

    /// Judge whether members that the plan leaves out were told, where somebody could.
    fn judge_the_left_out(&self) -> Result<(), String> {
        let Some(plan) = self.decided.as_ref().filter(|_| self.scenario.is_prompt()) else { return Ok(()) };
        let soon = SECOND + 8 * self.scenario.delay.1;
        for (member, m) in self.members.iter().enumerate().filter(|(_, m)| m.runs && m.done.is_none()) {
            let untold = |p: &&usize| {
                let teller = &self.members[**p];
                let knew = teller.done.as_ref().and(teller.answered);
                let late = knew.is_some_and(|knew| m.answered.is_none_or(|at| at > knew + soon));
                teller.runs && late && !teller.gone.contains(&member) && !m.gone.contains(*p)
            };
            if m.asked.is_some() && !plan.members.contains(&member) && plan.members.iter().any(|p| untold(&p))
            {
                return Err(format!("{member} was not told that {plan:?} leaves it out"));
            }
        }
        Ok(())
    }

    /// Judge what only the end shows.
    fn judge(&self) -> Result<(), String> {
        let s = self.scenario;
        for (member, m) in self.members.iter().enumerate().filter(|(_, m)| m.runs) {
            let Some(asked) = m.asked else { continue };
            let due = (asked + s.patience).max(m.stopped) + MS;
            match m.answered {
                None if due < s.end => return Err(format!("{member} was never answered")),
                Some(at) if at > due + SECOND => {
                    return Err(format!("{member} was answered {} us late", at - due));
                }
                _ => {}
            }
        }
        self.judge_the_left_out()?;
        if s.only_pairs_are_lost() && self.decided.is_none() {
            return Err("no group follows, though all run".into());
        }
        let alive: Vec<usize> = (0..s.size).filter(|m| self.members[*m].runs).collect();
        let votes = Votes::new(s.size, s.store, s.rule);
        let voters = alive.iter().copied().chain(s.store.then_some(s.size));
        if !s.only_kills() || !votes.suffice(voters) || alive.len() < s.fewest {
            return Ok(());
        }
        let begun = s.begin.iter().flatten().max().copied().unwrap_or(0);
        let killed =
            s.faults.iter().filter_map(|f| if let Fault::Kill { at, .. } = f { Some(*at) } else { None });
        let last = killed.max().unwrap_or(0).max(begun);
        // A member that dies as it sends does so as long as it has something to say.
        let soon = last + 2 * SECOND + 60 * s.delay.1;
        match alive.iter().find(|m| self.members[**m].done.is_none()) {
            Some(member) => Err(format!("{member} of {alive:?} has no group, and enough are left")),
            None => match alive.iter().find(|m| self.members[**m].answered.is_some_and(|at| at > soon)) {
                Some(member) => Err(format!("{member} got its group late")),
                None => Ok(()),
            },
        }
    }
}

/// The member whose turn an event is.
fn whose(event: &Event) -> Option<usize> {
    match event {
        Event::Strike(_) => None,
        Event::Begin(member) | Event::Tick(member) => Some(*member),
        Event::Deliver { to, .. } => Some(*to),
        Event::Gone { member, .. }
        | Event::Stands { member, .. }
        | Event::Entered { member, .. }
        | Event::Draft { member, .. }
        | Event::Fault { member, .. }
        | Event::StoreGone { member } => Some(*member),
    }
}

/// Returns true for a plan that is among these. There is one copy of each.
fn is_one_of(plans: &[Rc<Plan>], plan: &Rc<Plan>) -> bool {
    plans.iter().any(|p| Rc::ptr_eq(p, plan))
}

fn note<'a>(entered: &'a mut Vec<(Rc<Plan>, BTreeSet<usize>)>, plan: &Rc<Plan>) -> &'a mut BTreeSet<usize> {
    let at = entered.iter().position(|(p, _)| Rc::ptr_eq(p, plan)).unwrap_or_else(|| {
        entered.push((Rc::clone(plan), BTreeSet::new()));
        entered.len() - 1
    });
    &mut entered[at].1
}
