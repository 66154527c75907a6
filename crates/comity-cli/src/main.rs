//! The `comity` command.
fn main() {}
