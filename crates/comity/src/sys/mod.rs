//! The only door to the operating system: calls that need `unsafe` or differ between systems.

mod bell;

pub(crate) use bell::Bell;
