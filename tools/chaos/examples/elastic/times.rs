//! Times from a death, a silence or a joiner to the next sum.

use super::{
    Choice,
    hosts::{Hosts, STORE},
    job::{Job, LONG},
    rank::{Line, Work},
};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

/// Times of all trials, in ns.
#[derive(Debug, Default)]
struct Times {
    rows: Vec<(&'static str, Vec<u64>)>,
}

impl Times {
    fn add(&mut self, name: &'static str, ns: u64) {
        match self.rows.iter_mut().find(|(n, _)| *n == name) {
            Some((_, all)) => all.push(ns),
            None => self.rows.push((name, vec![ns])),
        }
    }

    fn print(&mut self, title: &str) {
        println!(
            "{title}, ms\n| time | trials | p50 | p90 | p99 | longest |\n|---|---:|---:|---:|---:|---:|"
        );
        for (name, all) in &mut self.rows {
            all.sort_unstable();
            let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)] as f64 / 1e6;
            let n = all.len();
            println!("| {name} | {n} | {:.1} | {:.1} | {:.1} | {:.1} |", at(50), at(90), at(99), at(100));
        }
    }
}

fn last(sums: &BTreeMap<u32, Line>, number: usize) -> u64 {
    sums.values().filter_map(|line| line.numbers.get(number)).copied().max().unwrap_or(0)
}

/// Kill ranks, or stop them for good, one after the other; each time a joiner comes in the place.
pub(super) fn kill(choice: &Choice, only_stop: bool) -> Result<(), String> {
    let hosts = if choice.two_hosts { Some(Hosts::new()?) } else { None };
    hosts.as_ref().map_or(Ok(()), Hosts::enter)?;
    let at = if choice.two_hosts { STORE } else { Ipv4Addr::LOCALHOST };
    let mut job = Job::start(at, choice, Work::Sums, hosts.as_ref().map(Hosts::second))?;
    let mut ranks = job.sums(&job.pids(), choice.ranks)?;
    let mut times = Times::default();
    for trial in 0..choice.trials {
        // Not at the same moment of each step.
        thread::sleep(Duration::from_micros(50_000 + 1_237 * (trial as u64 % 16)));
        let place = trial * 3 % choice.ranks;
        let dead = ranks.iter().find(|(_, l)| l.rank == place).map(|(pid, _)| *pid).ok_or("no such rank")?;
        let others: Vec<u32> = ranks.keys().copied().filter(|pid| *pid != dead).collect();
        let at = chaos::monotonic();
        job.signal(dead, if only_stop { Signal::STOP } else { Signal::KILL });
        let sums = job.sums(&others, choice.ranks - 1)?;
        times.add("to the first sum", last(&sums, 2).saturating_sub(at));
        times.add("of these: until the last call fails", last(&sums, 0).saturating_sub(at));
        times.add("until the last group is formed", last(&sums, 1).saturating_sub(last(&sums, 0)));
        times.add("its first sum", last(&sums, 2).saturating_sub(last(&sums, 1)));
        job.signal(dead, Signal::KILL);
        job.reap(dead)?;
        let joiner = job.join(None)?;
        ranks = job.sums(&job.pids(), choice.ranks)?;
        let connect = ranks.get(&joiner).and_then(|l| l.numbers.first()).copied().unwrap_or(0);
        times.add("a joiner, from its connect to its first sum", ranks[&joiner].numbers[2] - connect);
    }
    job.end()?;
    let what = if only_stop { format!("stopped, limit {} s", choice.detection) } else { "killed".into() };
    let places = if choice.two_hosts { "two hosts" } else { "one host" };
    times.print(&format!("{} ranks on {places}, links {}, one is {what}", choice.ranks, choice.links));
    Ok(())
}

/// Form a healthy group again.
pub(super) fn healthy(choice: &Choice) -> Result<(), String> {
    let mut job = Job::start(Ipv4Addr::LOCALHOST, choice, Work::Healthy(choice.trials), None)?;
    let mut lines: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
    for _ in 0..choice.trials * choice.ranks {
        let until = Instant::now() + LONG;
        let (pid, line) = job.hear(until)?.ok_or("no new group")?;
        lines.entry(pid).or_default().push(line.ok_or("a rank ended")?);
    }
    job.end()?;
    let mut times = Times::default();
    for trial in 0..choice.trials {
        let of = |line: &Line, to: usize| Some(line.numbers.get(to)?.saturating_sub(*line.numbers.first()?));
        let longest = |to: usize| lines.values().filter_map(|all| of(all.get(trial)?, to)).max().unwrap_or(0);
        times.add("reform", longest(1));
        times.add("and the first sum", longest(2));
    }
    times.print(&format!("{} ranks, links {}, healthy", choice.ranks, choice.links));
    Ok(())
}
