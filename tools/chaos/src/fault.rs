//! The faults, and which seed makes which trial.

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
    /// Ranks on four hosts, and faults that take a second or more.
    Silence,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Crew, Self::Silence];

    pub(super) fn name(self) -> &'static str {
        ["crew", "silence"][self as usize]
    }

    fn rows(self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(move |row| row.lane == self)
    }

    /// The fault that a trial's seed stands for.
    pub(super) fn choose(self, seed: u64) -> Fault {
        let all: u64 = self.rows().map(|row| row.weight).sum();
        let mut at = Rng::new(seed ^ 0x6661_756c).between(0, all - 1);
        for row in self.rows() {
            match at.checked_sub(row.weight) {
                Some(rest) => at = rest,
                None => return row.fault,
            }
        }
        ROWS[0].fault
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
}

/// A fault and its lane, its weight among the lane's faults, its name after `--only`, and its name in the table.
struct Row {
    fault: Fault,
    lane: Lane,
    weight: u64,
    name: &'static str,
    title: &'static str,
}

const fn row(fault: Fault, lane: Lane, weight: u64, name: &'static str, title: &'static str) -> Row {
    Row { fault, lane, weight, name, title }
}

const ROWS: [Row; 23] = {
    use Fault::*;
    use Lane::{Crew, Silence};
    [
        row(Kill(Phase::Join), Crew, 10, "kill-join", "kill while joining"),
        row(Kill(Phase::Idle), Crew, 10, "kill-idle", "kill while idle"),
        row(Kill(Phase::Call), Crew, 10, "kill-call", "kill in a call"),
        row(Kill(Phase::Close), Crew, 10, "kill-close", "kill while closing"),
        row(Crash, Crew, 4, "crash", "kill by SIGTERM, ILL, ABRT"),
        row(Files, Crew, 4, "files", "few descriptors"),
        row(Memory, Crew, 4, "memory", "little address space"),
        row(FileSize, Crew, 2, "file-size", "memfd refused"),
        row(FullShm, Crew, 1, "full-shm", "full /dev/shm and /tmp"),
        row(HostileJoin, Crew, 2, "hostile-join", "strangers while joining"),
        row(HostileCall, Crew, 2, "hostile-call", "strangers in a call"),
        row(PortTaken, Crew, 1, "port-taken", "port taken"),
        row(StopCall, Silence, 8, "stop-call", "stop in a call"),
        row(StopIdle, Silence, 6, "stop-idle", "stop while idle"),
        row(Blip, Silence, 10, "blip", "short stops"),
        row(CutBoth, Silence, 8, "cut-both", "host cut off, both ways"),
        row(CutOut, Silence, 4, "cut-out", "host cut off, outward"),
        row(CutIn, Silence, 4, "cut-in", "host cut off, inward"),
        row(CutPair, Silence, 4, "cut-pair", "one host's packets to one other lost"),
        row(CableBlip, Silence, 6, "cable-blip", "host cut off shortly"),
        // Ten seconds each; a run of five minutes makes some.
        row(LongCableBlip, Silence, 2, "long-cable-blip", "host cut off for 4 s of 5"),
        // Eight seconds each.
        row(Delay, Silence, 3, "delay", "slow cable, packets wait"),
        row(Absent, Silence, 4, "absent", "a rank never joins"),
    ]
};

impl Fault {
    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.fault == self).unwrap_or(&ROWS[0])
    }

    pub(super) fn name(self) -> &'static str {
        self.row().name
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.fault)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|f| f.name() == name)
    }

    pub(super) fn lane(self) -> Lane {
        self.row().lane
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

    /// The row of the table.
    pub(super) fn row(&self) -> String {
        let title = self.fault.row().title;
        match self.fault {
            Fault::Kill(_) if self.size == MOST => format!("{title}, 8 ranks"),
            Fault::Kill(_) => format!("{title}, 2 to 7 ranks"),
            _ => title.into(),
        }
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
    fn every_fault_has_a_row_and_a_name_of_its_own() {
        for row in &ROWS {
            assert_eq!((Fault::named(row.name), row.fault.row().title), (Some(row.fault), row.title));
        }
    }

    #[test]
    fn seeds_reach_every_fault_and_make_the_same_plan() {
        for lane in Lane::ALL {
            let mut seen: Vec<_> = (0..2000).map(|s| lane.choose(s).name()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), lane.rows().count());
        }
        let plan = |s| Plan::new(Fault::Crash, s).to_string();
        assert_eq!(plan(5), plan(5));
        assert!(Plan::new(Fault::CutIn, 1).size >= 3);
    }
}
