//! The launcher of a job: what it decides, and the processes, hosts and nodes that it decides it for.
//!
//! ```text
//! comity launch: LaunchRequest, a field a flag --> launch --+-- host/   the ranks of this host, in two processes
//!                                                          +-- fleet/  several hosts over ssh, a launcher on each
//!                                                          +-- nodes/  several hosts, each of which starts its own launcher
//!                                                          +-- mpi     MPI's own launcher
//! ```
//!
//! `machine` decides who is started, who failed, who is blamed, what is ended and which exit code comes out, for all of them. `upstream` has
//! the places from which orders come: the terminal, a launcher behind `ssh`, other nodes. `protocol` is how a launcher talks to those on its hosts.

// Tests and the simulator begin at some time, read settings and print what they found.
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods))]

// The rooms cross the wall for the command alone, and are no promise.
#[doc(hidden)]
pub mod address;
mod elastic;
#[doc(hidden)]
pub mod fleet;
#[doc(hidden)]
pub mod flights;
mod host;
#[doc(hidden)]
pub mod http;
mod journal;
#[doc(hidden)]
pub mod live;
#[forbid(unsafe_code)]
mod machine;
mod mpi;
mod nodes;
#[doc(hidden)]
pub mod own_program;
mod protocol;
mod request;
mod upstream;

pub use elastic::{Elastic, KEY_FILE, RESTARTS, name as job_name};
pub use fleet::request::{FlagUse, HostFlags};
pub use host::bind::{BindWish, allowed_cores, host_cores};
pub use host::job::{OURS, find as find_program};
pub use host::metrics::address as metrics_address;
pub use mpi::launcher as mpi_launcher;
pub use nodes::NodeRequest;
pub use request::{
    AskedBackend, InputRank, JobRequest, LaunchRequest, Placement, RankTerms, Setting, TagWish, one_of,
    secure_parser,
};

/// The version of this launcher and of the library in it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a job to its end and returns the exit code.
///
/// Call it from the main thread before other threads are started: it forks.
pub fn launch(request: LaunchRequest) -> u8 {
    let placement = request.placement();
    let LaunchRequest { job, hosts, node } = request;
    let ended = match placement {
        Placement::Nodes => nodes::launch(job, node),
        Placement::Hosts => fleet::launch(job, hosts),
        Placement::Mpi => mpi::launch(&job, &hosts.mpi_arg),
        Placement::Here => host::launch(job),
    };
    ended.unwrap_or_else(|problem| problem.say())
}
