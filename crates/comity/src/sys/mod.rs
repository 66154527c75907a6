//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;
pub(crate) mod cuda;
mod exit;
mod fds;
mod hidden;
mod inherited;
mod interfaces;
pub(crate) mod library;
mod map;
pub(crate) mod mpi;
pub(crate) mod nccl;
mod poll;
#[cfg(target_os = "linux")]
mod trip;
mod unacked;
pub(crate) mod verbs;
mod words;

pub(crate) use bell::Bell;
pub(crate) use exit::{at_exit, end_with};
pub(crate) use fds::{recv_fd, send_fd};
pub(crate) use hidden::{Hidden, traceless};
pub(crate) use inherited::inherited;
pub(crate) use interfaces::interfaces;
pub(crate) use map::Mapping;
pub(crate) use poll::poll_until;
#[cfg(target_os = "linux")]
pub(crate) use trip::least_round_trip;
pub(crate) use unacked::has_arrived;
pub(crate) use words::Words;
