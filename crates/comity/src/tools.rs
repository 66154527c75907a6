//! Functions for the command `comity`, the Python package and the tests of this project, which programs do not need.
//!
//! **No promise of stability.** Anything here may change or go in any release, also in one that changes nothing else that is
//! public. `comity-cli` and `comity-py` are released with `comity` and ask for exactly its version. If you build a launcher or a
//! reader of flight records on this module, ask for one version too: `comity = "=0.1.0"`.
//!
//! | for | items |
//! |---|---|
//! | a launcher | [`Store`], at which its ranks meet; [`Sheet`], [`Tally`] and [`LiveRank`], what a rank did and does in memory that both see |
//! | `comity info` | [`VARIABLES`], [`link_notes`], [`address_notes`], [`costs_note`], [`network_in_words`], [`lanes_in_words`], [`trust_in_words`] |
//! | `comity check`, `comity bench` | [`hosts`], [`connections`], [`prefer_algorithm`], [`bytes_pulled`], [`bytes_in_lanes`]; memory of CUDA devices in [`cuda`] |
//! | the Python package and libcomity | [`HomeProcess`], which forked children are told from; [`ForeignCall`], a call with [`ForeignMemory`] and [`ForeignArgs`] |
//! | both | [`on_warning`], for a process whose program listens to no events |
//! | `comity report` | [`Flight`], a file that a rank writes when a group fails |

pub use crate::costs::CostsNote;
pub use crate::foreign::{ForeignArgs, ForeignCall, ForeignMemory};
pub use crate::recorder::{Flight, FlightCall, FlightState, LiveGroup, LivePath, LiveRank};
pub use crate::rendezvous::Store;
pub use crate::settings::{AddressNote, LinkNote, Topic, VARIABLES, Variable};
pub use crate::stats::{Sheet, Tally};
pub use crate::sys::HomeProcess;
#[cfg(target_os = "linux")]
pub use crate::sys::{peer_user, refused as refused_call};
use crate::{Algorithm, Config, Group};

/// Memory, streams and events of CUDA devices.
pub mod cuda {
    pub use crate::cuda::{Buffer, Cuda, copy, devices};
}

/// The host of each rank of a group of all ranks, numbered from 0 in order of first appearance: two hosts may have one name. None where its
/// backend does not know.
///
/// ```
/// assert_eq!(comity::tools::hosts(&comity::Group::single()), None);
/// # let groups = comity::Group::local(2)?;
/// assert_eq!(comity::tools::hosts(&groups[1]), Some(vec![0, 0]));
/// # Ok::<(), comity::Error>(())
/// ```
pub fn hosts(group: &Group) -> Option<Vec<usize>> {
    group.hosts()
}

/// Lists the use that this process would make of each kind of link, the preferred ones first, and the reasons.
///
/// ```
/// let notes = comity::tools::link_notes(&comity::Config::from_env()?);
/// assert!(notes.iter().any(|note| note.kind == comity::LinkKind::Tcp));
/// # Ok::<(), comity::Error>(())
/// ```
pub fn link_notes(config: &Config) -> Vec<LinkNote> {
    config.settings.link_notes()
}

/// The number of connections of the link to each rank of a group, by rank; `None` where none is made, and for the rank itself.
///
/// ```
/// assert!(comity::tools::connections(&comity::Group::single()).iter().all(Option::is_none));
/// ```
pub fn connections(group: &Group) -> Vec<Option<usize>> {
    group.connections()
}

/// The addresses of this host's interfaces, and which of them this process would use.
///
/// ```
/// for note in comity::tools::address_notes(&comity::Config::from_env()?) {
///     println!("{note:?}");
/// }
/// # Ok::<(), comity::Error>(())
/// ```
pub fn address_notes(config: &Config) -> Vec<AddressNote> {
    config.settings.address_notes()
}

/// A sentence: which ports and interfaces this process would use, and whether ranks may pass on what others say.
///
/// ```
/// let words = comity::tools::network_in_words(&comity::Config::from_env()?);
/// assert!(!words.is_empty());
/// # Ok::<(), comity::Error>(())
/// ```
pub fn network_in_words(config: &Config) -> String {
    config.settings.network_in_words()
}

/// Returns the costs that plans would be chosen by, and their source.
///
/// ```
/// let note = comity::tools::costs_note(&comity::Config::from_env()?);
/// # let _ = note;
/// # Ok::<(), comity::Error>(())
/// ```
pub fn costs_note(config: &Config) -> CostsNote {
    CostsNote::of(&config.settings.costs)
}

/// Has `tell` called with each warning of the library in this process, on the thread that has it; the answer is `false` where the
/// process has a subscriber of `tracing` already.
///
/// ```
/// assert!(comity::tools::on_warning(|words| eprintln!("comity: {words}")));
/// assert!(!comity::tools::on_warning(|_| ()));
/// ```
pub fn on_warning(tell: impl Fn(&str) + Send + Sync + 'static) -> bool {
    crate::warnings::on_warning(tell)
}

/// Returns the number of message bytes that this process has read in the memory of other ranks, so far.
///
/// ```
/// assert_eq!(comity::tools::bytes_pulled(), 0);
/// ```
pub fn bytes_pulled() -> u64 {
    crate::sys::bytes_pulled()
}

/// Number of bytes that ranks of this process have moved in lanes, each of them by one of several threads.
///
/// ```
/// println!("{} MiB in lanes", comity::tools::bytes_in_lanes() >> 20);
/// ```
pub fn bytes_in_lanes() -> u64 {
    crate::lanes::bytes_carried()
}

/// A sentence: with how many threads a rank moves a large message within its host.
///
/// ```
/// let words = comity::tools::lanes_in_words(&comity::Config::from_env()?);
/// assert!(words.contains("thread"));
/// # Ok::<(), comity::Error>(())
/// ```
pub fn lanes_in_words(config: &Config) -> String {
    config.settings.lanes_in_words()
}

/// A few words on the job's key, by which this rank would know the others. The key itself is not in them.
///
/// ```
/// let words = comity::tools::trust_in_words(&comity::Config::from_env()?);
/// assert!(!words.is_empty());
/// # Ok::<(), comity::Error>(())
/// ```
pub fn trust_in_words(config: &Config) -> &'static str {
    config.settings.trust_in_words()
}

/// Carry out the calls of `group` by `algorithm` from now on, where it can; with `None` again by the cheapest.
///
/// Every member says the same between the same calls, or the next call is [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch). Groups that
/// are split off later follow their configuration.
///
/// The answer is `false` where Comity does not choose the algorithm: over MPI and NCCL, and in a group of one.
///
/// ```
/// use comity::{Algorithm, Group, tools::prefer_algorithm};
///
/// let groups = Group::local(2)?;
/// assert!(groups.iter().all(|group| prefer_algorithm(group, Some(Algorithm::Ring))));
/// assert!(!prefer_algorithm(&Group::single(), Some(Algorithm::Ring)));
/// # Ok::<(), comity::Error>(())
/// ```
pub fn prefer_algorithm(group: &Group, algorithm: Option<Algorithm>) -> bool {
    group.prefer_algorithm(algorithm)
}
