//! `cargo xtask bench`: Comity beside gloo, MLX, Open MPI and MPICH, and beside what the machine allows, in one run.
//!
//! ```text
//!   choice.rs    the words            contender.rs  who takes part       plan.rs     what runs, in which order, how long
//!   setup.rs     what has to be there launch.rs     one of them started, ranks to a line
//!   limit        what the machine allows            machine.rs  cores, who works on them
//!   summary.rs   lines to a number    chart.rs report.rs                 what is written
//!   record.rs    a run as a file      programs/     mpi.c and peers.py, the same method in C and in Python
//! ```
//!
//! Every program writes the samples of each rank. The folder `target/bench` has a file of results for each launch, so that a run
//! with `--full` goes on where it was cut off.

mod cell;
mod chart;
mod choice;
mod contender;
mod launch;
mod limit;
mod machine;
mod plan;
mod record;
mod report;
mod run;
mod setup;
mod summary;

pub use choice::BenchChoice;
pub use run::run;

/// `cargo xtask bench-limit`, which a run starts: what the machine allows.
///
/// # Errors
/// The words are no such part, or it cannot be measured.
pub fn limit(args: &[&str]) -> Result<(), String> {
    limit::LimitJob::parse(args)?.run()
}
