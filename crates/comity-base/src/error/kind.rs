//! Kinds of errors, with the ranks, calls and limits of each.

use super::{ConfigError, CrossedWait, Error, JoinError, Misuse, OsError, Peer};
use crate::CallInfo;
use std::time::Duration;

/// Kind of a failure, and its particulars. [`Error::kind`] returns it, and `Error::from` makes an error of it.
///
/// ```
/// use comity::{Error, ErrorKind};
///
/// fn explain(e: &Error) -> String {
///     match e.root().kind() {
///         ErrorKind::PeerLost { peer, .. } => format!("{peer} is gone"),
///         ErrorKind::Timeout { waiting_for, .. } => format!("{} ranks are late", waiting_for.len()),
///         other => other.to_string(),
///     }
/// }
/// assert_eq!(explain(&ErrorKind::Closed.into()), "the group is closed on this rank");
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The configuration is incomplete or contradicts itself. Nothing was connected.
    #[error("configuration: {0}")]
    Config(#[source] ConfigError),

    /// The backend cannot run here: its library, device or permission is missing.
    #[error("{backend} is not available: {reason}")]
    Unavailable {
        /// Name of the backend or link.
        backend: &'static str,
        /// Missing part, the places searched, and the remedy.
        reason: String,
    },

    /// The caller broke a rule it could have checked. No byte moved; the group is unharmed.
    #[error("{op}: {misuse}")]
    Misuse {
        /// The operation called.
        op: crate::Op,
        /// The rule.
        misuse: Misuse,
    },

    /// A wait that could never end: background work waits for later work of the same group. Nothing moved.
    #[error(
        "background work of a group cannot wait for a later request of the same group, which runs after it; wait outside, or make the call inside"
    )]
    Order,

    /// Not all ranks came together in time.
    #[error("{0}")]
    Join(#[source] JoinError),

    /// Two ranks made different calls, or the same call with other arguments.
    #[error("ranks disagree in {differs}: {}{}; make the same calls with the same arguments in the same order on every rank", calls(*.rank, .ours, .peer, .theirs, .differs), changed_thread(*.threads))]
    Mismatch {
        /// The rank that saw it, by its number in the group; every rank gets the same error.
        rank: usize,
        /// Its call.
        ours: CallInfo,
        /// The other rank.
        peer: Peer,
        /// Its call.
        theirs: CallInfo,
        /// First difference: "dtype", "count", ...
        differs: &'static str,
        /// Number of the group's latest call, shortly before, that came from another thread than the
        /// call before it. Each rank says it of itself.
        threads: Option<u64>,
    },

    /// The operation did not finish in time.
    #[error("{call} timed out after {after:?} on rank {rank}: {}{}; {} or raise COMITY_TIMEOUT, or the limit of this group or call, if it is only slow (none: as long as all ranks live)", waited_ranks(.call, .waiting_for, .stalled.as_ref()), crossings(.crossed), advice(.waiting_for, .stalled.is_some()))]
    Timeout {
        /// The rank whose limit passed; every rank that waited gets the same error.
        rank: usize,
        /// The call.
        call: CallInfo,
        /// The limit that passed.
        after: Duration,
        /// The ranks that had not made the call, never the one that reads this; of a call between two ranks, the other one.
        waiting_for: Vec<Peer>,
        /// If all had made it: the two between which nothing moves, first the one that waits. Those of them that do not read this are in
        /// `waiting_for` as well.
        stalled: Option<[Peer; 2]>,
        /// Ranks that waited for this rank, in calls that it has not come to; empty on other ranks than `rank`.
        crossed: Vec<CrossedWait>,
    },

    /// A member's process or link is gone.
    #[error("{peer} {cause}{}{}{}; look at that rank's last output, then restart the job (`comity launch --max-restarts`) or call the group's reform", witness(*.seen_by), if *.left && .call.is_some() { "," } else { "" }, during(.call.as_ref()))]
    PeerLost {
        /// The member.
        peer: Peer,
        /// Observation, as the rest of a sentence: "closed its connections".
        cause: String,
        /// The members on whose account it gave up, where it said so; mostly empty.
        because_of: Vec<usize>,
        /// Another member that saw it and told this one; None where this rank saw it itself.
        seen_by: Option<usize>,
        /// True if it closed the group in good order, and a call still needed it.
        left: bool,
        /// Call under way on this rank.
        call: Option<CallInfo>,
    },

    /// Another rank reported a failure that this rank did not see itself.
    #[error("{by} gave up the group: {reason}{}; mend that, then restart the job or call the group's reform", during(.call.as_ref()))]
    Aborted {
        /// Rank that reported it.
        by: Peer,
        /// Its words.
        reason: String,
        /// Call under way on this rank.
        call: Option<CallInfo>,
    },

    /// A library outside this project said no.
    #[error("{library}: {message} (code {code})")]
    Library {
        /// Name of the library.
        library: &'static str,
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },

    /// The operating system refused something this process needs.
    #[error("{0}")]
    Os(#[source] OsError),

    /// An earlier failure left the group unusable; this is that failure.
    #[error("the group failed earlier: {0}")]
    Broken(#[source] Error),

    /// This handle's group was closed by this process.
    #[error("the group is closed on this rank")]
    Closed,

    /// This process was forked from one that is in a job. It has neither the connections of that one nor its place.
    #[error(
        "the group belongs to process {home}, and process {process} was forked from it: a forked child cannot use its parent's connections, nor join in its parent's place; start it anew instead (exec; in Python the multiprocessing method \"spawn\"), or make the group after the fork"
    )]
    Forked {
        /// The process that is in the job.
        home: u32,
        /// This process.
        process: u32,
    },
}

/// Names of files and values of variables come from strangers at times, and errors go to terminals.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect()
}

/// Difference in an all_to_all: the size of the part that a rank sends another, and the size that the other expects.
pub const PART: &str = "the size of a part";

fn witness(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" (seen by rank {rank})"))
}

fn during(call: Option<&CallInfo>) -> String {
    call.map_or_else(String::new, |call| format!(" during {call}"))
}

fn advice(named: &[Peer], stalled: bool) -> &'static str {
    match (stalled, named) {
        (true, _) => "look at the network between those two,",
        (false, []) => "look at the load of the hosts,",
        (false, [_]) => "look at what that rank does,",
        (false, _) => "look at what those ranks do,",
    }
}

/// Two calls that do not fit.
fn calls(rank: usize, ours: &CallInfo, peer: &Peer, theirs: &CallInfo, differs: &str) -> String {
    if differs == PART {
        let sent = theirs.count;
        let wanted = ours.count;
        let call = CallInfo { count: 0, dtype: None, ..*ours };
        return format!("in {call} {peer} sends {sent} elements to rank {rank}, which expects {wanted}");
    }
    format!("{peer} called {theirs} while rank {rank} called {ours}")
}

/// A call of this rank that came from another thread than the one before it.
fn changed_thread(seq: Option<u64>) -> String {
    seq.map_or_else(String::new, |seq| format!(
        "; on this rank threads share the group: call #{seq} came from another one than the call before it, so give threads that call at once a group each"
    ))
}

/// Ranks that a call waited for when it timed out.
fn waited_ranks(call: &CallInfo, named: &[Peer], stalled: Option<&[Peer; 2]>) -> String {
    let all = named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (stalled, named) {
        (Some([waits, other]), _) => {
            format!("all ranks have called it, but nothing moves between {waits} and {other}")
        }
        (None, []) => "all ranks have called it, but it did not end".into(),
        // Calls between two ranks alone have no number.
        (None, named) if call.seq == 0 => match call.root {
            Some(other) if named.iter().all(|p| p.rank != other) => {
                format!("it was waiting for rank {other}, which waits for {all}")
            }
            _ => format!("it was waiting for {all}"),
        },
        (None, _) => format!("{all} had not called it"),
    }
}

fn crossings(crossed: &[CrossedWait]) -> String {
    let words = |c: &CrossedWait| {
        let group = if c.elsewhere { " of another group" } else { "" };
        format!("; rank {} waited for this one in {}{group}", c.peer.rank, c.call)
    };
    crossed.iter().map(words).collect()
}
