//! RDMA verbs, found at run time: InfiniBand and RoCE on Linux, Thunderbolt on macOS.

pub(crate) mod abi;
mod api;
mod device;
mod slab;

pub use api::{DeviceError, DeviceStep, Verbs};
pub use device::{Abilities, Address, Completion, Depth, Device, End, QueueService};
pub use slab::Slab;
