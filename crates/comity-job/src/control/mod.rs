//! The control connections of a process: one to each other process of its job (in large jobs to a few), which carry beats, goodbyes and failures.
//!
//! ```text
//!   rank high  -- Hello{Control} -->  rank low         each pair has one, made before the ranks have met
//!   both, from when their first group stands:
//!     Heartbeat, ten times within the limit            silence for a fifth of the limit: suspect; for all of it: dead
//!     Waits{the call I am in}                          to those waited for, who compare it with theirs
//!     Census{call} -> Reached{how far I am}            when a limit has passed, a group closes, or a message is missed while others wait
//!     Entered{group}  Connect{group}                   I have opened it; make a link with me
//!     Leave{group}    Abort{group, failure}            each is carried to the group's status; aborts are passed on
//!     Goodbye                                          the process ends in good order
//!   rank high  -- Hello{Probe} -->  rank low           is one that is silent alive? a connection of its own
//! ```
//! Above 64 ranks only neighbours in a graph have one ([`comity_membership`]'s `overlay` has the picture). Each rank passes on once what is
//! for all (`Spread`). What is for some goes from neighbour to neighbour (`Passed`). `Lost` says that an edge is gone. When ranks end, the
//! others connect to those that are their neighbours then ([`ControlDialer`]).
//!
//! The control thread reads them all, asks `comity-membership` what follows, and does it. It also accepts the connections of links and
//! keeps them until their group asks.
//!
//! | what can go wrong | what follows |
//! |---|---|
//! | a connection ends without a goodbye, its process does, or it carries nothing or nonsense | a death: all groups with it fail, and their members are told |
//! | this thread itself gets no turn | that time counts as nobody's silence, but for a tenth of the limit |
//! | that of a process of this host gets none, by what the system says | it is not silent |
//! | the process has no descriptors left | the others are told while ranks join |
//! | the process exits without dropping its groups | an exit handler says goodbye and compares calls |

mod connection_table;
#[cfg(fuzzing)]
pub mod fuzz;
mod note;
pub mod pace;
mod probe;
mod reform;
mod running;

/// Name of the thread that beats, in at most 15 bytes.
const CONTROL_THREAD: &str = "comity-control";

pub use connection_table::Arrival;
pub use note::{ControlNote, Encoding};
pub use probe::Probes;
pub use running::{ControlDialer, ControlPlane, LinkDesk, Rules, Running};
