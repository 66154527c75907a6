//! The faults, and which seed makes which trial.

mod row;

use scope::Rng;
use std::{fmt, ops::Range};

/// Ranks of the largest group.
pub(super) const MOST: usize = 8;
/// Ranks of a group that has a host for each.
const APART: usize = super::net::HOSTS;

/// Kind of processes that a lane keeps; each lane has namespaces of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Ranks that join one job after the other, on one host.
    Crew,
    /// Jobs of `comity launch`.
    Launcher,
    /// Ranks on four hosts, and faults that take a second or more.
    Silence,
    /// Jobs of `comity launch` over ssh, on three hosts.
    Fleet,
}

impl Lane {
    pub(super) const ALL: [Self; 4] = [Self::Crew, Self::Launcher, Self::Silence, Self::Fleet];

    pub(super) fn name(self) -> &'static str {
        ["crew", "launcher", "silence", "fleet"][self as usize]
    }

    /// Faults of the lane, and the weight of each.
    fn faults(self) -> &'static [(Fault, u64)] {
        use Fault::*;
        match self {
            Self::Crew => &[
                (Kill(Phase::Join), 10),
                (Kill(Phase::Idle), 10),
                (Kill(Phase::Call), 10),
                (Kill(Phase::Close), 10),
                (Crash, 4),
                (Files, 4),
                (Memory, 4),
                (FileSize, 2),
                (FullShm, 1),
                (HostileJoin, 2),
                (HostileCall, 2),
                (PortTaken, 1),
            ],
            Self::Launcher => &[
                (RankKilled, 12),
                (RankExits, 4),
                (LauncherKill, 6),
                (LauncherTerm, 6),
                (LauncherInt, 6),
                (LauncherHup, 6),
                (SupervisorKill, 3),
                (OutOfMemory, 2),
            ],
            Self::Fleet => &[
                (FarRankKilled, 4),
                (FarLauncherKill, 4),
                (SshKilled, 6),
                (HostKilled, 6),
                // Some six seconds.
                (HostCut, 4),
            ],
            Self::Silence => &[
                (StopCall, 8),
                (StopIdle, 6),
                (Blip, 10),
                (CutBoth, 8),
                (CutOut, 4),
                (CutIn, 4),
                (CutPair, 4),
                (CableBlip, 6),
                // Ten seconds each; a run of five minutes makes some.
                (LongCableBlip, 2),
                // Eight seconds each.
                (Delay, 3),
                (Absent, 4),
            ],
        }
    }

    /// The fault that a trial's seed stands for.
    pub(super) fn choose(self, seed: u64) -> Fault {
        let all: u64 = self.faults().iter().map(|(_, weight)| weight).sum();
        let mut at = Rng::new(seed ^ 0x6661_756c).between(0, all - 1);
        for (fault, weight) in self.faults() {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *fault,
            }
        }
        self.faults()[0].0
    }
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Join,
    Idle,
    Call,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL of a rank.
    Kill(Phase),
    /// Another signal that ends a rank in a call. Not SIGSEGV: the first one that is sent to a Rust program only takes its
    /// own handling away.
    Crash,
    /// A rank may open few files.
    Files,
    /// A rank may map little memory.
    Memory,
    /// A rank may make small files only, also in memory.
    FileSize,
    /// `/dev/shm` and `/tmp` are full.
    FullShm,
    /// Strangers connect while the ranks join.
    HostileJoin,
    /// Strangers connect while the ranks work.
    HostileCall,
    /// A rank of a launcher is ended by a signal.
    RankKilled,
    /// A rank of a launcher exits with a code.
    RankExits,
    LauncherKill,
    LauncherTerm,
    LauncherInt,
    LauncherHup,
    /// The launcher's other process is killed.
    SupervisorKill,
    /// The kernel kills a rank for want of memory.
    OutOfMemory,
    /// SIGSTOP of a rank in a call.
    StopCall,
    StopIdle,
    /// SIGSTOP and soon SIGCONT, of several ranks.
    Blip,
    /// No packet passes to or from a host.
    CutBoth,
    /// No packet leaves a host.
    CutOut,
    /// No packet reaches a host.
    CutIn,
    /// No packet of a rank reaches one other. Each rank has a host of its own.
    CutPair,
    /// No packet passes for a moment.
    CableBlip,
    /// No packet passes for most of the time that a rank may be silent.
    LongCableBlip,
    /// Packets of a host wait in a long queue before a slow cable, and are lost where it is full.
    Delay,
    /// A rank never joins.
    Absent,
    /// Somebody else has the port at which the ranks are to meet.
    PortTaken,
    /// A rank of a job over ssh is killed.
    FarRankKilled,
    /// The launcher of a job over ssh is killed.
    FarLauncherKill,
    /// The launcher's ssh to a host is killed.
    SshKilled,
    /// Everything on a host of a job over ssh is killed.
    HostKilled,
    /// No packet passes to or from a host of a job over ssh.
    HostCut,
}

impl Fault {
    /// Each with its name after `--only`.
    const ALL: [(Self, &'static str); 36] = [
        (Self::Kill(Phase::Join), "kill-join"),
        (Self::Kill(Phase::Idle), "kill-idle"),
        (Self::Kill(Phase::Call), "kill-call"),
        (Self::Kill(Phase::Close), "kill-close"),
        (Self::Crash, "crash"),
        (Self::Files, "files"),
        (Self::Memory, "memory"),
        (Self::FileSize, "file-size"),
        (Self::FullShm, "full-shm"),
        (Self::HostileJoin, "hostile-join"),
        (Self::HostileCall, "hostile-call"),
        (Self::RankKilled, "rank-killed"),
        (Self::RankExits, "rank-exits"),
        (Self::LauncherKill, "launcher-kill"),
        (Self::LauncherTerm, "launcher-term"),
        (Self::LauncherInt, "launcher-int"),
        (Self::LauncherHup, "launcher-hup"),
        (Self::SupervisorKill, "supervisor-kill"),
        (Self::OutOfMemory, "out-of-memory"),
        (Self::StopCall, "stop-call"),
        (Self::StopIdle, "stop-idle"),
        (Self::Blip, "blip"),
        (Self::CutBoth, "cut-both"),
        (Self::CutOut, "cut-out"),
        (Self::CutIn, "cut-in"),
        (Self::CutPair, "cut-pair"),
        (Self::CableBlip, "cable-blip"),
        (Self::LongCableBlip, "long-cable-blip"),
        (Self::Delay, "delay"),
        (Self::Absent, "absent"),
        (Self::PortTaken, "port-taken"),
        (Self::FarRankKilled, "far-rank-killed"),
        (Self::FarLauncherKill, "far-launcher-kill"),
        (Self::SshKilled, "ssh-killed"),
        (Self::HostKilled, "host-killed"),
        (Self::HostCut, "host-lost"),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(fault, _)| *fault == self).map_or("", |(_, name)| name)
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(fault, _)| fault)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|f| f.name() == name)
    }

    pub(super) fn lane(self) -> Lane {
        let of = |lane: &Lane| lane.faults().iter().any(|(fault, _)| *fault == self);
        Lane::ALL.into_iter().find(of).unwrap_or(Lane::Crew)
    }
}

/// A trial. All that is random in it comes from its seed; when exactly a process is hit does not.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) fault: Fault,
    pub(super) seed: u64,
    pub(super) size: usize,
    /// The member of the crew that is rank 0.
    pub(super) first: usize,
    pub(super) victim: usize,
    /// `shm`, `tcp`, or both with two ranks to a host.
    pub(super) links: &'static str,
    pub(super) random: Rng,
}

impl Plan {
    pub(super) fn new(fault: Fault, seed: u64) -> Self {
        let mut random = Rng::new(seed);
        let size = match fault {
            // Most with 8, for which the bound is promised.
            Fault::Kill(_) if random.below(4) > 0 => MOST,
            Fault::CutPair => APART,
            // Two hosts at least.
            _ if fault.lane() == Lane::Silence => random.between(3, MOST as u64) as usize,
            _ => random.between(2, MOST as u64) as usize,
        };
        let victim = random.below(size);
        let links = *random.pick(&["shm", "tcp", "mixed"]);
        let first = if fault == Fault::CutPair { MOST } else { 0 };
        Self { fault, seed, size, first, victim, links, random }
    }

    /// The ranks, as the crew numbers its members.
    pub(super) fn members(&self) -> Range<usize> {
        self.first..self.first + self.size
    }

    /// The member that is hit.
    pub(super) fn hit(&self) -> usize {
        self.first + self.victim
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let hit = self.hit();
        self.members().filter(move |r| *r != hit)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, Self { seed, size, victim, links, .. }) = (self.fault.name(), self);
        write!(f, "{name}:{seed} ({size} ranks over {links}, rank {victim} is hit)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_lane_and_a_name() {
        for fault in Fault::all() {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(fault.lane().faults().iter().any(|(f, _)| *f == fault), "{fault:?}");
        }
        let listed: usize = Lane::ALL.iter().map(|l| l.faults().len()).sum();
        assert_eq!(listed, Fault::all().count());
    }

    #[test]
    fn seeds_reach_every_fault_and_make_the_same_plan() {
        for lane in Lane::ALL {
            let mut seen: Vec<_> = (0..2000).map(|s| lane.choose(s).name()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), lane.faults().iter().filter(|f| f.1 > 0).count());
        }
        let plan = |s| Plan::new(Fault::Crash, s).to_string();
        assert_eq!(plan(5), plan(5));
        assert!(Plan::new(Fault::CutIn, 1).size >= 3);
    }
}
