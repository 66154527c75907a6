//! Data-parallel training: a small network learns handwritten digits, on any number of ranks.
//!
//! ```text
//! cargo build --release --package demo
//! comity launch -n 4 -- target/release/digits
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    demo::run(demo::Layers::new)
}
