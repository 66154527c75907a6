//! Texts of errors.

use super::{CrossedWait, Peer};
use crate::CallInfo;
use std::fmt;

/// Names of files and values of variables come from strangers at times, and errors go to terminals.
pub(super) struct Printable<'a>(pub(super) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            match part.char_indices().next_back() {
                Some((at, c)) if c.is_control() => write!(f, "{}{}", &part[..at], c.escape_default())?,
                _ => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// Rank that saw the failure first.
pub(super) struct SeenBy<'a>(pub(super) &'a Option<usize>);

impl fmt::Display for SeenBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |rank| write!(f, " (seen by rank {rank})"))
    }
}

pub(super) struct DuringCall<'a>(pub(super) &'a Option<CallInfo>);

impl fmt::Display for DuringCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |c| write!(f, " during {c}"))
    }
}

/// Difference in an all_to_all: the size of the part that a rank sends another, and the size that the other expects.
pub const PART: &str = "the size of a part";

/// Advice about a call that timed out.
pub(super) fn advice(named: &[Peer], stalled: bool) -> &'static str {
    match (stalled, named) {
        (true, _) => "look at the network between those two,",
        (false, []) => "look at the load of the hosts,",
        (false, [_]) => "look at what that rank does,",
        (false, _) => "look at what those ranks do,",
    }
}

/// Two calls that do not fit.
pub(super) struct Calls<'a>(
    pub(super) (usize, &'a CallInfo),
    pub(super) (&'a Peer, &'a CallInfo),
    pub(super) &'a str,
);

impl fmt::Display for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self((rank, ours), (peer, theirs), differs) = self;
        if differs == PART {
            let sent = theirs.count;
            let wanted = ours.count;
            let call = CallInfo { count: 0, dtype: None, ..*ours };
            return write!(
                f,
                "in {call} {peer} sends {sent} elements to rank {rank}, which expects {wanted}"
            );
        }
        write!(f, "{peer} called {theirs} while rank {rank} called {ours}")
    }
}

/// A call of this rank that came from another thread than the one before it.
pub(super) struct ChangedThread<'a>(pub(super) &'a Option<u64>);

impl fmt::Display for ChangedThread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(seq) = self.0 else { return Ok(()) };
        write!(
            f,
            "; on this rank threads share the group: call #{seq} came from another one than the call before it, so give threads that call at once a group each"
        )
    }
}

/// Ranks that a call waited for when it timed out.
pub(super) struct WaitedRanks<'a>(
    pub(super) &'a CallInfo,
    pub(super) &'a [Peer],
    pub(super) Option<&'a [Peer; 2]>,
);

impl fmt::Display for WaitedRanks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.2, self.1) {
            (Some([waits, other]), _) => {
                write!(f, "all ranks have called it, but nothing moves between {waits} and {other}")
            }
            (None, []) => f.write_str("all ranks have called it, but it did not end"),
            // Calls between two ranks alone have no number.
            (None, named) if self.0.seq == 0 => match self.0.root {
                Some(other) if named.iter().all(|p| p.rank != other) => {
                    write!(f, "it was waiting for rank {other}, which waits for {}", Peers(named))
                }
                _ => write!(f, "it was waiting for {}", Peers(named)),
            },
            (None, _) => write!(f, "{} had not called it", Peers(self.1)),
        }
    }
}

pub(super) struct Crossings<'a>(pub(super) &'a [CrossedWait]);

impl fmt::Display for Crossings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0 {
            let group = if c.elsewhere { " of another group" } else { "" };
            write!(f, "; rank {} waited for this one in {}{group}", c.peer.rank, c.call)?;
        }
        Ok(())
    }
}

struct Peers<'a>(&'a [Peer]);

impl fmt::Display for Peers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.0.iter().enumerate() {
            write!(f, "{}{p}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
