//! Bytes between two ranks: a folder for each transport, and the table that lists them.
//!
//! A folder holds all that is known of its transport: what a rank announces of it, which pairs it leads to, how the higher rank of a
//! pair connects and the lower one accepts, its settings, what `comity info` prints, and the [`Link`] itself. To add one, write
//! `src/NAME/mod.rs` with a type that implements [`Transport`], and add its line to the table in this file.
//! [`LinkKind`], `COMITY_LINKS`, the rendezvous, the judge of connections and `comity info` then have it.
//!
//! ```text
//!   before ranks meet   read, check     its settings
//!                       find            whether this process can use it; announce: what the others hear of it
//!   when they have met  meet            what the others announced
//!   for each pair       leads           whether it leads there; the first one in the table that does is tried, then the next
//!     the higher rank   connect         Connected::Link, or Not, and why
//!     the lower rank    accept          when all connections of the link have come
//! ```
//! The maker of links fills in the way to connect and to wait ([`Connector`]); a transport knows nothing of groups, failures or the store.
//!
//! **An internal crate: nothing here is a promise.** Use `comity`.

#![doc(hidden)]

mod address_book;
mod candidates;
mod card;
#[cfg(test)]
pub mod conformance;
mod link;
mod socket;

pub use address_book::AddressBook;
pub use candidates::{Candidate, Candidates, InterfaceRules};
pub use card::{Announced, Card, MAX_ADDRS, OwnAddr, Pair};
pub use link::{Interest, Lending, Link, LinkError, LinkProgress, LinkProperties, NAP, SMALL_WANT, Stays};
#[cfg(fuzzing)]
pub use tcp::fuzz::frame;

use crate::channel::{Miss, Refusal, Sealing, Stream, Target};
#[cfg(fuzzing)]
use comity_base::fuzz_input;
// Rooms of the crates below, so that a path says the room and not the crate.
use comity_base::{ConfigError, Error, ErrorKind, MAX_SIZE, Result, address, sync, sys};
use comity_channel as channel;
use std::{
    fmt, io,
    os::{fd::BorrowedFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

/// A kind of link as a process has it. Functions without `self` answer without a process.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Settings that a user may choose; `()` where there are none.
    type Settings: Clone + Default + fmt::Debug
    where
        Self: Sized;

    /// Returns the properties that hold everywhere.
    fn about() -> About
    where
        Self: Sized;

    /// Take what variables say of its settings.
    fn read(_: &mut Self::Settings, _: &dyn Variables) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Checks its settings, in a job of `size` ranks.
    fn check(_: &Self::Settings, _size: usize) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Returns the report for `comity info`.
    fn note(_: &Self::Settings, seen: Seen<'_>) -> TransportInfo
    where
        Self: Sized;

    /// It, if this process can use it in this job.
    fn find(_: &Self::Settings, job: &JobInfo) -> Result<Option<Self>>
    where
        Self: Sized;

    /// Returns its announcement to the others, at most 72 bytes, besides that this process can use it.
    fn announce(&self) -> Vec<u8> {
        Vec::new()
    }

    /// All have met: by rank what each said of itself. This one is `me`.
    fn meet(&mut self, _me: usize, _cards: &[Card]) {}

    /// Checks that it leads to the other rank of a pair in which both can use it; the reason if not.
    fn leads(&self, pair: &Pair<'_>) -> Result<(), String>;

    /// A link of what the pair has between it already.
    fn existing(&self, _: &Pair<'_>) -> Option<NewLink> {
        None
    }

    /// Make a link with the lower rank of a pair.
    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Attempt;

    /// Make a link with the higher rank of a pair, which has made all its connections. [`Connected::Not`]: it will come another way.
    fn accept(&self, pair: &Pair<'_>, connections: Vec<Connection>, connector: &dyn Connector) -> Attempt;
}

/// Properties of a transport that hold everywhere.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Pairs may use it where no user has chosen kinds of link.
    pub by_default: bool,
    /// It links processes, so users may choose it.
    pub between_processes: bool,
    /// Its connections come over the host's own socket; else over TCP.
    pub within_host: bool,
    /// Both ranks see the same memory, which is what plans within a host reckon with, and its links read buffers where they lie that the
    /// sender's process lets them map.
    pub shares_memory: bool,
    /// Its traffic stays on the host, or is encrypted where the job wants that.
    pub is_private: bool,
    /// The name of the backend that takes it before all others, where users know one.
    pub first_for: Option<&'static str>,
}

impl About {
    /// Connections between any two processes, which nobody else can read.
    pub(crate) const PRIVATE: Self = Self {
        by_default: true,
        between_processes: true,
        within_host: false,
        shares_memory: false,
        is_private: true,
        first_for: None,
    };
}

/// A link, or what this process lacked for it.
pub type NewLink = io::Result<Box<dyn Link>>;

/// An authenticated connection, and what seals it.
pub type Connection = (Stream, Sealing);

/// Result of trying to make a link.
#[derive(Debug)]
pub enum Connected {
    Link(NewLink),
    /// None this way, for this reason; the next transport may do.
    Not(String),
}

/// Result of a try to make a link.
pub type Attempt = Result<Connected, Missed>;

/// Nobody was reached, and no other transport would help.
#[derive(Debug)]
pub struct Missed {
    /// Address that was tried, in words.
    pub at: String,
    pub miss: Miss,
}

/// Make a link over a connection to the lower rank of a pair, at the socket of their host.
pub(crate) fn connect_within_host(
    pair: &Pair<'_>,
    connector: &dyn Connector,
    make: impl FnOnce(UnixStream) -> NewLink,
) -> Attempt {
    match connector.dial(Target::Unix(pair.theirs.unix.clone()), 0, 1) {
        Ok((Stream::Unix(stream), _)) => Ok(Connected::Link(make(stream))),
        Ok((Stream::Tcp(_), _)) => Ok(Connected::Not("its host's socket is none".into())),
        Err(miss @ (Miss::Nowhere(_) | Miss::Refused(Refusal::No(_)))) => {
            Ok(Connected::Not(miss.to_string()))
        }
        Err(miss) => Err(Missed { at: "its socket on this host".into(), miss }),
    }
}

/// The connection over the socket of their host with which the higher rank of a pair came.
pub(crate) fn within_host(connections: Vec<Connection>) -> Result<UnixStream, Connected> {
    let mut streams = connections.into_iter().filter_map(|(stream, _)| match stream {
        Stream::Unix(stream) => Some(stream),
        Stream::Tcp(_) => None,
    });
    streams.next().ok_or_else(|| Connected::Not("it brought no socket of this host".into()))
}

/// Returns `comity info`'s report on a transport that leads to the ranks of this host.
pub(crate) fn info_of_host(seen: Seen<'_>) -> TransportInfo {
    let name = seen("COMITY_HOST").map_or_else(String::new, |h| format!(" (those that say COMITY_HOST={h})"));
    TransportInfo { works: true, why: format!("with ranks of this host{name}"), devices: Vec::new() }
}

/// Way of a transport to the other rank of a pair, to connect and to wait.
pub trait Connector {
    /// Connect to the lower rank of the pair, for connection `index` of `of` that make the link.
    fn dial(&self, target: Target, index: u16, of: u16) -> Result<Connection, Miss>;

    /// Connects as [`dial`](Self::dial), side by side: once to each of `targets`, for the connections from `first` on of `of`.
    fn dial_all(&self, targets: &[Target], first: u16, of: u16) -> Result<Vec<Connection>, Miss>;

    /// Returns the shortest round trip that the system has seen between the two ranks; none within a host, where a third rank passes on what
    /// they say, and where the system does not tell.
    fn round_trip(&self) -> Option<Duration>;

    /// The addresses of the lower rank that lead there, the best first; none where a third rank passes on what the two say.
    fn candidates(&self) -> Candidates;

    /// Returns the indices of those `targets` that take a connection now.
    fn answering(&self, targets: &[Target]) -> Result<Vec<usize>, Miss>;

    /// Connects as [`dial`](Self::dial), to whichever of `targets` answers first, tried side by side; where none does, through another rank. `vain`
    /// gives the reasons that other addresses lead nowhere.
    fn reach(&self, targets: &[Target], vain: &[String], index: u16, of: u16) -> Result<Connection, Miss>;

    /// Wait until `fd` is readable (true) or a time has come (false); an error ends the whole.
    fn wait(&self, fd: BorrowedFd<'_>, until: Instant) -> Result<bool>;

    /// When the link must stand.
    fn until(&self) -> Instant;
}

/// Facts about the job that a process has before the ranks have met.
#[derive(Debug)]
pub struct JobInfo {
    pub rank: usize,
    pub size: usize,
    /// Traffic that leaves the host must be encrypted.
    pub sealed: bool,
    /// The backend that goes before all else over one kind of link, which then must be there.
    pub wanted: Option<(LinkKind, &'static str)>,
}

/// The environment, as settings are read from it.
pub trait Variables {
    /// The value of a variable that is set.
    fn text(&self, name: &'static str) -> Result<Option<String>>;

    /// The same of a whole number up to `most`.
    fn number(&self, name: &'static str, most: usize) -> Result<Option<usize>>;

    /// Returns the error for a value that cannot be used, and why, as the rest of the sentence "NAME=value ...".
    fn refusal(&self, name: &str, value: &str, why: &str) -> Error;
}

/// The value of a variable that was set when the configuration was read.
pub type Seen<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Report of `comity info` on a transport.
#[derive(Debug)]
pub struct TransportInfo {
    /// True if it can be used on this host.
    pub works: bool,
    /// With whom, or why not.
    pub why: String,
    pub devices: Vec<DeviceNote>,
}

/// A device: its name, and its address or why it cannot be used.
pub type DeviceNote = (String, Result<String, String>);

/// Makes a module, a [`LinkKind`] and settings of each line of the table in `lib.rs`.
macro_rules! transports {
    ($($folder:ident => $Kind:ident = $wire:literal, $name:literal, $medium:literal: $about:literal;)*) => {
        $(pub mod $folder;)*

        /// The kind of a link between two ranks: which medium carries its bytes.
        ///
        /// ```
        /// use comity::LinkKind;
        ///
        /// assert_eq!(LinkKind::Shm.name(), "shm");
        /// assert_eq!(LinkKind::from_name("tcp"), Some(LinkKind::Tcp));
        /// assert_eq!(LinkKind::Rdma.to_string(), "rdma");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum LinkKind {
            $(#[doc = $about] $Kind,)*
            /// Whatever MPI chose.
            Mpi,
        }

        impl LinkKind {
            /// Kinds of the table, in the order in which pairs prefer them.
            pub const LISTED: &'static [Self] = &[$(Self::$Kind,)*];

            /// The name in reports, flags and variables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Kind => $name,)*
                    Self::Mpi => "mpi",
                }
            }

            /// The medium, as it stands in sentences.
            pub const fn medium(self) -> &'static str {
                match self {
                    $(Self::$Kind => $medium,)*
                    Self::Mpi => "MPI",
                }
            }

            /// The number of a listed kind between processes.
            pub const fn wire(self) -> Option<u8> {
                match self {
                    $(Self::$Kind => Some($wire),)*
                    Self::Mpi => None,
                }
            }

            /// Returns the properties that hold everywhere, if it is listed.
            pub fn about(self) -> Option<About> {
                match self {
                    $(Self::$Kind => Some(<$folder::$Kind as Transport>::about()),)*
                    Self::Mpi => None,
                }
            }
        }

        /// Settings of each transport that users may choose.
        #[derive(Clone, Debug, Default)]
        pub struct TransportSettings {
            $(pub(crate) $folder: <$folder::$Kind as Transport>::Settings,)*
        }

        impl TransportSettings {
            /// Take what variables say.
            pub fn read(&mut self, vars: &dyn Variables) -> Result<()> {
                $(<$folder::$Kind as Transport>::read(&mut self.$folder, vars)?;)*
                Ok(())
            }

            /// Checks the settings, in a job of `size` ranks.
            pub fn check(&self, size: usize) -> Result<()> {
                $(<$folder::$Kind as Transport>::check(&self.$folder, size)?;)*
                Ok(())
            }

            /// Returns `comity info`'s report on a kind that is listed.
            pub fn note(&self, kind: LinkKind, seen: Seen<'_>) -> Option<TransportInfo> {
                match kind {
                    $(LinkKind::$Kind => Some(<$folder::$Kind as Transport>::note(&self.$folder, seen)),)*
                    LinkKind::Mpi => None,
                }
            }
        }

        impl Transports {
            /// Finds the transports of the `allowed` kinds that this process can use.
            pub fn find(allowed: Kinds, settings: &TransportSettings, job: &JobInfo) -> Result<Self> {
                let mut all = Self::default();
                $(if allowed.has(LinkKind::$Kind)
                    && let Some(found) = <$folder::$Kind as Transport>::find(&settings.$folder, job)?
                {
                    all.0.push((LinkKind::$Kind, Box::new(found)));
                })*
                Ok(all)
            }
        }

        #[cfg(test)]
        const FOLDERS: &[&str] = &[$(stringify!($folder),)*];
    };
}

// In the order in which pairs prefer them: folder => kind = number on the wire, word in settings, medium in sentences: documentation. The type
// in the folder that is the transport has the kind's name. The next number is 5 (whoever takes it writes
// the next one here); one that was given away is never another's.
transports! {
    local => Local = 0, "local", "memory of one process": "Threads of one process.";
    shm => Shm = 1, "shm", "shared memory": "Processes of one host, over shared memory.";
    unix => Unix = 4, "unix", "Unix sockets": "Processes of one host, over Unix sockets.";
    verbs => Rdma = 3, "rdma", "RDMA": "RDMA verbs: InfiniBand, RoCE, Thunderbolt.";
    tcp => Tcp = 2, "tcp", "TCP": "TCP connections.";
}

impl LinkKind {
    /// The kind of this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::LISTED.iter().copied().chain([Self::Mpi]).find(|k| k.name() == name)
    }

    /// The listed kind of this number.
    pub fn from_wire(wire: u8) -> Option<Self> {
        Self::LISTED.iter().copied().find(|k| k.wire() == Some(wire))
    }

    /// Returns the kinds that link processes, so that users may choose among them.
    pub fn choices() -> impl Iterator<Item = Self> {
        Self::LISTED.iter().copied().filter(|k| k.about().is_some_and(|a| a.between_processes))
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some of the listed kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u32);

impl Kinds {
    /// Returns the kinds that pairs may use where no user has chosen.
    pub fn usual() -> Self {
        LinkKind::choices().filter(|k| k.about().is_some_and(|a| a.by_default)).collect()
    }

    pub fn has(self, kind: LinkKind) -> bool {
        kind.wire().is_some_and(|n| self.0 >> n & 1 == 1)
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub fn iter(self) -> impl Iterator<Item = LinkKind> {
        LinkKind::LISTED.iter().copied().filter(move |k| self.has(*k))
    }
}

impl FromIterator<LinkKind> for Kinds {
    fn from_iter<I: IntoIterator<Item = LinkKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().filter_map(LinkKind::wire).fold(0, |set, n| set | 1 << n))
    }
}

/// Transports that a process has opened, in the table's order.
#[derive(Debug, Default)]
pub struct Transports(Vec<(LinkKind, Box<dyn Transport>)>);

impl Transports {
    /// Returns their announcement to the others.
    pub fn announce(&self) -> Announced {
        self.0.iter().map(|(kind, t)| (*kind, t.announce())).collect()
    }

    /// All have met.
    pub fn meet(&mut self, me: usize, cards: &[Card]) {
        self.0.iter_mut().for_each(|(_, t)| t.meet(me, cards));
    }

    pub fn kinds(&self) -> Kinds {
        self.0.iter().map(|(kind, _)| *kind).collect()
    }

    pub fn get(&self, kind: LinkKind) -> Option<&dyn Transport> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, t)| &**t)
    }

    pub fn iter(&self) -> impl Iterator<Item = (LinkKind, &dyn Transport)> {
        self.0.iter().map(|(kind, t)| (*kind, &**t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut there: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|f| f.unwrap().path())
            .filter(|f| f.join("mod.rs").exists())
            .map(|f| f.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut listed: Vec<_> = FOLDERS.iter().map(|f| (*f).to_owned()).collect();
        there.sort();
        listed.sort();
        assert_eq!(there, listed, "a folder in {folder} without its line in the table does nothing");
    }

    #[test]
    fn words_and_numbers_are_one_kind_each() {
        for &kind in LinkKind::LISTED {
            assert_eq!(LinkKind::from_name(kind.name()), Some(kind));
            assert_eq!(kind.wire().and_then(LinkKind::from_wire), Some(kind));
            assert_eq!(Kinds::from_iter([kind]).iter().collect::<Vec<_>>(), [kind]);
        }
        assert_eq!(LinkKind::from_name("mpi"), Some(LinkKind::Mpi));
        assert!(Kinds::from_iter([LinkKind::Mpi]).is_empty() && LinkKind::from_wire(u8::MAX).is_none());
    }
}
