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
mod content;
mod elsewhere;
mod events;
mod farewell;
mod hostfile;
mod hosts;
mod meeting;
mod plan;
mod program;
mod show;
mod ssh;
mod supervise;
mod vars;

pub(super) use args::FleetArgs;
pub(crate) use elsewhere::{JobHosts, of_word as job_hosts};
pub(crate) use hostfile::read as read_hostfile;
pub(crate) use hosts::{FleetHost, check_name as check_host_name, list as list_hosts};
pub(crate) use ssh::{FarCommand, SshWay, explained as explain_ssh, words as ssh_words};

use super::ending::Ending;
use super::signals::Signals;
use super::{LaunchArgs, REFUSED, USAGE};
use plan::FleetPlan;
use rustix::event::Timespec;
use rustix::fs::OFlags;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Runs the job to its end and returns the exit code.
pub(super) fn launch(args: LaunchArgs) -> u8 {
    let plan = match FleetPlan::check(args) {
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
    let (mut code, mut is_final) = attempt(&plan, 0);
    // These signals do no longer end this process by themselves.
    let Ok(signals) = Signals::open(&[]) else { return code };
    for restart in 1..=plan.max_restarts {
        if code == 0 || is_final {
            break;
        }
        let pause = Duration::from_secs(1 << (restart - 1).min(5)).min(LONGEST_PAUSE);
        eprintln!(
            "comity launch: restart {restart} of {} in {} s, because the job ended with code {code}",
            plan.max_restarts,
            pause.as_secs()
        );
        if let Some(signal) = interrupted(&signals, Instant::now() + pause) {
            return Ending::Signal(signal).code();
        }
        (code, is_final) = attempt(&plan, restart);
    }
    code
}

/// Runs the job for the first time, or again: its exit code, and whether it is final. The code alone does not say that: a rank may end with
/// the code of bad input or of a signal.
fn attempt(plan: &FleetPlan, restart: u32) -> (u8, bool) {
    let (mut said, say) = match std::io::pipe() {
        Ok(pipe) => pipe,
        Err(e) => {
            eprintln!("comity launch: cannot make a pipe: {e}");
            return (REFUSED, true);
        }
    };
    let code = super::guarded(plan.tty.is_some(), move |front_end, input| {
        let (code, is_final) = supervise::supervise(FleetPlan { restart, ..plan.clone() }, front_end, input);
        if is_final {
            let _ = (&say).write_all(&[1]);
        }
        code
    });
    // A supervisor that was killed has said nothing. Whatever it left behind may hold the other end open.
    let is_final =
        rustix::fs::fcntl_setfl(&said, OFlags::NONBLOCK).is_ok() && said.read(&mut [0]).is_ok_and(|n| n == 1);
    (code, is_final)
}

/// A signal by which the user ends the pause.
fn interrupted(signals: &Signals, until: Instant) -> Option<i32> {
    signals.take();
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let mut fds: Vec<_> = signals.wants().collect();
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        if let Some(signal) = signals.take().into_iter().find(|s| *s != libc::SIGCHLD) {
            return Some(signal);
        }
        if Instant::now() >= until {
            return None;
        }
    }
}
