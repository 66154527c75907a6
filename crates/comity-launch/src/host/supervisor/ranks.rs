//! Ranks of a supervisor: their ends, those that are started again, signals to them, their output on its way out, and what they have left
//! running.
use super::Supervisor;
use crate::elastic::{joined, lost};
use crate::host::own_output::unread;
use crate::host::signals::PassedSignal;
use crate::host::sys::host;
use crate::host::tree;
use crate::machine::{Ending, Event, StopOrder};
use crate::protocol::HostEvent;
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use std::time::Duration;

impl Supervisor {
    /// Takes note of the processes that have ended: ranks in the order of their ends, then any other.
    pub(super) fn reap(&mut self) {
        // Who was taken in before it died was a rank of the group.
        self.hear_taken_in();
        self.credit(None);
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let rank = self.ranks.iter().position(|r| r.alive && r.pid == pid);
            if let (Some(rank), Some(ending)) = (rank, Ending::of_raw(status.as_raw())) {
                // Another may have ended before this one, and both since the last look.
                self.credit(Some((rank, ending)));
            }
        }
    }

    /// Take the ends of ranks in their order, and among them, or else last, one that is known already.
    pub(super) fn credit(&mut self, mut known: Option<(usize, Ending)>) {
        for rank in self.deaths.take() {
            if let Some((_, ending)) = known.take_if(|k| k.0 == rank) {
                self.ended(rank, ending);
                continue;
            }
            let Some(pid) = self.ranks.get(rank).filter(|r| r.alive).map(|r| r.pid) else { continue };
            if let Ok(Some((_, status))) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)
                && let Some(ending) = Ending::of_raw(status.as_raw())
            {
                self.ended(rank, ending);
            }
        }
        if let Some((rank, ending)) = known {
            self.ended(rank, ending);
        }
    }

    pub(super) fn ended(&mut self, number: usize, ending: Ending) {
        let Some(rank) = self.ranks.get_mut(number) else { return };
        rank.alive = false;
        let pid = rank.pid;
        let global = self.job.first + number;
        self.feed.remove(number);
        self.journal.ended(global, ending, &host());
        if let Some(metrics) = &self.metrics {
            metrics.ended(number, ending);
        }
        // The launcher of a host's part wants to know it of every rank.
        let matters = self.machine.judges() || self.output.is_framed();
        let killed = ending == Ending::Signal(libc::SIGKILL) && matters;
        let memory = if killed { self.kills.evidence() } else { None }.unwrap_or_default().to_owned();
        self.tell_cause(number);
        if self.output.is_framed() && !self.is_bereft {
            let root_cause = self.meeting.root_cause_of(global);
            self.output.event(&HostEvent::Ended { rank: global, ending, root_cause, memory: memory.clone() });
        }
        self.hear(Event::Ended { rank: global, ending, memory });
        self.meeting.lost(global, &ending.to_string());
        if ending.is_failure() {
            // The number is free for a new process from now on, but not taken within microseconds.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        if self.job.request.verbose {
            self.output.say(&format!("{} {ending}", self.name(global)));
        }
    }

    /// Tells the machine which rank this one names as the cause of its failure, if any.
    pub(super) fn tell_cause(&mut self, number: usize) {
        let by = self.job.first + number;
        if let Some(rank) = self.meeting.root_cause_of(by) {
            self.hear(Event::Blames { by, rank });
        }
    }

    /// Ends what ranks have left running, wherever it hides.
    pub(super) fn end_strays(order: StopOrder) {
        let strays = tree::descendants();
        match order {
            StopOrder::Term => {
                tree::signal(&strays, Signal::TERM);
                tree::signal(&strays, Signal::CONT);
            }
            StopOrder::Kill => tree::signal(&strays, Signal::KILL),
            StopOrder::Abandon => {}
        }
    }

    /// "rank 3 (pid 77, host c)", for the number of a rank in the job.
    pub(crate) fn name(&self, rank: usize) -> String {
        let pid = self.pid_of(rank);
        format!("rank {rank} (pid {pid}, host {})", host())
    }

    pub(crate) fn pid_of(&self, rank: usize) -> i32 {
        let known = rank.checked_sub(self.job.first).and_then(|number| self.ranks.get(number));
        known.map_or(0, |r| r.pid.as_raw_pid())
    }

    /// To the process group of each rank, as a terminal would send it.
    pub(super) fn pass(&self, signal: PassedSignal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal.signal()));
    }

    /// To every process of the job. Not SIGTSTP, which a rank may ignore: then it would miss the others.
    pub(super) fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
        // Those that left the ranks' groups.
        tree::signal(&tree::descendants(), signal);
    }

    /// Finds the ranks that are stopped, and tells a launcher elsewhere.
    pub(super) fn find_stopped(&mut self) {
        let stopped = tree::stopped();
        let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
        let found: Vec<usize> =
            alive.filter(|(_, r)| stopped.contains(&r.pid)).map(|(n, _)| self.job.first + n).collect();
        for rank in found {
            self.output.event(&HostEvent::Stopped { rank });
            self.hear(Event::Stopped { rank });
        }
    }

    pub(super) fn end(&mut self, order: StopOrder) {
        let first = self.job.first;
        let alive = || self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
        let list = || {
            alive()
                .map(|(n, r)| format!("{} (pid {})", first + n, r.pid.as_raw_pid()))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match order {
            StopOrder::Term => alive().for_each(|(_, rank)| {
                rank.signal(Signal::TERM);
                // A stopped process gets it only when it goes on.
                rank.signal(Signal::CONT);
            }),
            StopOrder::Kill => {
                self.output.say(&format!("still running after SIGTERM, now killed: rank {}", list()));
                alive().for_each(|(_, rank)| rank.signal(Signal::KILL));
                tree::signal(&tree::descendants(), Signal::KILL);
            }
            StopOrder::Abandon => {
                self.output.say(&format!("left behind, for they do not die of SIGKILL: rank {}", list()));
            }
        }
    }

    /// Makes room for the next process of a rank, if it had one before.
    pub(super) fn prepare_again(&mut self, number: usize) {
        let Some(rank) = self.ranks.get_mut(number) else { return };
        // What the last one left running may hold them open.
        for pipe in &mut rank.pipes {
            pipe.close(self.job.first + number, &self.output);
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

    pub(super) fn check_outputs(&mut self) {
        self.output.drain();
        while let Some((stream, error)) = self.output.failure() {
            // The logs still have a reader.
            if self.job.logs.is_none() {
                self.hear(Event::Unread { problem: unread(stream, error) });
            }
        }
    }

    /// Reads once, which does not block when the pipe is readable.
    pub(super) fn read(&mut self, rank: usize, pipe: usize) {
        let number = self.job.first + rank;
        let Some(pipe) = self.ranks.get_mut(rank).and_then(|r| r.pipes.get_mut(pipe)) else { return };
        let Some(fd) = &pipe.fd else { return };
        match rustix::io::read(fd, &mut self.buffer[..]) {
            Ok(n) if n > 0 => {
                let bytes = &self.buffer[..n];
                pipe.to.wrote(number, bytes, &self.output);
                self.journal.wrote(number, pipe.to.stream, bytes);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => pipe.close(number, &self.output),
        }
    }

    /// Gives up on what ranks may still write.
    pub(super) fn close_pipes(&mut self) {
        for (rank, number) in self.ranks.iter_mut().zip(self.job.first..) {
            rank.pipes.iter_mut().for_each(|pipe| pipe.close(number, &self.output));
        }
    }

    /// Tells the machine how far the output has come.
    pub(super) fn tell_output(&mut self) {
        let open = self.ranks.iter().flat_map(|r| &r.pipes).any(|p| p.fd.is_some());
        let pending = self.output.is_pending();
        let written = self.output.written();
        self.hear(Event::Output { open, pending, written });
    }
}
