//! Time passes: heartbeats go out, and whoever is silent for too long is given up.

use super::{Group, Membership};
use crate::{Action, Note, Presence, Reason, Verdict, Word};
use std::time::{Duration, Instant};

/// Addition to the cause by a rank that hears nobody.
const ALONE: &str = ", and nothing of any other rank either; perhaps it is this host that is cut off";

impl<R: Reason> Membership<R> {
    /// Give up whoever has been silent for too long, and beat when it is time.
    ///
    /// Everything that had come by `heard_until` must have been heard. `progress` says how far this process's engines have come.
    pub fn tick(&mut self, heard_until: Instant, now: Instant, progress: u64) {
        if self.leaving {
            return;
        }
        for verdict in self.liveness.tick(heard_until, now) {
            match verdict {
                Verdict::Suspect { rank, .. } => {
                    for group_id in self.contexts_with(rank) {
                        self.actions.push(Action::Suspect { group_id });
                    }
                }
                Verdict::Dead { rank, silence } => {
                    self.measure(rank, Some(silence));
                    // It stays in the connection after its end, and is read when that rank runs again.
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    let alone = if self.hears_nobody(rank, heard_until) { ALONE } else { "" };
                    let seconds = silence.as_secs_f64();
                    self.is_silent_for(silence);
                    let path = self.paths.get(&rank).map_or("", String::as_str);
                    self.lose(rank, &format!("fell silent: nothing heard for {seconds:.1} s{path}{alone}"));
                }
                Verdict::Stuck { rank, silence } => {
                    let cause = format!(
                        "answers on new connections, but its control connection has carried nothing for {:.1} s; look at what lies between the hosts",
                        silence.as_secs_f64()
                    );
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    self.is_silent_for(silence);
                    self.lose(rank, &cause);
                }
            }
            self.actions.push(Action::Log(Word::Silent(verdict)));
        }
        let asks = self.liveness.asks(now);
        self.actions.extend(asks.into_iter().map(|rank| Action::Ask { rank }));
        self.look_around(now);
        self.rewire(now);
        self.beat(now, progress);
    }

    /// Beat when it is time. [`tick`](Self::tick) does so too.
    pub fn beat(&mut self, now: Instant, progress: u64) {
        if !self.leaving && self.liveness.beats(now) {
            self.make_sure();
            self.actions.push(Action::Beat { progress });
        }
    }

    /// A silence of `rank` is over, if it was one.
    pub(super) fn measure(&mut self, rank: usize, silence: Option<Duration>) {
        let Some(silence) = silence else { return };
        let longer = |g: &Group<R>| silence > g.silence && g.members.contains(&rank);
        for (group_id, group) in self.groups.iter_mut().filter(|(_, g)| longer(g)) {
            group.silence = silence;
            self.actions.push(Action::Silence { group_id: *group_id, silence });
        }
    }

    /// Return whether nothing is heard of any other rank either, `rank` being given up.
    fn hears_nobody(&self, rank: usize, now: Instant) -> bool {
        let others = self.presences.iter().enumerate();
        let others = others.filter(|(r, p)| *r != rank && **p == Presence::Live && self.is_connected(*r));
        // Of those that are heard through it nothing can be heard.
        let others = others.filter(|(r, _)| !self.liveness.is_through(*r, rank));
        // Those given up a moment before were silent, too.
        let gone =
            self.presences.iter().filter(|p| matches!(p, Presence::Dead(c) if c.ends_with(ALONE))).count();
        let silent: Vec<bool> = others.map(|(r, _)| self.liveness.is_quiet(r, now)).collect();
        silent.len() + gone > 0 && silent.iter().all(|s| *s)
    }
}
