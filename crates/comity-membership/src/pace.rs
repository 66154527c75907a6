//! Limit on a rank's silence, and the interval of its beats.
//!
//! Up to 64 ranks every rank beats to every other, above to its neighbours in a graph. Where all beat to all, beats grow with the square of
//! the ranks. 256 ranks that beat twice a second on two cores did nothing else, and some fell silent for want of a turn. So each core of a
//! host gets at most [`BUDGET`] beats. Where that needs longer pauses, the limit grows with them. It also grows with the ranks of a core, each of
//! which may want its turn before the one that has something to say ([`TURN`]). There control threads also read several
//! beats at a time, because each wake looks at all connections. All ranks compute it alike, from the table that all have. Imports nothing.

use std::time::Duration;

/// Beats that a core sends, and takes, in a second: chosen, not derived.
///
/// Unoptimised and beside other work, a beat cost 140 us of processor time with 32 and 64 ranks on two cores. It cost 40 us with 128 ranks,
/// where several are read at a time.
const BUDGET: f64 = 20_000.0;
/// Rest of a control thread, as a part of the shortest time between two beats; at most so long, and not at all below.
const REST: (u32, Duration, Duration) = (4, Duration::from_millis(100), Duration::from_millis(20));
/// Part of the limit for each rank of a core, at least: chosen, not derived. With 128 ranks to a core, whose first calls made their
/// links beside other work, one came to no turn for 5.1 s.
const TURN: Duration = Duration::from_millis(100);
/// The longest time between two beats, where there is room for so many.
const SLOWEST: Duration = Duration::from_millis(500);
/// A limit has so many beats: several may be lost or late.
const BEATS: u32 = 10;

/// Limit on a process's silence, and interval of its beats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A process that is silent for so long is given up. With `None` nobody is, and nobody beats.
    pub limit: Option<Duration>,
    /// Between two beats.
    pub beat: Duration,
    /// Time for which messages stay unread after the last look. A connection or call that waits for this thread is served at once.
    pub rest: Duration,
}

impl From<Option<Duration>> for Pace {
    /// The pace where each host has room for all beats.
    fn from(limit: Option<Duration>) -> Self {
        let beat = limit.map_or(SLOWEST, |l| (l / BEATS).min(SLOWEST));
        Self { limit, beat, rest: Duration::ZERO }
    }
}

impl Pace {
    /// Pace of a job whose ranks may be silent for `limit` and beat to so many others each: `hosts` has the ranks and the cores of each.
    pub fn of(limit: Option<Duration>, hosts: &[(usize, u16)], others: usize) -> Self {
        let asked = Self::from(limit);
        let least = least(hosts, others);
        let (part, most, few) = REST;
        let rest = (least / part).min(most);
        let rest = if rest < few || asked.limit.is_none() { Duration::ZERO } else { rest };
        let crowd = hosts.iter().map(|(ranks, cores)| ranks.div_ceil(usize::from((*cores).max(1)))).max();
        let turns = TURN * u32::try_from(crowd.unwrap_or(0)).unwrap_or(u32::MAX);
        let limit = asked.limit.map(|l| l.max(least * BEATS).max(turns));
        Self { limit, beat: asked.beat.max(least), rest }
    }
}

/// The shortest time between two beats that the most crowded host has cores for.
fn least(hosts: &[(usize, u16)], others: usize) -> Duration {
    let load = hosts.iter().map(|(ranks, cores)| (ranks * others) as f64 / f64::from((*cores).max(1)));
    Duration::from_secs_f64(load.fold(0.0, f64::max) / BUDGET)
}
