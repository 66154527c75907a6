//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;
mod fds;
mod map;

pub(crate) use bell::Bell;
pub(crate) use fds::{recv_fd, send_fd};
pub(crate) use map::Mapping;
mod exit;
mod inherited;

pub(crate) use bell::Bell;
pub(crate) use exit::at_exit;
pub(crate) use inherited::inherited;
