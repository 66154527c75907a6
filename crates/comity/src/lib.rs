//! Collective communication for machine learning.
mod backend;
#[doc(hidden)]
pub mod boot;
mod call;
mod config;
mod dtype;
mod engine;
mod error;
mod group;
#[allow(dead_code)]
mod kernel;
mod key;
mod link;
#[allow(dead_code)]
mod plan;
mod stats;
mod sync;
mod sys;
mod turn;
mod view;

pub use boot::board::Board;
pub use call::{CallInfo, Op};
pub use config::{Config, Detection, Found, HostPort, Launcher, MAX_SIZE, Meet};
pub use dtype::{C64, DType, Element, ReduceOp};
pub use error::{Error, Misuse, Peer, Result};
pub use group::{Group, Request, Scope, init, init_strict};
pub use key::Key;
pub use link::LinkKind;
pub use stats::Stats;
pub use view::{Place, View, ViewMut};

/// The largest tag of send, recv and exchange.
pub const MAX_TAG: u32 = 0x7fff_ffff;
