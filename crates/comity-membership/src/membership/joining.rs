//! Meeting of the processes: which are there, and the fate of those that never will be.

use super::Membership;
use crate::{Action, DIED, Fault, Note, Presence, Reason};
use std::time::Instant;

impl<R: Reason> Membership<R> {
    /// A process has connected. False if it had before.
    pub fn attach(&mut self, rank: usize, now: Instant) -> bool {
        if self.overlay.is_some() && self.presence(rank) == Some(&Presence::Live) {
            return self.attach_later(rank, now);
        }
        let Some(place @ Presence::Absent) = self.presences.get_mut(rank) else { return false };
        *place = Presence::Live;
        let mut news = Vec::new();
        if let Some(overlay) = &mut self.overlay {
            overlay.connected.insert(rank);
            news = overlay.meets();
        }
        self.liveness.meet(rank, now);
        self.actions.push(Action::News);
        news.into_iter().for_each(|note| self.hand(vec![rank], note));
        true
    }

    /// Note that `rank` is heard through one of `relays`, each a process on the host between: where that one falls silent, it is blamed first. Call
    /// this for each connection that was [attached](Self::attach), with none for one that leads there directly.
    pub fn pass_through(&mut self, rank: usize, relays: Vec<usize>) {
        self.liveness.pass_through(rank, relays);
    }

    /// Note on which other host each process lives, by numbers from 0: hosts that are so crowded that a process is heard after half the limit only give
    /// their other processes time too. `None` for processes of this host, of which the system [knows](Self::has_no_turn).
    pub fn live_on(&mut self, hosts: Vec<Option<usize>>) {
        self.liveness.live_on(hosts);
    }

    /// Remember the path of the connection that was [attached](Self::attach), as the rest of "nothing heard for 5 s": " over TCP from ... to ...".
    pub fn leads_over(&mut self, rank: usize, path: String) {
        self.paths.insert(rank, path);
    }

    /// The processes that have not connected yet.
    ///
    /// # Errors
    /// The [`Fault`] of a process that never will.
    pub fn absent(&self) -> Result<Vec<usize>, Fault> {
        let mut absent = Vec::new();
        let fault = |rank, words| Err(Fault { rank, words, because_of: Vec::new() });
        for (rank, presence) in self.presences.iter().enumerate() {
            match presence {
                Presence::Absent => absent.push(rank),
                Presence::Dead(cause) if cause == DIED => {
                    return fault(rank, "ended while the ranks were connecting".into());
                }
                Presence::Dead(cause) => {
                    return fault(rank, format!("{cause}, while the ranks were connecting"));
                }
                Presence::Gone(words, because_of) if !words.is_empty() => {
                    return Err(gave_up(rank, words, because_of));
                }
                Presence::Shut(silence) => {
                    let words = format!(
                        "gave this process up after {silence:.1} s of silence, while the ranks were connecting"
                    );
                    return fault(rank, words);
                }
                // One that met everyone and left was there.
                Presence::Oneself | Presence::Live | Presence::Gone(..) => {}
            }
        }
        Ok(absent)
    }

    /// Process at fault, and why, if others say that a group has failed that this process has not opened yet.
    pub fn early_abort(&self) -> Option<Fault> {
        self.early.iter().find_map(|(_, note)| match note {
            Note::Abort { failure, .. } => Some(Fault {
                rank: failure.culprit(),
                words: failure.cause().to_owned(),
                because_of: failure.because_of().to_vec(),
            }),
            _ => None,
        })
    }

    /// A process that said why it could not join, and its words.
    pub fn gave_up(&self) -> Option<Fault> {
        self.presences.iter().enumerate().find_map(|(rank, presence)| match presence {
            Presence::Gone(words, because_of) if !words.is_empty() => Some(gave_up(rank, words, because_of)),
            _ => None,
        })
    }
}

fn gave_up(rank: usize, words: &str, because_of: &[usize]) -> Fault {
    Fault { rank, words: format!("gave up: {words}"), because_of: because_of.to_vec() }
}
