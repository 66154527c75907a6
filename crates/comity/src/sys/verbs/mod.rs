//! RDMA verbs, found at run time: InfiniBand and RoCE on Linux, Thunderbolt on macOS.

pub(crate) mod abi;
mod api;
mod device;
mod slab;
mod trouble;

pub(crate) use api::Verbs;
pub(crate) use device::{Abilities, Address, Completion, Depth, Device, End, QueueService};
pub(crate) use slab::Slab;
pub(crate) use trouble::DeviceTrouble;
