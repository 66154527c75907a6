//! Code that the workspace's tools share: child processes that have a deadline and are all ended, hosts as network namespaces, where things lie,
//! and the demo.

pub mod child;
pub mod demo;
mod family;
pub mod netns;
pub mod place;

use child::Task;
pub use family::signal;

/// Build all that tests use, commands and examples too. In one build: a part of the workspace alone can need its
/// dependencies with other features, and build candle once more.
///
/// # Errors
/// The build failed: the output of cargo.
pub fn build_tests() -> Result<(), String> {
    Task::cargo().args(["build", "--workspace", "--all-targets"]).limit(3600).run().map(drop)
}

/// Return whether this is CI, where a missing requirement is a failure.
#[must_use]
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1")
}
