//! Events of a job: made from its seed alone. Times are milliseconds.
use crate::machine::{ElasticTerms, Ending, Role};
use scope::Rng;

pub(super) const SECOND: u64 = 1000;
pub(super) const NEVER: u64 = u64::MAX / 2;
/// Silence after which the two sides of an `ssh` give each other up.
pub(super) const SILENCE: u64 = 3 * SECOND;
/// When the user ends whatever still runs.
pub(super) const BEDTIME: u64 = 300 * SECOND;
/// Longest work of a job that goes on without ranks, and the time in which these die.
const LONG: u64 = 60 * SECOND;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    /// Place where the verdict is drawn: alone, in a fleet, or on several nodes.
    pub(super) role: Role,
    /// Terms on which the job goes on without ranks.
    pub(super) elastic: Option<ElasticTerms>,
    /// Host of each rank; in order.
    pub(super) hosts: Vec<usize>,
    pub(super) scripts: Vec<Script>,
    pub(super) faults: Vec<PlantedFault>,
    pub(super) timeout: Option<u64>,
    pub(super) grace: u64,
    /// Longest time of a message between launchers.
    pub(super) delay: u64,
    /// Longest time until a launcher notices the end of a rank.
    pub(super) reaped: u64,
    /// The reader of the output takes nothing in this time.
    pub(super) stuck: (u64, u64),
}

/// Conduct of a rank.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// When it ends well, if nothing happens; [`NEVER`]: it works on.
    pub(super) works: u64,
    /// Time that it takes to end after SIGTERM, or it ignores that.
    pub(super) on_term: Option<u64>,
    /// It does not even die of SIGKILL.
    pub(super) hangs: bool,
    /// Time after which it notices another one's failure, and its end then; else it works on.
    pub(super) notices: Option<(u64, Ending)>,
    /// It names a rank that failed for the culprit, not the culprit itself, where there is one.
    pub(super) names_follower: bool,
    pub(super) stray: Stray,
    /// A process that is not the job's holds its pipe, for so long after the rank's end.
    pub(super) held: u64,
    pub(super) is_startable: bool,
}

/// Conduct of a process that the rank leaves running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    None,
    Obeys,
    Ignores,
    Hangs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlantedFault {
    /// The rank ends like this of its own.
    End { rank: usize, at: u64, ending: Ending },
    /// The rank is stopped, and the others that notice it give it up after a while: those that `fail`, or end well.
    Stop { rank: usize, at: u64, fail: bool },
    /// The host has no power any more.
    Power { host: usize, at: u64 },
    /// The connection to a host is cut.
    Cut { host: usize, at: u64 },
    /// A host cannot run its part, or says nothing.
    Refuse { host: usize, late: bool },
    /// The user sends a signal.
    Signal { at: u64, signal: i32 },
    /// The process that the user started is killed.
    Orphan { at: u64 },
    /// The reader of the output goes away.
    Unread { at: u64 },
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let role = [Role::Alone, Role::Fleet, Role::Node][rng.below(3)];
        let many = if role == Role::Alone { 1 } else { rng.between(1, 4) };
        let mut hosts = Vec::new();
        for host in 0..many as usize {
            let ranks = rng.between(1, 4);
            hosts.extend((0..ranks).map(|_| host));
        }
        let size = hosts.len();
        let elastic = (role != Role::Node && size > 1 && rng.chance(60)).then(|| ElasticTerms {
            fewest: rng.between(1, size as u64 / 2 + 1) as usize,
            restarts: rng.between(0, 4) as u32,
        });
        let longest = if elastic.is_some() { LONG } else { 20 * SECOND };
        let works = match rng.below(3) {
            0 => NEVER,
            _ => rng.between(10, longest),
        };
        let scripts = (0..size).map(|_| Script::new(&mut rng, works)).collect();
        let count = match elastic {
            Some(_) => rng.below(8),
            None => [0, 1, 1, 1, 1, 2, 2, 3][rng.below(8)],
        };
        let faults = (0..count)
            .map(|_| match elastic.filter(|_| rng.chance(70)) {
                Some(_) => PlantedFault::death(&mut rng, size),
                None => PlantedFault::new(&mut rng, role, size, many as usize),
            })
            .collect();
        let stuck = match rng.chance(10) {
            true => {
                let at = rng.between(0, 10 * SECOND);
                (at, if rng.chance(50) { NEVER } else { at + rng.between(0, 20 * SECOND) })
            }
            false => (NEVER, NEVER),
        };
        Self {
            seed,
            role,
            elastic,
            hosts,
            scripts,
            faults,
            timeout: rng.chance(20).then(|| rng.between(100, 30 * SECOND)),
            grace: [3 * SECOND, 3 * SECOND, 300, 20 * SECOND][rng.below(4)],
            delay: rng.between(1, 200),
            reaped: rng.between(0, 300),
            stuck,
        }
    }

    pub(super) fn places(&self) -> usize {
        self.hosts.last().map_or(0, |h| h + 1)
    }

    pub(super) fn ranks_of(&self, host: usize) -> impl Iterator<Item = usize> {
        self.hosts.iter().enumerate().filter(move |(_, h)| **h == host).map(|(r, _)| r)
    }
}

impl Script {
    fn new(rng: &mut Rng, works: u64) -> Self {
        let failure = match rng.below(6) {
            0 => Ending::Signal(libc::SIGABRT),
            1 => Ending::Signal(libc::SIGPIPE),
            _ => Ending::Exit(rng.between(1, 3) as i32),
        };
        Self {
            works: works + rng.between(0, 100),
            on_term: (!rng.chance(15)).then(|| rng.between(0, 2 * SECOND)),
            hangs: rng.chance(1),
            notices: (!rng.chance(15)).then(|| (rng.between(0, 600), failure)),
            names_follower: rng.chance(20),
            stray: match rng.below(20) {
                0 => Stray::Obeys,
                1 => Stray::Ignores,
                2 if rng.chance(10) => Stray::Hangs,
                _ => Stray::None,
            },
            held: match rng.below(20) {
                0 => NEVER,
                1 => rng.between(0, 4 * SECOND),
                _ => 0,
            },
            is_startable: !rng.chance(1),
        }
    }
}

impl PlantedFault {
    /// End of a rank in a job that goes on without it.
    fn death(rng: &mut Rng, size: usize) -> Self {
        let ending = if rng.chance(50) { Ending::Signal(9) } else { Ending::Exit(rng.between(4, 90) as i32) };
        Self::End { rank: rng.below(size), at: rng.between(1, LONG), ending }
    }

    fn new(rng: &mut Rng, role: Role, size: usize, hosts: usize) -> Self {
        let at = rng.between(1, 20 * SECOND);
        let rank = rng.below(size);
        let host = rng.below(hosts);
        let kind = rng.below(if role == Role::Alone { 9 } else { 13 });
        match kind {
            0 | 1 => Self::End { rank, at, ending: Ending::Exit(rng.between(4, 90) as i32) },
            2 => Self::End { rank, at, ending: Ending::Signal([9, 11, 7][rng.below(3)]) },
            3 => Self::End { rank, at, ending: Ending::Exit(0) },
            4 => Self::Stop { rank, at, fail: rng.chance(50) },
            5 | 6 => Self::Signal { at, signal: [libc::SIGINT, libc::SIGTERM, libc::SIGHUP][rng.below(3)] },
            7 => Self::Orphan { at },
            8 => Self::Unread { at },
            9 | 10 => Self::Power { host, at },
            11 if role == Role::Fleet => Self::Refuse { host, late: rng.chance(50) },
            _ => Self::Cut { host, at },
        }
    }
}
