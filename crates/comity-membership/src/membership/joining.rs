//! How the processes meet: who is there, and what became of one who never will be.

use super::Membership;
use crate::{Action, DIED, Note, Presence, Reason};
use std::time::Instant;

impl<R: Reason> Membership<R> {
    /// A process has connected. False if it had before.
    pub fn attach(&mut self, rank: usize, now: Instant) -> bool {
        let Some(place @ Presence::Absent) = self.presences.get_mut(rank) else { return false };
        *place = Presence::Live;
        self.liveness.meet(rank, now);
        self.actions.push(Action::News);
        true
    }

    /// Who has not connected yet. An error if one never will: its rank, and what became of it.
    pub fn absent(&self) -> Result<Vec<usize>, (usize, String)> {
        let mut absent = Vec::new();
        for (rank, presence) in self.presences.iter().enumerate() {
            match presence {
                Presence::Absent => absent.push(rank),
                Presence::Dead(cause) if cause == DIED => {
                    return Err((rank, "ended while the ranks were connecting".into()));
                }
                Presence::Dead(cause) => {
                    return Err((rank, format!("{cause}, while the ranks were connecting")));
                }
                Presence::Gone(words) if !words.is_empty() => {
                    return Err((rank, format!("gave up: {words}")));
                }
                Presence::Shut(silence) => {
                    let words = format!(
                        "gave this process up after {silence:.1} s of silence, while the ranks were connecting"
                    );
                    return Err((rank, words));
                }
                // One that met everyone and left was there.
                Presence::Oneself | Presence::Live | Presence::Gone(_) => {}
            }
        }
        Ok(absent)
    }

    /// Who is at fault, and why, if other processes say that a group has failed which this one has not opened yet.
    pub fn early_abort(&self) -> Option<(usize, String)> {
        self.early.iter().find_map(|(_, note)| match note {
            Note::Abort { failure, .. } => Some((failure.culprit(), failure.cause().to_owned())),
            _ => None,
        })
    }

    /// A process that said why it could not join, and its words.
    pub fn gave_up(&self) -> Option<(usize, String)> {
        self.presences.iter().enumerate().find_map(|(rank, presence)| match presence {
            Presence::Gone(words) if !words.is_empty() => Some((rank, format!("gave up: {words}"))),
            _ => None,
        })
    }
}
