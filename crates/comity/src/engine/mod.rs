//! Runs plans over links: pipelining, deadlines, failures and counters, once for every plan and every link.

mod blame;
mod census;
mod closing;
mod failure;
mod fold;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod header;
mod interrupt;
mod ledger;
mod park;
mod run;
mod stream;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

pub(crate) use census::{Census, Reached};
pub(crate) use closing::{Ask, conclude, is_untold, untold};
pub(crate) use failure::{Failure, Late, Why};
pub(crate) use header::{ANNOUNCE, Header, LEN as HEADER};
pub(crate) use interrupt::Asking;
pub use interrupt::{Interrupt, interrupt_with};
pub(crate) use ledger::Differs;
pub(crate) use run::{ASK, Engine, Task, Way};
pub(crate) use wait::{Patience, Stage, Wait};
pub(crate) use watch::Watch;
