//! A job on several hosts as `comity top` sees it: who asks at the launcher's socket has every host asked, over its `ssh`. Of a job that was
//! launched on another machine, the hosts of a hostfile are asked over `ssh` what `comity top --json` says there.
use super::hosts::{self, FleetHost};
use super::plan::FleetPlan;
use super::ssh::{self, SshOptions};
use crate::host::metrics::job_id;
use crate::live::Door;
use crate::live::{self, JobView, RankState, RankView};
use comity_base::sync::lock;
use comity_base::sys::Waker;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that hosts have for their answers.
const ANSWERS: Duration = Duration::from_secs(1);

/// The socket, and what connects the thread behind it with the launcher's own.
#[derive(Debug)]
pub(super) struct FleetShow {
    door: Option<Door>,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    hosts: Mutex<SeenHosts>,
    came: Condvar,
    /// Readable when somebody asks.
    asked: Waker,
}

#[derive(Debug, Default)]
struct SeenHosts {
    /// The last question.
    round: u64,
    hosts: Vec<SeenHost>,
    /// Codes of ranks that have ended.
    ended: Vec<Option<u8>>,
}

#[derive(Debug, Default)]
struct SeenHost {
    name: String,
    /// The question that it answered last.
    round: u64,
    /// It answers no more.
    gone: bool,
    /// It was lost; else it has ended as it should.
    lost: bool,
    ranks: Vec<RankView>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenHosts> {
        lock(&self.hosts)
    }

    /// Asks all hosts, and waits for their answers, not for long: all ranks, and the hosts that did not answer.
    fn look(&self) -> (Vec<RankView>, Vec<String>) {
        let mut seen = self.lock();
        seen.round += 1;
        let round = seen.round;
        let until = Instant::now() + ANSWERS;
        self.asked.wake();
        while seen.hosts.iter().any(|h| !h.gone && h.round < round) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // WAIT(left): the hosts' answers, for a second at most
            seen = self.came.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let silent = seen
            .hosts
            .iter()
            .filter(|h| h.lost || !h.gone && h.round < round)
            .map(|h| h.name.clone())
            .collect();
        let ranks = seen.hosts.iter().flat_map(|h| &h.ranks).map(|r| match seen.ended.get(r.rank) {
            Some(Some(code)) => RankView { state: RankState::Ended(*code), ..r.clone() },
            _ => r.clone(),
        });
        let mut ranks: Vec<RankView> = ranks.collect();
        ranks.sort_by_key(|r| r.rank);
        (ranks, silent)
    }
}

impl FleetShow {
    /// Answers from now on; a job that cannot be looked at runs all the same.
    pub(super) fn open(plan: &FleetPlan, job: &str) -> io::Result<Self> {
        let host =
            |h: &super::plan::PlannedHost| SeenHost { name: h.name().to_owned(), ..SeenHost::default() };
        let hosts = plan.hosts.iter().map(host).collect();
        let hosts = Mutex::new(SeenHosts { hosts, ended: vec![None; plan.world], round: 0 });
        let seen = Arc::new(Seen { hosts, came: Condvar::new(), asked: Waker::new()? });
        let shared = seen.clone();
        let begun = Instant::now();
        let size = plan.world;
        let id = job_id(job);
        let command = plan.hosts.first().map(|h| h.part.command.join(" ")).unwrap_or_default();
        let command = comity_cluster::printable(&command, 200);
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let door = rustix::process::getppid().map(|launcher| {
            Door::open(launcher, move || {
                let (ranks, silent) = shared.look();
                JobView {
                    launcher: launcher.as_raw_pid(),
                    command: command.clone(),
                    up_ns: begun.elapsed().as_nanos() as u64,
                    ranks,
                    silent,
                    ..live::job(&id, &name, size)
                }
            })
        });
        Ok(Self { door: door.and_then(Result::ok), seen })
    }

    /// Takes note of a question.
    pub(super) fn take_visit(&self) {
        self.seen.asked.drain();
    }

    pub(super) fn want(&self) -> Option<PollFd<'_>> {
        let asked = self.seen.asked.fd();
        self.door.as_ref().map(|_| PollFd::from_borrowed_fd(asked, PollFlags::IN))
    }

    /// A host has answered.
    pub(super) fn answered(&self, host: usize, text: &[u8]) {
        let Ok(ranks) = serde_json::from_slice(text) else { return };
        let mut seen = self.seen.lock();
        let round = seen.round;
        if let Some(host) = seen.hosts.get_mut(host) {
            host.ranks = ranks;
            host.round = round;
        }
        self.seen.came.notify_all();
    }

    /// A rank has ended, with this code.
    pub(super) fn ended(&self, rank: usize, code: u8) {
        if let Some(place) = self.seen.lock().ended.get_mut(rank) {
            *place = Some(code);
        }
    }

    /// A rank runs again, on this host.
    pub(super) fn runs_again(&self, rank: usize, host: usize) {
        let mut seen = self.seen.lock();
        if let Some(place) = seen.ended.get_mut(rank) {
            *place = None;
        }
        if let Some(host) = seen.hosts.get_mut(host) {
            host.gone = false;
            host.lost = false;
        }
    }

    /// A host will answer no more.
    pub(super) fn gone(&self, host: usize, lost: bool) {
        if let Some(host) = self.seen.lock().hosts.get_mut(host) {
            host.gone = true;
            host.lost = lost;
        }
        self.seen.came.notify_all();
    }
}

/// Hosts on which a job may run.
#[derive(Debug)]
pub struct JobHosts {
    hosts: Vec<FleetHost>,
    options: SshOptions,
    /// Id of the job, where several run.
    job: Option<String>,
}

impl JobHosts {
    /// Hosts of a hostfile.
    fn of_file(path: &Path, options: SshOptions) -> Result<Self, String> {
        let file = hosts::read(path).map_err(|all| all.join("; "))?;
        Ok(Self { hosts: file.hosts, options, job: None })
    }

    /// Asks all, side by side. One that has the whole job is enough; else what all of them say together.
    pub fn ask(&mut self) -> Result<JobView, String> {
        let job = self.job.as_deref();
        let options = &self.options;
        let answers: Vec<Result<JobView, String>> = std::thread::scope(|s| {
            let asked: Vec<_> = self.hosts.iter().map(|h| s.spawn(move || ask(options, h, job))).collect();
            asked.into_iter().map(|a| a.join().unwrap_or_else(|_| Err("asking failed".into()))).collect()
        });
        let names = self.hosts.iter().map(|h| h.name.clone());
        let view = together(names.zip(answers).collect())?;
        self.job = Some(view.job_id.clone());
        Ok(view)
    }
}

fn ask(options: &SshOptions, host: &FleetHost, job: Option<&str>) -> Result<JobView, String> {
    let words: Vec<_> = ["top", "--json"].into_iter().chain(job).collect();
    let far = ssh::FarCommand { words: &words, otherwise: "" };
    let done = ssh::command(options, host, &far).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("host {}: cannot start ssh: {e}", host.name))?;
    if done.status.success() {
        // What a login script prints stands before it.
        let from = done.stdout.windows(2).position(|w| w == b"{\n").unwrap_or(0);
        return live::parse(&done.stdout[from..]).map_err(|why| format!("host {}: {why}", host.name));
    }
    let said = String::from_utf8_lossy(&done.stderr);
    // `comity top` ends with 1; ssh, and a shell that finds no program, with other numbers.
    match done.status.code() == Some(1) {
        true => Err(format!("host {}: {}", host.name, said.trim())),
        false => Err(ssh::explained(&host.name, &said, &format!("ssh {}", done.status))),
    }
}

/// Joins the answers into one picture, each with its host's name.
fn together(answers: Vec<(String, Result<JobView, String>)>) -> Result<JobView, String> {
    let whole = answers.iter().filter_map(|(_, a)| a.as_ref().ok()).find(|v| !v.is_part);
    if let Some(whole) = whole {
        return Ok(whole.clone());
    }
    let mut all = None::<JobView>;
    let mut silent = Vec::new();
    let mut why = Vec::new();
    for (host, answer) in answers {
        match (answer, &mut all) {
            (Ok(view), None) => all = Some(view),
            (Ok(view), Some(all)) if view.job_id == all.job_id => all.join(view),
            (Ok(view), Some(_)) => why.push(format!("host {host} runs another job, {}", view.job_id)),
            (Err(e), _) => {
                silent.push(host);
                why.push(e);
            }
        }
    }
    let mut all = all.ok_or_else(|| why.join("\n"))?;
    all.silent.extend(silent);
    Ok(all)
}

/// Hosts by an argument that may also name a job: a file, or a list.
pub fn of_word(word: &str, options: SshOptions) -> Option<Result<JobHosts, String>> {
    if Path::new(word).is_file() {
        return Some(JobHosts::of_file(Path::new(word), options));
    }
    let list = || {
        hosts::list(word).map(|hosts| JobHosts { hosts, options, job: None }).map_err(|all| all.join("; "))
    };
    word.contains(',').then(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{RankView, job};

    fn part(id: &str, rank: usize) -> JobView {
        let ranks = vec![RankView { rank, ..RankView::default() }];
        JobView { is_part: true, ranks, ..job(id, "h", 3) }
    }

    #[test]
    fn parts_are_put_together_and_the_whole_is_preferred() {
        let name = |n: &str| n.to_owned();
        let view = together(vec![
            (name("a"), Ok(part("7f", 1))),
            (name("b"), Err("no".into())),
            (name("c"), Ok(part("7f", 0))),
            (name("d"), Ok(part("8a", 0))),
        ]);
        let view = view.unwrap();
        assert_eq!(view.ranks.iter().map(|r| r.rank).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(view.silent, ["b"]);
        let whole = JobView { is_part: false, ..part("7f", 2) };
        let view = together(vec![(name("a"), Ok(part("7f", 1))), (name("b"), Ok(whole.clone()))]);
        assert_eq!(view.unwrap(), whole);
        assert_eq!(together(vec![(name("a"), Err("no".into()))]).unwrap_err(), "no");
        let options = || SshOptions {
            ssh: "ssh".into(),
            args: Vec::new(),
            python: None,
            copies: None,
            any_version: true,
        };
        assert!(of_word("123", options()).is_none() && of_word("a,b", options()).unwrap().is_ok());
    }
}
