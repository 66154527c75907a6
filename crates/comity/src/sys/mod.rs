//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;
mod exit;
mod inherited;

pub(crate) use bell::Bell;
pub(crate) use exit::at_exit;
pub(crate) use inherited::inherited;
