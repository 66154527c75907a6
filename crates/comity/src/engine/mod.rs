//! Runs plans over links: pipelining, deadlines, failures and counters, once for every plan and every link.

mod cause;
mod census;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod lanes;
mod members;
mod outgoing;
mod progress;
mod run;
mod short;
mod steps;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod wait;

pub(crate) use cause::{OutstandingMessages, StepResult, Stop, library_word};
pub(crate) use census::Census;
pub(crate) use lanes::CallPhase;
pub(crate) use members::Members;
pub(crate) use progress::{CallProgress, Progress, Waiting, complete};
pub(crate) use run::{Direction, Engine, Task};
pub(crate) use short::{ShortHeaders, is_short};
pub(crate) use stream::STASH;
pub(crate) use wait::Patience;
