//! Inputs of a group's cost model beside constants: costs of each pair of ranks.
//!
//! ```text
//!   pairs.rs   LinkCosts: a latency and a bandwidth for each pair; measured when ranks have met, or read from a file that was named
//!              CostsNote: what `comity info` says of them
//! ```

mod pairs;

pub use pairs::{CostsNote, LinkCosts};
