//! Name of a trial in the table.
use super::{Fault, MOST, Phase, Plan};

impl Plan {
    /// The row of the table.
    pub(crate) fn row(&self) -> String {
        let name = match self.fault {
            Fault::Kill(Phase::Join) => "kill while joining",
            Fault::Kill(Phase::Idle) => "kill while idle",
            Fault::Kill(Phase::Call) => "kill in a call",
            Fault::Kill(Phase::Close) => "kill while closing",
            Fault::Crash => "kill by SIGTERM, ILL, ABRT",
            Fault::Files => "few descriptors",
            Fault::Memory => "little address space",
            Fault::FileSize => "memfd refused",
            Fault::FullShm => "full /dev/shm and /tmp",
            Fault::HostileJoin => "strangers while joining",
            Fault::HostileCall => "strangers in a call",
            Fault::RankKilled => "kill under the launcher",
            Fault::RankExits => "exit under the launcher",
            Fault::LauncherKill => "launcher: KILL",
            Fault::LauncherTerm => "launcher: TERM",
            Fault::LauncherInt => "launcher: INT",
            Fault::LauncherHup => "launcher: HUP",
            Fault::SupervisorKill => "launcher: KILL of its second process",
            Fault::OutOfMemory => "out of memory (control group)",
            Fault::StopCall => "stop in a call",
            Fault::StopIdle => "stop while idle",
            Fault::Blip => "short stops",
            Fault::CutBoth => "host cut off, both ways",
            Fault::CutOut => "host cut off, outward",
            Fault::CutIn => "host cut off, inward",
            Fault::CutPair => "one host's packets to one other lost",
            Fault::CableBlip => "host cut off shortly",
            Fault::LongCableBlip => "host cut off for 4 s of 5",
            Fault::Delay => "slow cable, packets wait",
            Fault::Absent => "a rank never joins",
            Fault::PortTaken => "port taken",
            Fault::FarRankKilled => "over ssh: a rank killed",
            Fault::FarLauncherKill => "over ssh: the launcher killed",
            Fault::SshKilled => "over ssh: ssh killed",
            Fault::HostKilled => "over ssh: all of a host killed",
            Fault::HostCut => "over ssh: a host cut off",
        };
        match self.fault {
            Fault::Kill(_) if self.size == MOST => format!("{name}, 8 ranks"),
            Fault::Kill(_) => format!("{name}, 2 to 7 ranks"),
            _ => name.into(),
        }
    }
}
