//! Processes that end: ranks, and what they have left running.
use super::{LEFT_OPEN, RankEnd, Supervisor, host};
use crate::launch::ending::Ending;
use crate::launch::shutdown::StopReason;
use crate::launch::tree;
use crate::launch::verdict::Findings;
use rustix::process::{Signal, WaitOptions};
use std::time::{Duration, Instant};

/// Time between SIGTERM, when the last rank has ended, and SIGKILL for the processes that ranks left running.
const STRAYS: Duration = Duration::from_millis(500);

impl Supervisor {
    /// Takes note of the processes that have ended: ranks in the order of their ends, then any other.
    pub(super) fn reap(&mut self) {
        self.credit(None);
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let rank = self.ranks.iter().position(|r| r.alive && r.pid == pid);
            if let (Some(rank), Some(ending)) = (rank, Ending::of(status)) {
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
                && let Some(ending) = Ending::of(status)
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
        self.feed.remove(number);
        let early = self.shutdown.judges();
        if let Some(end) = self.ends.get_mut(number) {
            *end = Some(RankEnd { ending, at: Instant::now(), early });
        }
        self.journal.ended(self.job.first + number, ending, &host());
        if let Some(metrics) = &self.metrics {
            metrics.ended(number, ending);
        }
        if self.output.is_framed() {
            if !self.is_bereft {
                self.tell_end(number, ending);
            }
            // The launcher judges it, and sends the order to end the others.
            self.shutdown.ended(number, Ending::Exit(0), Instant::now());
        } else {
            self.shutdown.ended(number, ending, Instant::now());
        }
        self.meeting.lost(number, &ending.to_string());
        if ending.is_failure() {
            // The number is free for a new process from now on, but not taken within microseconds.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        if self.shutdown.cause() == Some(&StopReason::Failed { rank: number, ending }) {
            let killed = ending == Ending::Signal(libc::SIGKILL);
            self.memory = if killed { self.kills.evidence() } else { None };
        }
        if self.job.verbose {
            self.output.say(&format!("{} {ending}", self.name(number)));
        }
    }

    /// Ends what ranks have left running, wherever it hides.
    pub(super) fn end_strays(&mut self) {
        let since = Instant::now();
        let mut asked = false;
        while since.elapsed() < LEFT_OPEN {
            let strays = tree::descendants();
            if strays.is_empty() {
                break;
            }
            if since.elapsed() >= STRAYS {
                tree::signal(&strays, Signal::KILL);
            } else if !asked {
                asked = true;
                tree::signal(&strays, Signal::TERM);
                tree::signal(&strays, Signal::CONT);
            }
            self.turn(Some(Instant::now() + Duration::from_millis(20)));
        }
    }

    /// "rank 3 (pid 77, host c)"
    pub(super) fn name(&self, number: usize) -> String {
        let pid = self.ranks.get(number).map_or(0, |r| r.pid.as_raw_pid());
        format!("rank {} (pid {pid}, host {})", self.job.first + number, host())
    }

    /// The last line and the exit code.
    pub(in crate::launch) fn verdict(&self) -> (Option<String>, u8) {
        Findings {
            cause: self.shutdown.cause(),
            name: &|rank| self.name(rank),
            was_stopped: &|rank| self.stopped.contains(&rank),
            memory: self.memory,
            timeout: self.job.timeout,
            unstarted: self.unstarted.as_ref(),
            unread: self.unread,
            lost_host: &|_| String::new(),
        }
        .verdict()
    }
}
