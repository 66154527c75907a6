//! Functions for the command `comity`, the Python package and the tests of this project, which programs do not need.
//!
//! **No promise of stability.** Anything here may change or go in any release, also in one that changes nothing else that is
//! public. `comity-cli` and `comity-py` are released with `comity` and ask for exactly its version. If you build a launcher or a
//! reader of flight records on this module, ask for one version too: `comity = "=0.1.0"`.
//!
//! | for | items |
//! |---|---|
//! | a launcher | [`Store`], at which its ranks meet; [`Sheet`], [`Tally`] and [`LiveRank`], what a rank did and does in memory that both see |
//! | `comity info` | [`VARIABLES`]; [`settings`], whose methods say what they mean here; [`CostsNote`] |
//! | `comity check`, `comity bench` | [`hosts`], [`connections`], [`prefer_algorithm`], [`bytes_pulled`], [`bytes_in_lanes`]; memory of CUDA devices in [`cuda`] |
//! | the Python package and libcomity | [`HomeProcess`], which forked children are told from; [`ForeignCall`], a call with [`ForeignMemory`] and [`ForeignArgs`]; [`ForeignRequest`] and [`RequestEnd`], work in the background |
//! | both | [`on_warning`], for a process whose program listens to no events |
//! | `comity report` | [`Flight`], a file that a rank writes when a group fails |

pub use crate::costs::CostsNote;
pub use crate::foreign::{ForeignArgs, ForeignCall, ForeignMemory, ForeignRequest, RequestEnd};
pub use crate::lanes::bytes_carried as bytes_in_lanes;
pub use crate::recorder::{Flight, FlightCall, FlightState, LiveGroup, LivePath, LiveRank};
pub use crate::rendezvous::Store;
pub use crate::settings::{AddressNote, LinkNote, Settings, Topic, VARIABLES, Variable};
pub use crate::stats::{Sheet, Tally};
pub use crate::sys::{HomeProcess, bytes_pulled};
#[cfg(target_os = "linux")]
pub use crate::sys::{peer_user, refused as refused_call};
pub use crate::warnings::on_warning;
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

/// The number of connections of the link to each rank of a group, by rank; `None` where none is made, and for the rank itself.
///
/// ```
/// assert!(comity::tools::connections(&comity::Group::single()).iter().all(Option::is_none));
/// ```
pub fn connections(group: &Group) -> Vec<Option<usize>> {
    group.connections()
}

/// The settings of a configuration, for `comity info`: what they mean on this host, in words.
///
/// ```
/// let config = comity::Config::from_env()?;
/// let settings = comity::tools::settings(&config);
/// assert!(settings.link_notes().iter().any(|note| note.kind == comity::LinkKind::Tcp));
/// assert!(settings.lanes_in_words().contains("thread") && !settings.trust_in_words().is_empty());
/// println!("{:?}; {}", settings.address_notes(), settings.network_in_words());
/// # Ok::<(), comity::Error>(())
/// ```
pub fn settings(config: &Config) -> &Settings {
    &config.settings
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
