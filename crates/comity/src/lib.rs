//! Collective communication for machine learning.
#[doc(hidden)]
pub mod boot;
mod call;
mod config;
mod dtype;
mod engine;
mod error;
mod key;
mod link;
#[allow(dead_code)]
mod plan;
mod sys;
mod view;

pub use boot::board::Board;
pub use call::{CallInfo, Op};
pub use config::{Config, Found, HostPort, Launcher, MAX_SIZE, Meet};
pub use dtype::{C64, DType, Element, ReduceOp};
pub use error::{Error, Misuse, Peer, Result};
pub use key::Key;
pub use link::LinkKind;
pub use view::{Place, View, ViewMut};

/// The color that keeps a rank out of every group of a [split].
pub const UNDEFINED: i32 = -1;
/// The largest tag of send, recv and exchange.
pub const MAX_TAG: u32 = 0x7fff_ffff;
