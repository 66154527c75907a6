//! A job that was launched on another machine: the hosts of a hostfile are asked over `ssh` what `comity top --json` says there.
use super::hosts::{self, FleetHost};
use super::ssh::{self, SshOptions};
use crate::live::{self, JobView};
use std::path::Path;
use std::process::Stdio;

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
