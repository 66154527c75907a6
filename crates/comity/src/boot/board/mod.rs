//! Boards: how rank 0 tells the others one short text before any of Comity's own connections exists.
//!
//! Every launcher that does not run a store for Comity has a channel of its own on which a few bytes can be told: torchrun's
//! store, MPICH's process manager, the host itself when all ranks are on it.

use crate::Result;
use std::{fmt, time::Instant};

/// A place where rank 0 posts a text that every other rank reads.
///
/// Ranks call [`share`](Self::share) the same number of times; call k of one rank belongs to call k of the others. Boards
/// that other code implements (over Ray, Kubernetes or a torch `Store`) go into [`Config::board`](crate::Config::board).
pub trait Board: Send + Sync + fmt::Debug + fmt::Display {
    /// Rank 0 gives its text as `mine`, the others give `None`; all get rank 0's text. Ends by `until`, with an error that says
    /// what it waited for. The text has at most 512 bytes, all of them printable ASCII other than space.
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> Result<String>;
}
