//! Runs plans over links: pipelining, deadlines, failures and counters, once for every plan and every link.
//!
//! May import: `call`, `dice`, `dtype`, `error`, `kernel`, `recorder`, `stats`, `status`, `transport`, `view`.

mod blame;
mod census;
mod fold;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod interrupt;
mod park;
mod run;
mod stream;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use census::Census;
pub(crate) use interrupt::Asking;
pub use interrupt::{Interrupt, interrupt_with};
pub(crate) use run::{ASK, Engine, Task, Way};
pub(crate) use wait::{Patience, Stage, Wait};
