//! The one error type, sorted by who is to blame.

use crate::{CallInfo, DType, ReduceOp};
use std::{fmt, sync::Arc, time::Duration};

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// Cloneable, because every later call on a failed group gets the root cause.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration is incomplete or contradicts itself. Nothing was connected.
    #[error("configuration: {}", Printable(.0))]
    Config(String),

    /// The backend cannot run here: its library, device or permission is missing.
    #[error("{backend} is not available: {reason}")]
    Unavailable {
        /// Which backend or link.
        backend: &'static str,
        /// What is missing, where it was looked for, and what mends it.
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
    Join(String),

    /// Two ranks made different calls, or the same call with other arguments.
    #[error("ranks disagree in {differs}: {}; make the same calls with the same arguments in the same order on every rank", Calls((*.rank, .ours), (.peer, .theirs), .differs))]
    Mismatch {
        /// The rank that saw it, by its number in the group; every rank gets the same error.
        rank: usize,
        /// Its call.
        ours: CallInfo,
        /// The other rank.
        peer: Peer,
        /// Its call.
        theirs: CallInfo,
        /// What differs first: "dtype", "count", ...
        differs: &'static str,
    },

    /// The operation did not finish in time.
    #[error("{call} timed out after {after:?} on rank {rank}: {}{}; {} or raise the limit with Group::timeout or COMITY_TIMEOUT if it is only slow", Waited(.call, .waiting_for, .stalled.as_ref()), Crossings(.crossed), advice(.waiting_for, .stalled.is_some()))]
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
        /// Those who waited for this rank, in calls that it has not come to; empty on other ranks than `rank`.
        crossed: Vec<Crossed>,
    },

    /// A member's process or link is gone.
    #[error("{peer} {cause}{}; look at that rank's last output, then restart the job", During(.call))]
    PeerLost {
        /// The member.
        peer: Peer,
        /// What was seen, as the rest of a sentence: "closed its connections".
        cause: String,
        /// What this rank was doing.
        call: Option<CallInfo>,
    },

    /// Another rank reported a failure that this rank did not see itself.
    #[error("{by} gave up the group: {reason}{}; mend that, then restart the job", During(.call))]
    Aborted {
        /// Who reported it.
        by: Peer,
        /// Its words.
        reason: String,
        /// What this rank was doing.
        call: Option<CallInfo>,
    },

    /// A library outside this project said no.
    #[error("{library}: {message} (code {code})")]
    Library {
        /// Which one.
        library: &'static str,
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },

    /// The operating system refused something this process needs.
    #[error("{what}: {message}")]
    Os {
        /// What was tried.
        what: String,
        /// The system's words.
        message: String,
    },

    /// An earlier failure left the group unusable; this is that failure.
    #[error("the group failed earlier: {0}")]
    Broken(Arc<Self>),

    /// This handle's group was closed by this process.
    #[error("the group is closed on this rank")]
    Closed,
}

/// The same sentence as `Display`: it is what a `main` that returns the error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Whether the group is unusable after this error, or was never made: true for all but `Misuse`, `Order`, `Config` and
    /// `Unavailable`.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Config(_) | Self::Unavailable { .. } | Self::Misuse { .. } | Self::Order)
    }

    /// The first failure: what is inside [`Error::Broken`], else the error itself.
    pub fn root(&self) -> &Self {
        match self {
            Self::Broken(e) => e.root(),
            e => e,
        }
    }

    pub(crate) fn os(what: impl Into<String>, e: impl fmt::Display) -> Self {
        let mut message = e.to_string();
        // EMFILE and ENFILE, on every system.
        if message.ends_with("(os error 24)") {
            let most = most_files().map_or_else(String::new, |n| format!(" may have {n} and"));
            message += &format!("; this process{most} needs more: raise `ulimit -n` where it is started");
        } else if message.ends_with("(os error 23)") {
            message += "; this host has too few for all its processes: raise fs.file-max, or end some";
        }
        Self::Os { what: what.into(), message }
    }
}

/// How many descriptors this process may have.
fn most_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// "60 s", "0.5 s".
pub(crate) fn seconds(d: Duration) -> String {
    format!("{} s", d.as_millis() as f64 / 1000.0)
}

/// A member of a group, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its rank in the group of the call.
    pub rank: usize,
    /// Its host name, where known.
    pub host: Option<Arc<str>>,
    /// Its process id, where known.
    pub pid: Option<u32>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        match (&self.host, self.pid) {
            (Some(h), Some(p)) => write!(f, " (host {h}, pid {p})"),
            (Some(h), None) => write!(f, " (host {h})"),
            (None, Some(p)) => write!(f, " (pid {p})"),
            (None, None) => Ok(()),
        }
    }
}

/// A rank that was waited for, while it waited for the one that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// The rank, as in the group of the error.
    pub peer: Peer,
    /// The call in which it waited.
    pub call: CallInfo,
    /// That call is one of another group, with its own numbers of ranks and calls.
    pub elsewhere: bool,
}

/// A rule the caller broke.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A buffer has the wrong number of elements.
    #[error("the {buffer} holds {got} elements, expected {expected}{why}")]
    Length {
        /// Which buffer: "source" or "destination".
        buffer: &'static str,
        /// What the rule asks.
        expected: usize,
        /// What was given.
        got: usize,
        /// The rule, as the rest of the sentence; may be empty.
        why: &'static str,
    },
    /// Two buffers of one call have different types.
    #[error("the source is {src} and the destination {dst}; they must be the same")]
    DTypes {
        /// Of the source.
        src: DType,
        /// Of the destination.
        dst: DType,
    },
    /// The reduction is not defined on this type.
    #[error("{reduce} is not defined on {dtype}")]
    Reduction {
        /// The reduction.
        reduce: ReduceOp,
        /// The type.
        dtype: DType,
    },
    /// No such rank.
    #[error("{what} {rank} is not in a group of {size} (ranks 0 to {})", .size - 1)]
    Rank {
        /// "root", "destination" or "source".
        what: &'static str,
        /// The rank asked for.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of members that no group can have.
    #[error(
        "the members must be ranks of a group of {size}, each once, and rank {rank}, which calls, among them"
    )]
    Members {
        /// This rank.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of counts has the wrong length.
    #[error("{got} counts were given for {size} ranks")]
    Counts {
        /// Entries given.
        got: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// Sends and receives to oneself.
    #[error("rank {0} cannot {1} itself")]
    Oneself(usize, &'static str),
    /// A negative color.
    #[error("color {0} is negative; use a color >= 0, or split_opt with None to stay out")]
    Color(i32),
    /// A tag outside the range for users.
    #[error("tag {0} is above {max}", max = crate::MAX_TAG)]
    Tag(u32),
    /// Two buffers of one call are in different places.
    #[error(
        "the source is in {0} and the destination in {1}; they must be in the same memory, on the same stream"
    )]
    Places(String, String),
    /// Memory this backend cannot reach.
    #[error(
        "the buffer lives in {0}, which this group does not reach; copy it to host memory, or use the nccl backend and its device (Group::device)"
    )]
    Place(String),
}

/// Names of files and values of variables come from strangers at times, and errors go to terminals.
struct Printable<'a>(&'a str);

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

struct During<'a>(&'a Option<CallInfo>);

impl fmt::Display for During<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |c| write!(f, " during {c}"))
    }
}

/// What differs in an all_to_all: what one rank sends another, and what that one expects.
pub(crate) const PART: &str = "the size of a part";

/// What to do about a call that timed out.
fn advice(named: &[Peer], stalled: bool) -> &'static str {
    match (stalled, named) {
        (true, _) => "look at the network between those two,",
        (false, []) => "look at the load of the hosts,",
        (false, [_]) => "look at what that rank does,",
        (false, _) => "look at what those ranks do,",
    }
}

/// Two calls that do not fit.
struct Calls<'a>((usize, &'a CallInfo), (&'a Peer, &'a CallInfo), &'a str);

impl fmt::Display for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self((rank, ours), (peer, theirs), differs) = self;
        if differs == PART {
            let (sent, wanted, call) =
                (theirs.count, ours.count, CallInfo { count: 0, dtype: None, ..*ours });
            return write!(
                f,
                "in {call} {peer} sends {sent} elements to rank {rank}, which expects {wanted}"
            );
        }
        write!(f, "{peer} called {theirs} while rank {rank} called {ours}")
    }
}

/// What a call that timed out waited for.
struct Waited<'a>(&'a CallInfo, &'a [Peer], Option<&'a [Peer; 2]>);

impl fmt::Display for Waited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.2, self.1) {
            (Some([waits, other]), _) => {
                write!(f, "all ranks have called it, but nothing moves between {waits} and {other}")
            }
            (None, []) => f.write_str("all ranks have called it, but it did not end"),
            // Calls between two ranks alone have no number.
            (None, _) if self.0.seq == 0 => write!(f, "it was waiting for {}", Peers(self.1)),
            (None, _) => write!(f, "{} had not called it", Peers(self.1)),
        }
    }
}

struct Crossings<'a>(&'a [Crossed]);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    /// What a user reads first is what happened, and last what to do.
    #[test]
    fn errors_end_with_what_to_do_next() {
        let peer = Peer { rank: 2, host: Some("m3".into()), pid: Some(4711) };
        let call = CallInfo { seq: 7, root: Some(1), ..CallInfo::new(Op::Broadcast) };
        let lost = Error::PeerLost { peer: peer.clone(), cause: "died".into(), call: Some(call) };
        assert_eq!(
            lost.to_string(),
            "rank 2 (host m3, pid 4711) died during broadcast #7 root 1; look at that rank's last output, then restart the job"
        );
        let aborted = Error::Aborted { by: peer.clone(), reason: "no space left".into(), call: None };
        assert_eq!(
            aborted.to_string(),
            "rank 2 (host m3, pid 4711) gave up the group: no space left; mend that, then restart the job"
        );
        let theirs = CallInfo { root: Some(0), ..call };
        let mismatch = Error::Mismatch { rank: 0, ours: call, peer: peer.clone(), theirs, differs: "root" };
        assert_eq!(
            mismatch.to_string(),
            "ranks disagree in root: rank 2 (host m3, pid 4711) called broadcast #7 root 0 while rank 0 called broadcast #7 root 1; \
             make the same calls with the same arguments in the same order on every rank"
        );
        let after = Duration::from_secs(5);
        let waiting_for = vec![peer.clone()];
        let crossed =
            vec![Crossed { peer, call: CallInfo { seq: 3, ..CallInfo::new(Op::Barrier) }, elsewhere: true }];
        let late = Error::Timeout { rank: 0, call, after, waiting_for, stalled: None, crossed };
        assert_eq!(
            late.to_string(),
            "broadcast #7 root 1 timed out after 5s on rank 0: rank 2 (host m3, pid 4711) had not called it; \
             rank 2 waited for this one in barrier #3 of another group; look at what that rank does, or raise the limit with Group::timeout or COMITY_TIMEOUT if it is only slow"
        );
        let later = Error::Broken(Arc::new(late.clone()));
        assert_eq!((later.to_string(), later.root()), (format!("the group failed earlier: {late}"), &late));
    }

    #[test]
    fn what_goes_to_a_terminal_cannot_steer_it() {
        let e = Error::Config("file \u{1b}[2J\n of ü: wrong\u{7}".into());
        assert_eq!(e.to_string(), "configuration: file \\u{1b}[2J\\n of ü: wrong\\u{7}");
        assert_eq!(Error::Config("plain".into()).to_string(), "configuration: plain");
    }
}
