//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;
mod inherited;

pub(crate) use bell::Bell;
pub(crate) use inherited::inherited;
