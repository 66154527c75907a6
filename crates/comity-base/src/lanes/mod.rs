//! Lanes: a rank that owns several cores moves and reduces a large message within its host with several threads.
//!
//! ```text
//!   the call's bytes:   | lane 0         | lane 1         | lane 2         |      a thread each, in windows
//!   a window, 3 ranks:  | part 0 | part 1 | part 2 |
//!     stage    copy the parts of others to this rank's own stage        ── flag ──>   wait for the flags of all ranks
//!     reduce   own part of all stages and of the own buffer, to both    ── flag ──>   wait for the flags of all ranks
//!     take     copy the others' parts out of their stages
//! ```
//! In a broadcast the root stages, and the others take.
//!
//! A [`LaneMemory`] is memory that one rank writes and the other ranks of its host map to read: flags, and two windows for each lane, small
//! enough to stay in a core's cache. Who waits for whom, and why two windows do, is in `lane`; no memory is touched there, so a
//! test walks through every order of events.
//!
//! Part `i` is reduced by rank `i`, all operands at once and in rank order, as two-phase and direct plans do. So the bits are the same for
//! every number of lanes, and the same as theirs.
//!
//! The engine compares the headers of all ranks first, then has a [`Carriage`] carry the lanes: one by the calling thread, the others by
//! threads (`pool`) of the process. A thread holds a lane only while it copies or reduces, and the calling thread goes on with any that nobody
//! works on. So threads that get no core, because the program computes on all of them, cost nothing. Calls in the background wake none:
//! the program computes meanwhile.
//!
//! Number of lanes that a rank may have: from the cores that each rank said it may run on, so all ranks come to the same number.
#![allow(unsafe_code, reason = "one call's memory in several threads, and memory that processes map")]

mod carriage;
mod lane;
mod pool;
mod stage;
#[cfg(all(test, not(loom)))]
mod tests;

pub use carriage::{Carriage, LaneStep, YIELDS, carry_alone};
use comity_plan::lanes_of;
pub use pool::{Threads, hold_threads};
pub use stage::{Collective, LaneCall, LaneMemory};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that this process has moved in lanes.
static CARRIED: AtomicU64 = AtomicU64::new(0);

/// So many more bytes went in lanes.
pub fn count_carried(bytes: usize) {
    CARRIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Number of bytes that ranks of this process have moved in lanes, each of them by one of several threads, so far.
pub fn bytes_carried() -> u64 {
    CARRIED.load(Ordering::Relaxed)
}

/// The most lanes of a rank.
pub const MOST_LANES: usize = 32;
/// The most ranks of a host that use lanes.
pub const MOST_MATES: usize = 64;

/// A rank's announcement of its cores.
#[derive(Clone, Copy, Debug)]
pub struct OwnCores {
    /// Its host.
    pub host: usize,
    /// Those that all ranks of its host share.
    pub shared: usize,
    /// Those that it may run on.
    pub own: usize,
}

/// The most lanes of a rank: those of the rank that owns fewest cores. Ranks that may run on the same cores share them.
pub fn most_lanes(ranks: &[OwnCores]) -> usize {
    let owned = |r: &OwnCores| {
        let mates = || ranks.iter().filter(|m| m.host == r.host);
        let host = mates().map(|m| m.shared).min().unwrap_or(1);
        let all: usize = mates().map(|m| m.own).sum();
        if all <= host { r.own } else { r.own.min(host / mates().count().max(1)) }
    };
    let least = ranks.iter().map(owned).min().unwrap_or(1);
    lanes_of(least)
}

#[cfg(test)]
mod share_tests {
    use super::*;

    fn most(ranks: &[(usize, usize, usize)]) -> usize {
        let rank = |&(host, shared, own)| OwnCores { host, shared, own };
        most_lanes(&ranks.iter().map(rank).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_share_the_cores_that_are_not_their_own() {
        assert_eq!(most(&[(0, 2, 2); 2]), 1, "a core each");
        assert_eq!(most(&[(0, 4, 4); 2]), 1, "two each: one for the call, one for the program");
        assert_eq!(most(&[(0, 8, 8); 2]), 3);
        assert_eq!(most(&[(0, 16, 16); 2]), 5);
        assert_eq!(most(&[(0, 64, 64); 8]), 5);
        assert_eq!(most(&[(0, 64, 64); 2]), 16);
        // Bound to cores of their own, and to one each.
        assert_eq!(most(&[(0, 16, 8), (0, 16, 4), (0, 16, 4)]), 3);
        assert_eq!(most(&[(0, 64, 1); 4]), 1);
        // The host that has least counts.
        assert_eq!(most(&[(0, 64, 64), (1, 8, 8), (1, 8, 8)]), 3);
        assert_eq!(most(&[(0, 2, 2); 5]), 1);
        assert_eq!(most(&[]), 1);
    }
}
