//! Collective communication for machine learning.
mod call;
mod dtype;
mod error;
mod link;
#[allow(dead_code)]
mod plan;
mod view;

pub use call::{CallInfo, Op};
pub use dtype::{C64, DType, Element, ReduceOp};
pub use error::{Error, Misuse, Peer, Result};
pub use link::LinkKind;
#[doc(hidden)]
pub use plan::{PlanReport, plan_report};
pub use view::{Place, View, ViewMut};

/// The color that keeps a rank out of every group of a [split].
pub const UNDEFINED: i32 = -1;
/// The largest tag of send, recv and exchange.
pub const MAX_TAG: u32 = 0x7fff_ffff;
