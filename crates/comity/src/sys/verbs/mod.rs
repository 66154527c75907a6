//! RDMA verbs, found at run time: InfiniBand and RoCE on Linux, Thunderbolt on macOS.

pub(crate) mod abi;
mod api;
mod device;
mod error;
mod slab;

pub(crate) use api::Verbs;
pub(crate) use device::{Abilities, Address, Completion, Depth, Device, End, QueueService};
pub(crate) use error::DeviceError;
pub(crate) use slab::Slab;
