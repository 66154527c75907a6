//! Membership of a job and its groups, and the consequences of a death, a silence or an abort.
//!
//! This crate decides. It reads no clock, sends nothing and waits for nothing. Events come in with their time, and
//! actions go out:
//!
//! ```text
//!   control connections                    Membership                     the caller carries out
//!   ------------------------+---------------------------------------+--------------------------------
//!   rank 3 has connected    -> attach  \                             /  Tell ranks 1, 2: a note
//!   this rank opens a group -> enter    |  presences: who is there   |  Beat: to all that are there
//!   ... and leaves it       -> leave    |  groups: who is a member,  |  Ask rank 3 anew: do you live?
//!   its engine gives it up  -> abort    |    who has left, why       |  Close the connection to 3
//!   notes; a connection end -> hear     |    it failed, who knows    |  Fail group 7: rank 3 died
//!   rank 3 answers anew     -> lives    |  liveness: when each rank  |  Left: member 2 of group 7
//!   it is time              -> tick     |    was heard last          |  Suspect, Silence: to be counted
//!   this process ends       -> end     /                             \  News, Log
//! ```
//!
//! Ask for [`Membership::actions`] after every call and carry them out in their order before the next call.
//! [`Membership::next`] says when to call [`Membership::tick`] at the latest. The simulator of this crate's tests
//! drives the same code through faults in virtual time, with up to 4,096 ranks.
//!
//! # How everybody learns of a failure
//! Whoever learns first that a group has failed tells the others. The first reason stays and nobody is told twice.
//!
//! ```text
//!        w --+--> 1
//!            +--> 2     ... and each of them tells the culprit,
//!            +--> 3     of which the witness may be cut off
//!            +--> n-1
//! ```
//!
//! # Large jobs
//! Above 64 processes not all pairs are connected: [`Membership::sparse`]. `overlay.rs` has the graph, and how news and failures get around in it.
//!
//! # Groups that form again
//! [`Reform`] is a member's part in the agreement on the group that follows one. `reform/mod.rs` has the protocol.
//!
//! # What the library supplies
//! [`Reason`] says what a failure is, and which types announce a call and answer a census. This crate never looks into
//! those. It deals in [`Note`]s as values; the library makes bytes of them.
//!
//! # Example
//! ```
//! use comity_membership::{Action, DIED, Heard, Membership, Note, Reason};
//! use std::time::{Duration, Instant};
//!
//! #[derive(Clone, Debug, PartialEq, Eq)]
//! struct Lost(usize, usize, String);
//!
//! impl Reason for Lost {
//!     type Call = ();
//!     type Reached = ();
//!     fn lost(culprit: usize, by: usize, cause: String) -> Self {
//!         Self(culprit, by, cause)
//!     }
//!     fn culprit(&self) -> usize {
//!         self.0
//!     }
//!     fn witness(&self) -> usize {
//!         self.1
//!     }
//!     fn cause(&self) -> &str {
//!         &self.2
//!     }
//! }
//!
//! // Rank 0 of 3 meets the others and opens group 7 of all.
//! let now = Instant::now();
//! let mut membership = Membership::<Lost>::new(0, 3, Some(Duration::from_secs(5)));
//! membership.attach(1, now);
//! membership.attach(2, now);
//! membership.enter(7, &[0, 1, 2], 0);
//! membership.actions();
//!
//! // The connection to rank 2 ends without a goodbye: rank 1 is told, and the group fails here.
//! membership.hear(vec![(2, Heard::End(DIED))], now);
//! let failure = Lost(2, 0, DIED.into());
//! let actions = membership.actions();
//! let note = Note::Abort { group_id: 7, failure: failure.clone() };
//! assert!(actions.contains(&Action::Tell { to: vec![1], note }));
//! assert!(actions.contains(&Action::Fail { group_id: 7, failure }));
//! ```

#![forbid(unsafe_code)]
// Tests and the simulator begin at some time, read settings and print what they found.
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods))]

mod events;
mod liveness;
mod membership;
mod overlay;
mod pace;
mod reform;
#[cfg(test)]
mod simulate;

pub use events::{Action, DIED, Fault, Heard, NoConnection, Note, Presence, Reason, Word};
pub use liveness::{RESENT, Verdict};
pub use membership::Membership;
pub use overlay::overlay_neighbours;
pub use pace::Pace;
pub use reform::{Ballot, Message, Plan, Reform, ReformAction, Refusal, Rule, Terms, Voter};
