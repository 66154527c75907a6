//! Ending and stopping the ranks, as the user, the rules or a launcher elsewhere want it.
use super::Supervisor;
use crate::launch::shutdown::{StopOrder, StopReason};
use crate::launch::signals::PassedSignal;
use crate::launch::tree;
use crate::launch::verdict::CutOff;
use crate::launch::wire::GuardEvent;
use crate::launch::wish::UserWish;
use rustix::process::Signal;
use std::time::{Duration, Instant};

impl Supervisor {
    /// Does what the user wants.
    pub(in crate::launch) fn listen(&mut self) {
        for wish in self.front_end.listen() {
            self.fulfil(wish);
        }
    }

    pub(super) fn fulfil(&mut self, wish: UserWish) {
        match wish {
            UserWish::Stop => {
                self.signal_all(Signal::STOP);
                self.front_end.all_stopped();
            }
            UserWish::Continue => self.signal_all(Signal::CONT),
            UserWish::Pass(signal) => self.pass(signal),
            UserWish::End(StopReason::Orphaned) if self.orders.is_some() => {
                self.is_bereft = true;
                self.output.event(&GuardEvent::Say(
                    "the first process of `comity guard` was killed there, so its ranks are ended".into(),
                ));
                self.stop(StopReason::Orphaned);
            }
            UserWish::End(reason) => self.stop(reason),
        }
    }

    /// To the process group of each rank, as a terminal would send it.
    pub(in crate::launch) fn pass(&self, signal: PassedSignal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal.signal()));
    }

    /// To every process of the job. Not SIGTSTP, which a rank may ignore: then it would miss the others.
    pub(in crate::launch) fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
        // Those that left the ranks' groups.
        tree::signal(&tree::descendants(), signal);
    }

    pub(in crate::launch) fn stop(&mut self, cause: StopReason) {
        if let Some(order) = self.shutdown.stop(cause, Instant::now()) {
            self.carry_out(order);
        }
    }

    /// Notes which ranks are stopped, and tells a launcher elsewhere.
    pub(in crate::launch) fn find_stopped(&mut self) {
        let stopped = tree::stopped();
        let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
        self.stopped = alive.filter(|(_, r)| stopped.contains(&r.pid)).map(|(n, _)| n).collect();
        for rank in self.stopped.iter().filter_map(|n| u32::try_from(self.job.first + n).ok()) {
            self.output.event(&GuardEvent::Stopped { rank });
        }
    }

    pub(in crate::launch) fn carry_out(&mut self, order: StopOrder) {
        if order == StopOrder::Term {
            // From then on none is stopped any more.
            self.find_stopped();
        }
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
                if let Some(after) = self.shutdown.cut_after() {
                    let ranks = alive().map(|(n, _)| first + n).collect();
                    self.cut_off = Some(CutOff { ranks, after });
                }
                self.output.say(&format!("still running after SIGTERM, now killed: rank {}", list()));
                alive().for_each(|(_, rank)| rank.signal(Signal::KILL));
                tree::signal(&tree::descendants(), Signal::KILL);
            }
            StopOrder::Abandon => {
                self.output.say(&format!("left behind, for they do not die of SIGKILL: rank {}", list()));
            }
        }
    }
}

/// Answers for the launchers of several nodes.
impl Supervisor {
    pub(in crate::launch) fn cause(&self) -> Option<&StopReason> {
        self.shutdown.cause()
    }

    pub(in crate::launch) fn is_ending(&self) -> bool {
        self.shutdown.cause().is_some()
    }

    /// Ranks elsewhere end, so these have a moment and then are ended, too.
    pub(in crate::launch) fn shutdown_of_host(&mut self, node: usize) {
        self.shutdown.host_lost(node, 0, Instant::now(), Duration::ZERO);
    }

    /// Deals with what happens until then.
    pub(in crate::launch) fn idle(&mut self, until: Instant) {
        self.turn(Some(until));
    }

    pub(in crate::launch) fn pid_of(&self, number: usize) -> i32 {
        self.ranks.get(number).map_or(0, |r| r.pid.as_raw_pid())
    }

    /// Evidence that lack of memory ended this rank.
    pub(in crate::launch) fn memory_of(&self, number: usize) -> Option<&'static str> {
        match self.shutdown.cause() {
            Some(StopReason::Failed { rank, .. }) if *rank == number => self.memory,
            _ => None,
        }
    }
}
