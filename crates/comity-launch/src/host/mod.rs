//! Ranks of one host: their processes, pipes, signals and output.
//!
//! Two [processes](front_end) stand guard over each other, and the [supervisor](supervisor) in one of them does what the
//! [machine](crate::machine) decides.
use crate::machine::Problem;
use crate::request::JobRequest;

pub(crate) mod bind;
pub(crate) mod front_end;
pub(crate) mod job;
pub(crate) mod master;
pub(crate) mod meet;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod rank;
pub(crate) mod signals;
pub(crate) mod stdin;
pub(crate) mod supervisor;
pub(crate) mod sys;
pub(crate) mod terminal;
pub(crate) mod tree;

/// Runs a job on this host alone and returns the exit code.
pub(crate) fn launch(request: JobRequest) -> Result<u8, Problem> {
    let is_default_size = request.ranks.is_none();
    let size = request.size();
    let job = job::Job::check(request, true, size)?;
    if is_default_size {
        eprintln!("comity launch: 1 rank; -n N starts N");
    }
    front_end::guarded(job.tty.is_some(), |to_front, input| supervisor::supervise(job, to_front, input))
}
