//! `comity launch --hosts` and `--hostfile`: a job on several hosts.
//!
//! ```text
//! front end -- supervisor -+- ssh a -- comity guard (front end -- supervisor -- ranks 0, 1)
//!              store       +- ssh b -- comity guard (front end -- supervisor -- ranks 2, 3)
//! ```
//!
//! One `ssh` runs for each host, all at once. The supervisor here holds the store and the rules of ending a job, over the ranks
//! of all hosts. The [guard](super::guard) on each host holds its ranks. First every host says whether it could run its part;
//! then all are told to run it, or all problems are told at once and nothing runs.
mod args;
mod connection;
mod events;
mod hostfile;
mod hosts;
mod plan;
mod ssh;
mod supervise;

pub(super) use args::FleetArgs;

use super::{LaunchArgs, USAGE};

/// Runs the job to its end and returns the exit code.
pub(super) fn launch(args: LaunchArgs) -> u8 {
    let plan = match plan::FleetPlan::check(args) {
        Ok(plan) => plan,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("comity launch: {problem}"));
            return USAGE;
        }
    };
    if plan.dry_run {
        plan.hosts.iter().for_each(|host| println!("{}", plan.shown(host)));
        return 0;
    }
    super::guarded(|front_end, input| supervise::supervise(plan, front_end, input))
}
