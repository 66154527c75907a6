//! Collective communication for machine learning, on the computers people own.
//!
//! A training or inference job runs as several processes, its *ranks*. They add up gradients, gather activations and pass
//! tensors through a [`Group`]:
//!
//! ```
//! use comity::ReduceOp;
//!
//! let group = comity::init()?; // from the launcher's variables; a group of one without a launcher
//! let mut gradients = vec![1f32; 1000];
//! group.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! assert_eq!(gradients[0], 1.0);
//! # Ok::<(), comity::Error>(())
//! ```
//!
//! Start it with `comity launch -n 4 -- target/release/my-program`; torchrun, `mpirun`, `mpiexec`, `srun` and MLX's
//! variables are understood as well ([`Config::from_env`]), and [`Config::new`] takes everything by value.
//!
//! # What is promised
//! - **Every operation, on every group size and link**: see the methods of [`Group`]. Buffers are slices, vectors, arrays, or
//!   raw memory as [`View`] and [`ViewMut`]; of any length, also 0; of the 14 [types](DType) of MLX.
//! - **The same bits on all ranks, and from run to run** for the same group shape; the payload of a NaN excepted. [`ReduceOp`] says
//!   what each reduction does to each type.
//! - **Every call ends**: it succeeds, or fails within its [limit](Group::with_timeout) with an [`Error`] that names the member and the
//!   call. After a failure the group stays failed and says why.
//! - **Ranks that disagree are told**: different operations, types, counts, roots or orders are [`ErrorKind::Mismatch`] on every rank,
//!   with both calls in words (`docs/errors.md`).
//! - **Only members talk**: connections are authenticated with the job's [`Key`], which a job of processes must have unless it says
//!   [`insecure`](Config::insecure).
//!
//! # Order, threads, overlap
//! Calls on one group run one at a time, in the order they are made, which must be the same on all ranks.
//! [`Group::spawn`] and [`Group::scope`] run calls in the background, in their turn. Groups made by [`Group::split`] have links of
//! their own and never wait for each other. A `Group` is `Send + Sync` and cheap to clone.
//!
//! # Debug builds
//! They are many times slower, unless the `Cargo.toml` of your program (the workspace's, in a workspace) says
//! ```toml
//! [profile.dev.package.comity]
//! opt-level = 3
//! [profile.dev.package.comity-base]
//! opt-level = 3
//! [profile.dev.package.comity-channel]
//! opt-level = 3
//! [profile.dev.package.comity-job]
//! opt-level = 3
//! [profile.dev.package.comity-kernel]
//! opt-level = 3
//! [profile.dev.package.comity-plan]
//! opt-level = 3
//! [profile.dev.package.comity-transport]
//! opt-level = 3
//! ```
//!
//! # How it works
//! Each pair of ranks is joined by the best link both ends agree on: shared memory within a host, RDMA where both have a device, else TCP. A call becomes a
//! plan, chosen by a cost model and the same on all ranks; one engine runs every plan over every link. `docs/architecture.md` in the
//! repository tells more.

mod backend;
mod config;
mod cuda;
mod engine;
mod foreign;
#[cfg(fuzzing)]
pub mod fuzz;
mod group;
mod recorder;
pub mod tools;
mod turn;
mod warnings;

#[cfg(fuzzing)]
use comity_base::fuzz_input;
// Rooms of the crates below, so that a path says the room and not the crate.
use comity_base::{address, error, lanes, root_cause, stats, sync, sys, view};
#[cfg(any(fuzzing, test))]
use comity_channel as channel;
#[cfg(any(fuzzing, test))]
use comity_job::control;
use comity_job::{links, status};
use comity_rendezvous as rendezvous;
use comity_settings::{costs, exchange, settings};
use comity_transport as transport;

pub use comity_base::{
    CallInfo, ConfigError, CrossedWait, Error, ErrorKind, HostPort, Interrupt, JoinCause, JoinError, Key,
    MAX_SIZE, MAX_TAG, Misuse, Op, OsError, Peer, Place, Result, SharedBuffer, Stats, View, ViewMut,
    interrupt_with,
};
pub use comity_kernel::{C64, DType, Element, ReduceOp, Wire};
pub use comity_plan::Algorithm;
pub use config::Config;
pub use costs::LinkCosts;
pub use exchange::Exchange;
pub use group::{
    Communicator, Departure, Group, ReformOptions, ReformOutcome, Request, Scope, init, init_strict,
};
pub use settings::{BackendKind, ConnectTiming, Detection, Evidence, Launcher, MeetingPoint, Protection};
pub use transport::LinkKind;

/// The crate of [`f16`](half::f16) and [`bf16`](half::bf16), in the version whose types are an [`Element`].
///
/// ```
/// use comity::{ReduceOp, half::bf16};
///
/// let mut a = [bf16::ONE; 4];
/// comity::Group::single().all_reduce(&mut a, ReduceOp::Sum)?;
/// # Ok::<(), comity::Error>(())
/// ```
pub use half;

/// The examples of the book are run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/rust.md")]
struct Book;

/// So are those of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
