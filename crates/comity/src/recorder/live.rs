//! The flight recorder of a live job, read from outside: what the groups of a rank do just now.

use super::{FlightCall, NOBODY, Record};
use crate::{LinkKind, stats::Sheet, sys::clock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Current state of a rank, as its launcher sees it.
///
/// ```
/// use comity::tools::{LiveRank, Sheet};
///
/// let (sheet, _fd) = Sheet::create()?; // its rank inherits the descriptor
/// let LiveRank { groups, links, .. } = LiveRank::of(&sheet);
/// for group in &groups {
///     println!("group {}: call {}, waits for {:?}", group.id, group.made, group.waits_for);
/// }
/// for path in &links {
///     println!("rank {}: {} bytes there, {} back", path.peer, path.sent, path.received);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveRank {
    /// Its open groups that have made calls or may.
    pub groups: Vec<LiveGroup>,
    /// Its links, by rank.
    pub links: Vec<LivePath>,
}

/// An open group of a rank. [`LiveRank`] lists them.
///
/// ```
/// let is_stuck = |g: &comity::tools::LiveGroup| g.asleep.as_secs() > 60;
/// # let _ = is_stuck;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveGroup {
    /// The group's name; 0 is that of the whole job.
    pub id: u64,
    /// This rank, in the group.
    pub rank: usize,
    /// Its number of ranks.
    pub size: usize,
    /// Number of times that the job's group was formed again, up to this one. 0: the first group, or one that was split off.
    pub epoch: u32,
    /// Epoch in which this process joined; 0: it was there from the start.
    pub since: u32,
    /// Ranks that were in the group before and are not in this one.
    pub left: u32,
    /// Ranks that came with this one.
    pub joined: u32,
    /// This rank's number in its world, which is what `waits_for` and [`LivePath::peer`] count, where the group was formed again.
    pub number: usize,
    /// Epoch in which that world began. 0: the job's start, and numbers are ranks of the job.
    pub world: u32,
    /// Number of calls so far.
    pub made: u64,
    /// The rank of the job that the call under way last slept for.
    pub waits_for: Option<usize>,
    /// Time for which the call under way has slept, if it sleeps.
    pub asleep: Duration,
    /// The last calls, oldest first; the last of them may be under way.
    pub calls: Vec<FlightCall>,
}

/// Traffic of the links to one rank, in bytes with headers. [`LiveRank`] lists them.
///
/// ```
/// let both_ways = |p: &comity::tools::LivePath| p.sent + p.received;
/// # let _ = both_ways;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LivePath {
    /// Number of the process at the other end in its world.
    pub peer: usize,
    /// Epoch in which that world began. 0: the job's start, and numbers are ranks of the job.
    pub world: u32,
    /// Over what.
    pub kind: Option<LinkKind>,
    /// From this rank.
    pub sent: u64,
    /// To this rank.
    pub received: u64,
}

impl LiveRank {
    /// Reads the current state of the rank of a sheet. The rank need not help, so it may hang, be stopped or have been killed.
    pub fn of(sheet: &Sheet) -> Self {
        let now = clock::exact();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let shift = |t: u64| unix.saturating_sub(now.saturating_sub(t));
        let call = |words| {
            let record = Record::of(words)?;
            let begin = shift(record.begin);
            let end = shift(record.end.max(record.begin));
            let peer = (record.peer() != NOBODY).then_some(record.peer() as usize);
            Some(FlightCall {
                info: record.info()?,
                begin,
                end,
                peer,
                waited: record.waited,
                state: record.state(),
            })
        };
        let groups = sheet.groups().into_iter().map(|g| LiveGroup {
            id: g.id,
            rank: g.rank,
            size: g.size,
            epoch: g.formed.epoch,
            since: g.formed.since,
            left: g.formed.left,
            joined: g.formed.joined,
            number: g.formed.number as usize,
            world: g.formed.world,
            made: g.made,
            waits_for: g.waits_for,
            asleep: Duration::from_nanos(g.asleep_since.map_or(0, |t| now.saturating_sub(t))),
            calls: g.calls.into_iter().filter_map(call).collect(),
        });
        let links = sheet.link_bytes().into_iter().map(|(world, peer, kind, sent, received)| LivePath {
            peer,
            world,
            kind: LinkKind::from_wire(kind),
            sent,
            received,
        });
        Self { groups: groups.collect(), links: links.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FlightState, Recorder, tests::call};
    use super::*;
    use crate::stats::Counters;
    use std::sync::Arc;

    #[test]
    fn the_call_under_way_is_seen_from_outside() {
        let (sheet, fd) = Sheet::create().unwrap();
        let theirs = Arc::new(Sheet::attach(&fd).unwrap());
        let mut r = Recorder::new();
        let c = Counters::new(Some(&theirs));
        c.is(0, 1, 2);
        for seq in 1..=6 {
            r.begin(&call(seq), &c);
            r.end(&call(seq), None, &c);
        }
        r.begin(&call(7), &c);
        c.sleeps_for(0);
        c.sleeps();
        std::thread::sleep(Duration::from_millis(2));
        let live = LiveRank::of(&sheet);
        let [group] = &live.groups[..] else { panic!("{live:?}") };
        assert_eq!((group.rank, group.size, group.made, group.waits_for), (1, 2, 7, Some(0)));
        assert!(group.asleep >= Duration::from_millis(2), "{group:?}");
        let states: Vec<_> = group.calls.iter().map(|c| (c.info.seq, c.state)).collect();
        let done = |seq| (seq, FlightState::Done);
        assert_eq!(states, [done(4), done(5), done(6), (7, FlightState::Begun)]);
        assert_eq!(group.calls[3].info, call(7));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!((2_000_000..60_000_000_000).contains(&(now - group.calls[3].begin)));
    }
}
