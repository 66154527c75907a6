//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;
mod fds;
mod inherited;
mod poll;

pub(crate) use bell::Bell;
pub(crate) use fds::{recv_fd, send_fd};
pub(crate) use inherited::inherited;
pub(crate) use poll::poll_until;
