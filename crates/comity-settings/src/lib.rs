//! Knowledge of a process before it meets the others: its place in the job, its settings, and the exchange of its launcher.
//!
//! ```text
//!   settings   Settings: given by value, or read from the variables of users and launchers; the table of variables
//!   exchange   how rank 0 tells the others one short text, over a launcher's own channel
//!   costs      costs of each pair of ranks, measured or read from a file
//! ```
//! `comity::Config` is the builder of [`Settings`](settings::Settings). A room below the groups takes the settings, and nothing opens anything here
//! but files and descriptors that variables name.
//!
//! **An internal crate: nothing here is a promise.** Use `comity`.

#![doc(hidden)]
#![forbid(unsafe_code)]

pub mod costs;
pub mod exchange;
pub mod settings;

// Rooms of the crates below, so that a path says the room and not the crate.
use comity_base::{
    ConfigError, Error, ErrorKind, HostPort, JoinCause, JoinError, Key, MAX_SIZE, Result, address, lanes,
    named, root_cause, sync, sys,
};
use comity_transport::{self as transport, LinkKind};
