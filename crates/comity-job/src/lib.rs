//! The ranks of a job that have met: what a group's members know of it, the connections that watch them, and the making of links.
//!
//! ```text
//!   status    what a group's members know of it and tell each other; the trait World
//!   control   the connections that carry beats, aborts and goodbyes; drives comity-membership
//!   links     Endpoint, this process as a member of a job of processes; LocalWorld, a job of threads
//! ```
//! Tests of whole jobs need groups: they are in `crates/comity/src/group/connect/tests`.
//!
//! **An internal crate: nothing here is a promise.** Use `comity`.

#![doc(hidden)]
#![forbid(unsafe_code)]

pub mod control;
pub mod links;
pub mod status;

// Rooms of the crates below, so that a path says the room and not the crate.
use comity_base::{
    CallInfo, CrossedWait, DType, Error, ErrorKind, HostPort, JoinCause, JoinError, Key, MAX_TAG, Op, Peer,
    ReduceOp, Result, Wire, error, lanes, root_cause, stats, sync, sys,
};
use comity_channel as channel;
use comity_rendezvous as rendezvous;
use comity_settings::{costs::LinkCosts, settings};
use comity_transport::{self as transport, LinkKind};
use settings::{ConnectTiming, MeetingPoint, Protection};
