//! The launcher of a job: so far its decisions.
//!
//! [`machine`] decides who is started, who failed, who is blamed, what is ended and which exit code comes out. The command
//! `comity launch` does what it says: processes, pipes, `ssh` and the terminal are in `comity-cli`.

// Tests and the simulator begin at some time, read settings and print what they found.
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods))]

// The rooms cross the wall for the command alone, and are no promise.
#[doc(hidden)]
pub mod address;
#[doc(hidden)]
pub mod flights;
#[doc(hidden)]
pub mod http;
#[doc(hidden)]
pub mod live;
#[forbid(unsafe_code)]
pub mod machine;
#[doc(hidden)]
pub mod own_program;

/// The version of this launcher and of the library in it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
