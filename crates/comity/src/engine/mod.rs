//! Runs plans over links.

mod watch;

pub(crate) use watch::{Failure, Watch};
