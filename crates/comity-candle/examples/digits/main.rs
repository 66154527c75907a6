//! Data-parallel training with candle: a small network learns handwritten digits, on any number of ranks.
//!
//! ```text
//! cargo build --release --package comity-candle --example digits
//! comity launch -n 4 -- target/release/examples/digits
//! ```
//!
//! The samples and the loop are those of `examples/demo`, which trains the same network without a framework.

mod network;

use std::process::ExitCode;

fn main() -> ExitCode {
    demo::run(network::Layers::new)
}
