//! Launchers of a simulated job: each tells its machine what it hears, and does what that wants.
use super::{Due, Message, World};
use crate::machine::findings::{self, NodeFindings, judge};
use crate::machine::simulate::mutant::Mutant;
use crate::machine::simulate::scenario::Stray;
use crate::machine::{Action, Ending, Event, Problem, Role, StopOrder, USAGE, Verdict};

impl World<'_> {
    /// Tells a machine, and does what it wants.
    pub(super) fn hear(&mut self, place: usize, event: Event) {
        if self.places[place].up {
            self.tell(place, event);
            self.step(place);
        }
    }

    pub(super) fn tell(&mut self, place: usize, event: Event) {
        let now = self.instant();
        let state = &mut self.places[place];
        let events = match self.mutant {
            Some(mutant) => mutant.hear(state.role, event, !state.heard_ends),
            None => vec![event],
        };
        for event in events {
            if self.trace.is_some() && !matches!(event, Event::Output { .. } | Event::Others { .. }) {
                self.note(|| format!("  launcher {place} hears {event:?}"));
            }
            self.places[place].machine.on(event, now);
        }
    }

    pub(super) fn step(&mut self, place: usize) {
        let now = self.instant();
        self.places[place].machine.tick(now);
        self.carry_out(place);
        self.look_after(place);
        let state = &mut self.places[place];
        let next = state.machine.next().map(|at| at.saturating_duration_since(self.zero).as_millis() as u64);
        if let Some(next) = next.map(|at| at.max(self.now + 1)).filter(|at| *at < state.wake) {
            state.wake = next;
            self.plan(next, Due::Wake(place));
        }
    }

    /// Takes note of a machine's state, and tells other nodes.
    fn look_after(&mut self, place: usize) {
        let now = self.now;
        let state = &mut self.places[place];
        if state.machine.is_over() && state.over.is_none() {
            state.over = Some(now);
        }
        let is_failing = state.machine.is_failing();
        if is_failing {
            state.failing_at.get_or_insert(now);
        }
        if state.role != Role::Node {
            return;
        }
        let tells = is_failing && !std::mem::replace(&mut state.has_told, is_failing);
        let gave_up: Vec<_> = state.machine.given_up_here().take(1).collect();
        let gives = !gave_up.is_empty() && gave_up != state.gave_up;
        state.gave_up.clone_from(&gave_up);
        for other in (0..self.places.len()).filter(|p| *p != place) {
            let at = now + self.rng.between(1, 200);
            if self.ways[place].is_cut || self.ways[other].is_cut {
                continue;
            }
            if tells {
                self.plan(at, Due::OtherEnds { place: other, node: place });
            }
            if gives {
                self.plan(at, Due::GivenUp { place: other, all: gave_up.clone() });
            }
        }
    }

    fn tell_output(&mut self, place: usize) {
        let stuck = (self.s.stuck.0..self.s.stuck.1).contains(&self.now) && self.is_read;
        // What hosts send is taken by their launcher.
        let is_first = self.places[place].role != Role::Host;
        let written = if stuck { self.s.stuck.0 } else { self.now };
        let open = self.is_open(place);
        self.tell(place, Event::Output { open, pending: stuck && is_first, written });
    }

    fn is_open(&self, place: usize) -> bool {
        let Some(host) = self.places[place].host else { return false };
        self.s.ranks_of(host).map(|r| &self.ranks[r]).any(|process| {
            process.starts > 0 && (process.alive || process.has_stray || self.now < process.pipe_closes)
        })
    }

    fn carry_out(&mut self, place: usize) {
        loop {
            let mut actions = self.places[place].machine.actions();
            if actions.is_empty() {
                return;
            }
            let runs = self.places[place].starts > 0;
            self.mutant.iter().for_each(|mutant| mutant.act(&mut actions, runs));
            for action in actions {
                let is_look =
                    matches!(action, Action::LookForStrays | Action::LookAtOutput | Action::LookAtOthers);
                if self.trace.is_some() && !is_look {
                    self.note(|| format!("  launcher {place}: {action:?}"));
                }
                match self.places[place].host {
                    None => self.perform_far(action),
                    Some(host) => self.perform(place, host, action),
                }
            }
        }
    }

    fn perform(&mut self, place: usize, host: usize, action: Action) {
        match action {
            Action::Start(ranks) => {
                self.places[place].starts += 1;
                for rank in ranks {
                    if !self.s.scripts[rank].is_startable {
                        self.hurry(place);
                        if self.places[place].role == Role::Host {
                            self.say(host, Message::Unstarted);
                        }
                        let problem = Problem { why: format!("rank {rank} cannot start"), code: USAGE };
                        self.tell(place, Event::Unstarted { rank: Some(rank), problem });
                        break;
                    }
                    self.start(rank);
                }
            }
            Action::SayLost { rank, .. } => {
                if self.mutant == Some(Mutant::StartsAtOnce) {
                    self.start(rank);
                }
            }
            Action::FindStopped => self.find_stopped(place),
            Action::End(order) => {
                self.places[place].orders.push((self.now, order));
                self.s.ranks_of(host).for_each(|rank| self.signal(rank, order));
            }
            Action::AskForCauses => {
                for rank in self.s.ranks_of(host) {
                    if let Some(named) = self.ranks[rank].word {
                        self.tell(place, Event::Blames { by: rank, rank: named });
                    }
                }
            }
            Action::EndStrays(order) => {
                for rank in self.s.ranks_of(host) {
                    match (self.s.scripts[rank].stray, order) {
                        (Stray::Obeys, StopOrder::Term) => self.plan(self.now + 100, Due::StrayEnds(rank)),
                        (Stray::Obeys | Stray::Ignores, StopOrder::Kill) => {
                            self.ranks[rank].has_stray = false;
                        }
                        _ => {}
                    }
                }
            }
            Action::LookForStrays => {
                let process = |rank: usize| &self.ranks[rank];
                let left = self.s.ranks_of(host).any(|r| process(r).has_stray || process(r).alive);
                self.tell(place, Event::Strays { left });
            }
            Action::LookAtOutput => self.tell_output(place),
            Action::LookAtOthers => {
                let state = &self.places[place];
                let heard = state.all.is_some() || state.lost.is_some();
                let failing = state.others_fail;
                self.tell(place, Event::Others { heard, failing });
            }
            Action::TellFindings => {
                let name = |rank: usize| format!("rank {rank}");
                let since = self.zero;
                let found =
                    NodeFindings::of(&self.places[place].machine, format!("h{host}"), since, &|_| 1, &name);
                self.places[place].findings = Some(found);
                if self.places.iter().all(|p| p.findings.is_some()) {
                    self.plan(self.now + self.rng.clone().between(100, 300), Due::AllHeard);
                }
            }
            Action::SayVerdict => {
                if self.places[place].role == Role::Host {
                    self.say(host, Message::Bye);
                }
                self.say_verdict(place);
            }
            Action::CloseOutput
            | Action::Compare
            | Action::SayProblems
            | Action::SayHostLost { .. }
            | Action::TryHost { .. } => {}
        }
    }

    fn say_verdict(&mut self, place: usize) {
        let state = &self.places[place];
        let name = |rank: usize| format!("rank {rank}");
        let verdict = match (state.role, &state.all) {
            (Role::Node, Some(all)) => judge(all),
            (Role::Node, None) => findings::verdict_alone(&state.machine, state.lost.clone(), &name),
            _ => Verdict::of(&state.machine, &name, None),
        };
        let now = self.now;
        self.places[place].said.push((now, verdict));
    }

    /// Deeds of a launcher whose ranks are on other hosts.
    fn perform_far(&mut self, action: Action) {
        let everywhere = |world: &mut Self, message: Message| {
            (0..world.ways.len()).for_each(|host| world.send(host, true, message.clone()));
        };
        match action {
            Action::Compare => self.tell(0, Event::Compared { problems: Vec::new() }),
            Action::Start(ranks) if self.places[0].starts > 0 => self.start_far(ranks),
            Action::TryHost { host } => {
                let at = self.now + self.rng.between(100, 2000);
                self.plan(at, Due::HostAnswers(host));
            }
            Action::Start(_) => {
                self.places[0].starts += 1;
                self.ways.iter_mut().for_each(|way| way.is_running = true);
                everywhere(self, Message::Go);
            }
            Action::FindStopped => everywhere(self, Message::FindStopped),
            Action::End(order) => {
                self.places[0].orders.push((self.now, order));
                match order {
                    StopOrder::Term => everywhere(self, Message::Term),
                    StopOrder::Kill => everywhere(self, Message::Kill),
                    StopOrder::Abandon => {}
                }
            }
            Action::EndStrays(_) => {
                self.places[0].closed = true;
                everywhere(self, Message::Close);
            }
            Action::LookForStrays => {
                let left = !self.places[0].closed && self.ways.iter().any(|way| way.is_running);
                self.tell(0, Event::Strays { left });
            }
            Action::LookAtOutput => self.tell_output(0),
            Action::SayVerdict => self.say_verdict(0),
            Action::AskForCauses
            | Action::CloseOutput
            | Action::SayLost { .. }
            | Action::SayHostLost { .. }
            | Action::SayProblems
            | Action::TellFindings
            | Action::LookAtOthers => {}
        }
    }

    pub(super) fn find_stopped(&mut self, place: usize) {
        let Some(host) = self.places[place].host else { return };
        let s = self.s;
        for rank in s.ranks_of(host) {
            if !self.ranks[rank].alive || !self.ranks[rank].stopped {
                continue;
            }
            if self.places[place].role == Role::Host {
                self.say(host, Message::Stopped(rank));
            }
            self.tell(place, Event::Stopped { rank });
        }
    }

    fn signal(&mut self, rank: usize, order: StopOrder) {
        if !self.ranks[rank].alive {
            return;
        }
        let script = &self.s.scripts[rank];
        match order {
            StopOrder::Term => {
                self.ranks[rank].is_told = true;
                self.ranks[rank].stopped = false;
                if let Some(delay) = script.on_term {
                    self.plan(self.now + delay, Due::Obeys(rank));
                }
            }
            StopOrder::Kill => {
                self.ranks[rank].is_told = true;
                if !script.hangs {
                    self.end(rank, Ending::Signal(libc::SIGKILL));
                }
            }
            StopOrder::Abandon => {}
        }
    }

    /// Every node has every node's findings, unless one is lost.
    pub(super) fn gather(&mut self) {
        if self.places.iter().any(|p| p.lost.is_some()) || self.ways.iter().any(|w| w.is_cut) {
            return;
        }
        let all: Option<Vec<NodeFindings>> = self.places.iter().map(|p| p.findings.clone()).collect();
        for place in &mut self.places {
            if place.all.is_none() {
                place.all.clone_from(&all);
            }
        }
    }
}
