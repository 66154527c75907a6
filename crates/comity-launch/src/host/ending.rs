//! End of a process, as the system tells it.
pub(crate) use crate::machine::Ending;

use rustix::process::WaitStatus;

/// None when the process was only stopped or continued.
pub(crate) fn ending_of(status: WaitStatus) -> Option<Ending> {
    status.exit_status().map(Ending::Exit).or_else(|| status.terminating_signal().map(Ending::Signal))
}
