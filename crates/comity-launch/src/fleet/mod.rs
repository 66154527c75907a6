//! `comity launch --hosts` and `--hostfile`: a job on several hosts.
//!
//! ```text
//! front end -- supervisor -+- ssh a -- comity guard (front end -- supervisor -- ranks 0, 1)
//!              store       +- ssh b -- comity guard (front end -- supervisor -- ranks 2, 3)
//! ```
//!
//! An `ssh` runs for each host, all at once. The supervisor here holds the store and the rules of ending a job, over the ranks
//! of all hosts. The launcher on each host (`host_launcher`) holds its ranks. First every host says whether it could run its part;
//! then all are told to run it, or all problems are told at once and nothing runs.
use crate::host::signals::{PassedSignal, Signals};
use crate::machine::restart::{NextAttempt, Restarts};
use crate::machine::{AttemptEnd, Ending, Problem, USAGE};
use crate::request::JobRequest;
use comity_base::sys::poll_until;
use plan::FleetPlan;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

mod beginning;
mod connection;
mod events;
mod host_launcher;
mod hosts;
mod plan;
pub(crate) mod request;
mod show;
mod ssh;
pub(crate) mod stage;
mod supervise;

pub use host_launcher::run as host_launcher;
pub use hosts::{
    FleetFile, FleetHost, check_name as check_host_name, list as list_hosts, read as read_hostfile,
};
pub use request::{HostsRequest, MeetingPlace};
pub use show::{JobHosts, of_word as job_hosts};
pub use ssh::{FarCommand, SshOptions, command as ssh_command, explained as explain_ssh};

/// Time for a host to start again, with a good deal to spare.
const WAIT_FOR_HOSTS: Duration = Duration::from_secs(600);

/// All of these, or everything that is wrong with them.
pub fn all_or_wrong<T, E>(each: impl IntoIterator<Item = Result<T, E>>) -> Result<Vec<T>, Vec<E>> {
    let mut wrong = Vec::new();
    let all = each.into_iter().filter_map(|one| one.map_err(|why| wrong.push(why)).ok()).collect();
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

/// Runs the job to its end and returns the exit code.
pub(crate) fn launch(job: JobRequest, hosts: HostsRequest) -> Result<u8, Problem> {
    let plan = match FleetPlan::check(job, hosts) {
        Ok(plan) => plan,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("comity launch: {problem}"));
            return Ok(USAGE);
        }
    };
    if plan.fleet.dry_run {
        plan.hosts.iter().for_each(|host| println!("{}", plan.shown(host)));
        return Ok(0);
    }
    let most = plan.job.restarts_of_job();
    let wait = plan.fleet.wait_for_hosts.unwrap_or(WAIT_FOR_HOSTS);
    let limit = wait.as_secs_f64();
    let mut restarts = Restarts::new(most, wait);
    let mut ended = attempt(&plan, 0)?;
    // These signals do no longer end this process by themselves.
    let Ok(signals) = Signals::open(&[]) else { return Ok(ended.0) };
    loop {
        let (code, end) = ended;
        let (restart, pause) = match restarts.after(code, end, Instant::now()) {
            NextAttempt::None => return Ok(code),
            NextAttempt::GiveUp => {
                eprintln!(
                    "comity launch: given up, because hosts were waited for {limit} s (--wait-for-hosts)"
                );
                return Ok(code);
            }
            NextAttempt::Again { number, pause, is_tried } => {
                let seconds = pause.as_secs_f64().ceil();
                match is_tried {
                    true => eprintln!(
                        "comity launch: restart {number} is tried again in {seconds:.0} s; hosts are waited for {limit} s (--wait-for-hosts)"
                    ),
                    false => eprintln!(
                        "comity launch: restart {number} of {most} in {seconds:.0} s, because the job ended with code {code}"
                    ),
                }
                (number, pause)
            }
        };
        if let Some(signal) = interrupted(&signals, Instant::now() + pause) {
            return Ok(Ending::Signal(signal).code());
        }
        ended = attempt(&plan, restart)?;
    }
}

/// Runs the job for the first time, or again: its exit code and its end.
fn attempt(plan: &FleetPlan, restart: u32) -> Result<(u8, AttemptEnd), Problem> {
    let no_pipe = |e| Problem::machine(format!("cannot make a pipe: {e}"));
    let (mut said, say) = std::io::pipe().map_err(no_pipe)?;
    let code = crate::host::front_end::guarded(plan.job.tty.is_some(), move |front_end, input| {
        let (code, end) = supervise::supervise(FleetPlan { restart, ..plan.clone() }, front_end, input);
        let _ = (&say).write_all(&[end as u8]);
        code
    });
    let code = code.unwrap_or_else(|problem| problem.say());
    // A supervisor that was killed has said nothing. Whatever it left behind may hold the other end open.
    let mut word = [AttemptEnd::Ran as u8];
    if rustix::io::ioctl_fionbio(&said, true).is_ok() {
        let _ = said.read(&mut word);
    }
    let ends = [AttemptEnd::Final, AttemptEnd::NotBegun];
    Ok((code, ends.into_iter().find(|end| *end as u8 == word[0]).unwrap_or(AttemptEnd::Ran)))
}

/// A signal by which the user ends the pause.
fn interrupted(signals: &Signals, until: Instant) -> Option<i32> {
    signals.take();
    loop {
        let _ = poll_until(&mut signals.wants().collect::<Vec<_>>(), Some(until));
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
