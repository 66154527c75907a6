//! The `comity` command.
#![allow(missing_docs)]
pub fn run() {}
