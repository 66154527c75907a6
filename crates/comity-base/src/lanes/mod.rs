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
#![allow(unsafe_code, reason = "one call's memory in several threads, and memory that processes map")]

mod carriage;
mod lane;
mod layout;
mod pool;
mod share;
mod stage;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

pub use carriage::{Carriage, LaneStep, YIELDS, carry_alone};
pub use layout::{Collective, LaneCall};
pub use pool::{Threads, hold_threads};
pub use share::{OwnCores, most_lanes};
pub use stage::LaneMemory;

/// Bytes that this process has moved in lanes.
static CARRIED: AtomicU64 = AtomicU64::new(0);

/// So many more bytes went in lanes.
pub fn count_carried(bytes: usize) {
    CARRIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Bytes that ranks of this process have moved in lanes so far.
pub fn bytes_carried() -> u64 {
    CARRIED.load(Ordering::Relaxed)
}

/// The most lanes of a rank.
pub const MOST_LANES: usize = 32;
/// The most ranks of a host that use lanes.
pub const MOST_MATES: usize = 64;
