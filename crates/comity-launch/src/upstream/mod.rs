//! Places from which orders for the ranks of this host come: the terminal, a launcher behind `ssh`, the launchers of other nodes.
//!
//! ```text
//! front end    --+
//! ssh          --+-- Upstream: orders and news --> supervisor --> Machine, ranks
//! other nodes  --+             <-- tidings --
//! ```
pub(crate) mod ssh;
pub(crate) mod terminal;

use crate::host::own_output::Outputs;
use crate::host::signals::PassedSignal;
use crate::host::stdin::StdinFeed;
use crate::machine::{Event, Machine, StopReason};
use rustix::event::PollFd;
use std::time::Instant;

/// Order to a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ctrl-Z; the front end waits for the answer [`FrontLine::all_stopped`].
    Suspend,
    Continue,
    Pass(PassedSignal),
    News(Event),
    /// The process that the user started is gone.
    FrontEndLost,
    /// Standard input of the ranks, or its end.
    Input(Option<Vec<u8>>),
    /// Tell what the ranks do.
    Look,
    /// Tell which of them are stopped.
    FindStopped,
}

impl Order {
    /// The order that a signal to the launcher stands for.
    pub(crate) fn of_signal(signal: i32) -> Self {
        match (signal, PassedSignal::of(signal)) {
            (libc::SIGTSTP, _) => Self::Suspend,
            (libc::SIGCONT, _) => Self::Continue,
            (_, Some(passed)) => Self::Pass(passed),
            (signal, None) => Self::News(Event::Stop(StopReason::Interrupted { signal })),
        }
    }
}

/// State of the ranks here, of which those who give orders are told.
#[derive(Clone, Copy)]
pub(crate) struct Tidings<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) output: &'a Outputs,
    pub(crate) feed: &'a StdinFeed,
}

/// Place from which orders come.
pub(crate) trait Upstream {
    /// Descriptor that is readable when something has come; none when nothing comes any more.
    fn want(&self) -> Option<PollFd<'_>>;

    /// Takes what has come.
    fn take(&mut self) -> Vec<Order>;

    /// When [`keep_in_touch`](Self::keep_in_touch) has something to do next.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Tells what is new; returns what follows from silence.
    fn keep_in_touch(&mut self, _: Tidings<'_>) -> Vec<Order> {
        Vec::new()
    }
}
