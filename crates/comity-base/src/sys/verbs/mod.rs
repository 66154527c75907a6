//! RDMA verbs, found at run time: InfiniBand and RoCE on Linux, Thunderbolt on macOS.

pub(crate) mod abi;
mod api;
mod device;
mod error;
mod slab;

pub use api::Verbs;
pub use device::{Abilities, Address, Completion, Depth, Device, End, QueueService};
pub use error::{DeviceError, DeviceStep};
pub use slab::Slab;
