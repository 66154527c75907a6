//! `comity launch --hosts` and `--hostfile`: a job on several hosts.
//!
//! ```text
//! front end -- supervisor -+- ssh a -- comity guard (front end -- supervisor -- ranks 0, 1)
//!              store       +- ssh b -- comity guard (front end -- supervisor -- ranks 2, 3)
//! ```
//!
//! An `ssh` runs for each host, all at once. The supervisor here holds the store and the rules of ending a job, over the ranks
//! of all hosts. The [guard](super::guard) on each host holds its ranks. First every host says whether it could run its part;
//! then all are told to run it, or all problems are told at once and nothing runs.
mod args;
mod connection;
mod content;
mod deserted;
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
use super::signals::{PassedSignal, Signals};
use super::{LaunchArgs, REFUSED, USAGE};
use plan::FleetPlan;
use rustix::event::Timespec;
use rustix::fs::OFlags;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Between tries of a restart, and before one.
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
    let (mut code, mut end) = attempt(&plan, 0);
    // These signals do no longer end this process by themselves.
    let Ok(signals) = Signals::open(&[]) else { return code };
    for restart in 1..=plan.max_restarts {
        if code == 0 || end == AttemptEnd::Final {
            break;
        }
        let pause = pause(restart);
        eprintln!(
            "comity launch: restart {restart} of {} in {} s, because the job ended with code {code}",
            plan.max_restarts,
            pause.as_secs()
        );
        (code, end) = start_again(&plan, restart, pause, &signals);
    }
    code
}

/// A pause that doubles from 1 s.
fn pause(number: u32) -> Duration {
    Duration::from_secs(1 << (number - 1).min(5)).min(LONGEST_PAUSE)
}

/// Runs the job again after a pause, and tries that until all hosts are there, as long as hosts are waited for.
fn start_again(plan: &FleetPlan, restart: u32, mut rest: Duration, signals: &Signals) -> (u8, AttemptEnd) {
    let mut since = None;
    for tried in 1.. {
        if let Some(signal) = interrupted(signals, Instant::now() + rest) {
            return (Ending::Signal(signal).code(), AttemptEnd::Final);
        }
        let (code, end) = attempt(plan, restart);
        if end != AttemptEnd::NotBegun {
            return (code, end);
        }
        let since = *since.get_or_insert_with(Instant::now);
        let limit = plan.wait_for_hosts;
        let left = plan.wait_for_hosts.saturating_sub(since.elapsed());
        let limit = limit.as_secs_f64();
        if left.is_zero() {
            eprintln!("comity launch: given up, because hosts were waited for {limit} s (--wait-for-hosts)");
            return (code, AttemptEnd::Final);
        }
        rest = pause(tried).min(left);
        eprintln!(
            "comity launch: restart {restart} is tried again in {:.0} s; hosts are waited for {limit} s (--wait-for-hosts)",
            rest.as_secs_f64().ceil()
        );
    }
    (REFUSED, AttemptEnd::Final)
}

/// The end of an attempt to run the job. The exit code alone does not say it: a rank may end with the code of bad input or of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    /// The ranks ran.
    Ran,
    /// To start the job again would change nothing, or is not wanted.
    Final,
    /// Ranks ran before, and now not all hosts could run their part.
    NotBegun,
}

/// Runs the job for the first time, or again: its exit code and its end.
fn attempt(plan: &FleetPlan, restart: u32) -> (u8, AttemptEnd) {
    let (mut said, say) = match std::io::pipe() {
        Ok(pipe) => pipe,
        Err(e) => {
            eprintln!("comity launch: cannot make a pipe: {e}");
            return (REFUSED, AttemptEnd::Final);
        }
    };
    let code = super::guarded(plan.tty.is_some(), move |front_end, input| {
        let (code, end) = supervise::supervise(FleetPlan { restart, ..plan.clone() }, front_end, input);
        let _ = (&say).write_all(&[end as u8]);
        code
    });
    // A supervisor that was killed has said nothing. Whatever it left behind may hold the other end open.
    let mut word = [AttemptEnd::Ran as u8];
    if rustix::fs::fcntl_setfl(&said, OFlags::NONBLOCK).is_ok() {
        let _ = said.read(&mut word);
    }
    let ends = [AttemptEnd::Final, AttemptEnd::NotBegun];
    (code, ends.into_iter().find(|end| *end as u8 == word[0]).unwrap_or(AttemptEnd::Ran))
}

/// A signal by which the user ends the pause.
fn interrupted(signals: &Signals, until: Instant) -> Option<i32> {
    signals.take();
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let mut fds: Vec<_> = signals.wants().collect();
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        // Those for ranks find none.
        let ends = |s: &i32| *s != libc::SIGCHLD && PassedSignal::of(*s).is_none();
        if let Some(signal) = signals.take().into_iter().find(ends) {
            return Some(signal);
        }
        if Instant::now() >= until {
            return None;
        }
    }
}
