//! Values that every room of `comity` knows, and the only door to the system. **An internal crate: nothing here is a promise.** Use
//! `comity`, which re-exports from here what programs need.

#[doc(hidden)]
pub mod address;
#[doc(hidden)]
pub mod call;
#[doc(hidden)]
pub mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz_input;
#[doc(hidden)]
pub mod key;
#[doc(hidden)]
pub mod lanes;
#[doc(hidden)]
pub mod root_cause;
#[doc(hidden)]
pub mod stats;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod view;

pub use address::HostPort;
pub use call::{CallInfo, MAX_SIZE, MAX_TAG, Op};
pub use comity_kernel::{C64, DType, Element, ReduceOp, Wire, named};
pub use error::{
    ConfigError, CrossedWait, Error, ErrorKind, JoinCause, JoinError, Misuse, OsError, Peer, Result,
};
pub use key::Key;
pub use stats::Stats;
pub use sys::{Interrupt, interrupt_with};
pub use view::{Place, SharedBuffer, View, ViewMut};
