//! Variable inputs of a group's cost model: costs of each pair of ranks, and `comity bench --tune`'s measurements of a host.
//!
//! ```text
//!   pairs.rs   LinkCosts: a latency and a bandwidth for each pair; measured when ranks have met, or read from a file that was named
//!   tuned.rs   TunedFile: the numbers of one host and version, as text
//!   found.rs   which file holds for this process, if any: rank 0's, told to all when they meet
//! ```
//!
//! May import: `config`, `error`, `call`, `sys`.

mod found;
mod pairs;
mod tuned;

pub(crate) use found::tuned_bytes;
pub use found::{CostsNote, costs_place};
pub use pairs::LinkCosts;
pub use tuned::TunedFile;
