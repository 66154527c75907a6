//! Runs plans over links: pipelining, deadlines, failures and counters, once for every plan and every link.

mod census;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod lanes;
mod members;
mod progress;
mod run;
mod short;
mod steps;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use census::Census;
pub(crate) use lanes::CallPhase;
pub(crate) use members::{Members, OutstandingMessages, StepResult, Stop, library_word};
pub(crate) use progress::{CallProgress, Patience, Progress, Waiting, complete};
pub(crate) use run::{Direction, Engine, Task};
pub(crate) use short::{ShortHeaders, is_short};
pub(crate) use stream::STASH;
