//! State of a group that its members share: the call each makes, how far each has come, and why it failed.
//!
//! ```text
//!   GroupStatus: the flag and the waker that every wait of a group looks at; set by the engine, by control threads, by the group's handle
//!     MadeLinks: links on their way from the thread that makes them to the engine
//!     Ledger: the calls of this rank, and those that others wait in      Reached: how far a member has come
//!   Failure: who, seen by whom, why -> the same error on every member    Header: one call, in 32 bytes
//!   World: what a group asks of the processes (or threads) it lives in; it is asked for Links, and told of failures
//!   conclude: the last look before a rank leaves
//! ```
//! Neither the engine nor those who make links and carry failures know each other; both know these.

mod closing;
mod failure;
mod group_status;
mod header;
mod ledger;
mod world;

pub use closing::{Ask, conclude, find_difference, is_untold, untold};
pub use failure::{Failure, FailureKind, Late};
pub use group_status::{GroupStatus, MadeLinks, NO_COMPARISON, Reached, Standing};
pub use header::{ANNOUNCE, Header, LEN as HEADER, lead};
pub use ledger::{Differs, Ledger};
pub use world::{Links, Outcome, Parts, World, new_group_id};
