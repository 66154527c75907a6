//! Ranks that are started again, alone, while the others run.
use super::Supervisor;
use crate::elastic::{joined, lost};
use crate::machine::Event;
use std::time::Duration;

impl Supervisor {
    /// Makes room for the next process of a rank, if it had one before.
    pub(super) fn prepare_again(&mut self, number: usize) {
        let Some(rank) = self.ranks.get_mut(number) else { return };
        // What the last one left running may hold them open.
        for pipe in &mut rank.pipes {
            let mut show = Vec::new();
            pipe.close(&mut show);
            self.output.put_of(self.job.first + number, pipe.stream, &show);
        }
        if let Some(times) = self.job.restarted.get_mut(number) {
            *times += 1;
        }
        self.meeting.forget_root_causes();
    }

    pub(super) fn say_lost(&self, rank: usize, again: Option<(u32, Duration)>) {
        let ending = self.machine.ending(rank).map(|e| e.to_string()).unwrap_or_default();
        self.output.say(&lost(&format!("{} {ending}", self.name(rank)), again, self.job.elastic));
    }

    /// Tells the machine whom the group has taken in.
    pub(super) fn hear_taken_in(&mut self) {
        let all = self.taken_in.as_ref().map(|taken_in| taken_in.take()).unwrap_or_default();
        for (rank, guests) in all {
            self.journal.joined(rank, guests);
            self.output.say(&joined(rank.map(|rank| self.name(rank)), guests));
            rank.into_iter().for_each(|rank| self.hear(Event::Joined { rank }));
            self.hear(Event::Guests { number: guests });
        }
    }
}
