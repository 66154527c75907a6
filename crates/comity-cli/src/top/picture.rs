//! Two looks at a job, made into what people want to know: who does what, how fast, and for whom all wait.
use crate::live::{CallView, GroupView, JobView, LinkView, RankState, RankView};
use serde::Serialize;
use std::collections::BTreeMap;

/// A call in which nothing moved for so long hangs.
pub(crate) const HANGS: f64 = 3.0;
/// A rank whose waiting share is lower than that of all others by this is slow.
const SLOWER: f64 = 0.2;

/// A job as it is shown.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Picture {
    pub(crate) title: String,
    pub(crate) command: String,
    pub(crate) up: f64,
    pub(crate) rows: Vec<Row>,
    pub(crate) lines: Vec<LinkLine>,
    /// Links that are not shown.
    pub(crate) more_lines: usize,
    pub(crate) findings: Vec<Finding>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) mark: RankMark,
    pub(crate) state: String,
    /// The call under way, or the last one.
    pub(crate) call: String,
    pub(crate) in_call: bool,
    /// Seconds since it began, or since the last one ended.
    pub(crate) age: Option<f64>,
    pub(crate) waits_for: Option<usize>,
    /// From 0 to 1.
    pub(crate) waiting: Option<f64>,
    /// Bits a second over all links.
    pub(crate) out: Option<f64>,
    pub(crate) inward: Option<f64>,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RankMark {
    #[default]
    Fine,
    Waits,
    Slow,
    Hung,
    Failed,
}

/// A link between two ranks; `a` is the lower one.
#[derive(Debug, Serialize)]
pub(crate) struct LinkLine {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) kind: String,
    /// Bits a second from `a` to `b`, and back.
    pub(crate) there: Option<f64>,
    pub(crate) back: Option<f64>,
    /// Bytes so far.
    pub(crate) total: u64,
}

/// A sentence, and how bad it is.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) mark: RankMark,
    pub(crate) text: String,
}

/// Most links that are shown.
const LINES: usize = 256;

/// Picture of `now`, and of its changes since `before`.
pub(crate) fn picture(before: Option<&JobView>, now: &JobView) -> Picture {
    let old = |rank: usize| before.and_then(|v| v.ranks.iter().find(|r| r.rank == rank));
    let mut rows: Vec<Row> = now.ranks.iter().map(|r| row(old(r.rank), r)).collect();
    let mut findings = Vec::new();
    if let Some(epoch) = newest_epoch(now) {
        findings.push(Finding { mark: RankMark::Fine, text: formed(now, epoch) });
        let renamed =
            rows.iter_mut().zip(&now.ranks).filter(|(_, r)| r.newest().is_some_and(|g| g.epoch == epoch));
        for (row, rank) in renamed {
            let world = rank.newest().map_or(0, |g| g.world);
            row.waits_for = row.waits_for.and_then(|number| place(now, world, number));
        }
    }
    let culprit = culprit(&rows);
    failures(now, &rows, &mut findings);
    if let Some((rank, finding)) = slowest(&rows, culprit) {
        if let Some(row) = rows.iter_mut().find(|r| r.rank == rank && r.mark < finding.mark) {
            row.mark = finding.mark;
        }
        findings.push(finding);
    }
    for host in &now.silent {
        let mark = if now.ranks.len() < now.size { RankMark::Failed } else { RankMark::Fine };
        findings.push(Finding { mark, text: now.silence(host) });
    }
    if let Some(text) = now.missing() {
        findings.push(Finding { mark: RankMark::Fine, text });
    }
    let mut lines = lines(before, now);
    let more_lines = lines.len().saturating_sub(LINES);
    lines.truncate(LINES);
    Picture {
        title: format!(
            "job {} (launcher pid {} on {}), {} ranks",
            now.job_id, now.launcher, now.host, now.size
        ),
        command: now.command.clone(),
        up: now.up_ns as f64 / 1e9,
        rows,
        lines,
        more_lines,
        findings,
    }
}

/// Number of times that the job's group was formed again, as far as is seen.
fn newest_epoch(now: &JobView) -> Option<u32> {
    now.ranks.iter().filter_map(|r| Some(r.newest()?.epoch)).max()
}

/// Sentence on the group of this epoch: how large it is, who came, who went, and who waits to come.
fn formed(now: &JobView, epoch: u32) -> String {
    let members = now.ranks.iter().filter_map(|r| Some((r.rank, r.newest().filter(|g| g.epoch == epoch)?)));
    let members: Vec<(usize, &GroupView)> = members.collect();
    let most = |of: fn(&GroupView) -> u32| members.iter().map(|(_, g)| of(g)).max().unwrap_or(0) as usize;
    let count =
        |n: usize, one: &str, many: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {many}") };
    let list = |all: &[usize]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let size = members.iter().map(|(_, g)| g.size).max().unwrap_or(0);
    let mut text = format!("epoch {epoch}: the group was formed again with {}", count(size, "rank", "ranks"));
    let came: Vec<usize> = members.iter().filter(|(_, g)| g.since == epoch).map(|(rank, _)| *rank).collect();
    let others = most(|g| g.joined).saturating_sub(came.len());
    let joined = [
        (!came.is_empty()).then(|| format!("rank{} {}", s(&came), list(&came))),
        (others > 0).then(|| format!("{} that others started", count(others, "process", "processes"))),
    ];
    let joined: Vec<String> = joined.into_iter().flatten().collect();
    if !joined.is_empty() {
        text += &format!("; joined: {}", joined.join(" and "));
    }
    let left = most(|g| g.left);
    if left > 0 {
        text += &format!("; {} left", count(left, "rank", "ranks"));
    }
    let waiters = |r: &&RankView| r.state == RankState::Running && r.restarts > 0 && r.groups.is_empty();
    let waiting: Vec<usize> = now.ranks.iter().filter(waiters).map(|r| r.rank).collect();
    if !waiting.is_empty() {
        text += &format!("; rank{} {} to be taken in", s(&waiting), waits(&waiting));
    }
    text
}

/// Rank that a number of a world stands for: the launcher's numbers are those of the start. `None`: a process that others started, or a
/// world that is over.
fn place(now: &JobView, world: u32, number: usize) -> Option<usize> {
    let is_it = |g: &GroupView| g.world == world && g.number == number;
    let found = || now.ranks.iter().find(|r| r.newest().is_some_and(is_it)).map(|r| r.rank);
    if world == 0 { Some(number) } else { found() }
}

/// Returns whether a rank is in a group that followed the one in which calls of it failed.
fn has_gone_on(rank: &RankView) -> bool {
    rank.newest().is_some_and(|g| g.calls.iter().all(|c| c.state != "failed"))
}

/// The group whose call is under way for longest; else the one whose last call ended last.
pub(crate) fn busiest(rank: &RankView) -> Option<(&GroupView, &CallView)> {
    let current = rank.groups.iter().filter_map(|g| Some((g, g.current()?)));
    let last = || rank.groups.iter().filter_map(|g| Some((g, g.calls.last()?)));
    current.max_by_key(|(_, c)| c.began_ns).or_else(|| last().min_by_key(|(_, c)| c.ended_ns))
}

fn row(old: Option<&RankView>, rank: &RankView) -> Row {
    let span = old.map(|o| rank.at_ns.saturating_sub(o.at_ns)).filter(|t| *t > 0).map(|t| t as f64 / 1e9);
    let rate = |of: fn(&RankView) -> u64| Some(of(rank).saturating_sub(of(old?)) as f64 * 8.0 / span?);
    let asleep = |r: &RankView| r.waited_ns + r.groups.iter().map(|g| g.asleep_ns).sum::<u64>();
    let waiting =
        old.zip(span).map(|(o, span)| (asleep(rank).saturating_sub(asleep(o)) as f64 / 1e9 / span).min(1.0));
    let busy = busiest(rank);
    let current = busy.filter(|(_, c)| c.state == "begun");
    let (call, age) = match (current, busy) {
        (Some((group, call)), _) => (named(group, call), Some(call.began_ns)),
        (None, Some((group, call))) => {
            let how = if call.state == "failed" { ", which failed" } else { "" };
            (format!("after {}{how}", named(group, call)), Some(call.ended_ns))
        }
        (None, None) if rank.calls + rank.errors > 0 => ("its groups are closed".into(), None),
        (None, None) => ("none yet".into(), None),
    };
    let runs = matches!(rank.state, RankState::Running | RankState::Stopped);
    let moved = old.is_none_or(|o| bytes(o) != bytes(rank) || o.calls != rank.calls);
    let age = age.map(|ns| ns as f64 / 1e9);
    let mark = match rank.state {
        RankState::Ended(code) if code != 0 => RankMark::Failed,
        RankState::Stopped => RankMark::Hung,
        _ if rank.errors > 0 && !has_gone_on(rank) => RankMark::Failed,
        _ if runs && current.is_some() && !moved && age.is_some_and(|a| a > HANGS) => RankMark::Waits,
        _ => RankMark::Fine,
    };
    Row {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: rank.pid,
        mark,
        state: match rank.state {
            RankState::Waiting => "not started".into(),
            RankState::Running if rank.restarts > 0 => format!("runs, start {}", rank.restarts + 1),
            RankState::Running => "runs".into(),
            RankState::Stopped => "stopped".into(),
            RankState::Ended(0) => "ended".into(),
            RankState::Ended(code) => format!("failed ({code})"),
        },
        call,
        in_call: current.is_some(),
        age: age.filter(|_| runs),
        // One that is stopped says what was before, and waits for nobody but who continues it.
        waits_for: current.filter(|_| rank.state == RankState::Running).and_then(|(g, _)| g.waits_for),
        waiting: waiting.filter(|_| runs),
        out: rate(|r| r.links.iter().map(|l| l.sent).sum()),
        inward: rate(|r| r.links.iter().map(|l| l.received).sum()),
        calls: rank.calls,
        errors: rank.errors,
    }
}

fn bytes(rank: &RankView) -> u64 {
    rank.links.iter().map(|l| l.sent.wrapping_add(l.received)).fold(0, u64::wrapping_add)
}

fn named(group: &GroupView, call: &CallView) -> String {
    match group.id.as_str() {
        "0" => call.text.clone(),
        _ if group.epoch > 0 => format!("{} (epoch {})", call.text, group.epoch),
        id => format!("{} (group {}, {} ranks)", call.text, &id[..id.len().min(6)], group.size),
    }
}

/// The rank at the end of the chains of those who wait, with those whose chains lead there.
fn culprit(rows: &[Row]) -> Option<(usize, Vec<usize>)> {
    let waits: BTreeMap<usize, usize> =
        rows.iter().filter(|r| r.age.is_some()).filter_map(|r| Some((r.rank, r.waits_for?))).collect();
    let mut votes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &from in waits.keys() {
        let mut at = from;
        let mut seen = vec![from];
        while let Some(&next) = waits.get(&at) {
            at = next;
            if seen.contains(&next) {
                break;
            }
            seen.push(next);
        }
        // In a circle everyone waits: there nobody is at its end.
        if !waits.contains_key(&at) {
            votes.entry(at).or_default().push(from);
        }
    }
    votes.into_iter().max_by_key(|(rank, from)| (from.len(), std::cmp::Reverse(*rank)))
}

/// Rank that holds the others up, with the sentence on it.
fn slowest(rows: &[Row], culprit: Option<(usize, Vec<usize>)>) -> Option<(usize, Finding)> {
    let stuck = rows.iter().filter(|r| r.mark == RankMark::Waits).filter_map(|r| r.age).fold(0.0, f64::max);
    if let (Some((rank, from)), true) = (&culprit, stuck > HANGS) {
        let row = rows.iter().find(|r| r.rank == *rank);
        let does = match row {
            Some(r) if !r.state.starts_with("runs") => r.state.clone(),
            Some(r) => match r.age {
                Some(age) if !r.in_call => format!("in no call for {age:.0} s ({})", r.call),
                Some(age) => format!("in {} for {age:.0} s", r.call),
                None => r.call.clone(),
            },
            None => "not seen here".into(),
        };
        let text = format!(
            "nothing has moved for {stuck:.0} s: rank{} {} for rank {rank}, which is {does}",
            s(from),
            waits(from)
        );
        return Some((*rank, Finding { mark: RankMark::Hung, text }));
    }
    if stuck > HANGS {
        let in_it: Vec<usize> = rows.iter().filter(|r| r.mark == RankMark::Waits).map(|r| r.rank).collect();
        let text = format!("nothing has moved for {stuck:.0} s: rank{} {}", s(&in_it), waits(&in_it));
        return Some((*in_it.first()?, Finding { mark: RankMark::Hung, text }));
    }
    let mut shares: Vec<(f64, usize)> = rows.iter().filter_map(|r| Some((r.waiting?, r.rank))).collect();
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let &(least, rank) = shares.first()?;
    let &(next, _) = shares.get(1)?;
    if next - least < SLOWER {
        return None;
    }
    let text = format!(
        "slowest: rank {rank} waits {:.0} % of the time, all others {:.0} % and more",
        least * 100.0,
        next * 100.0
    );
    Some((rank, Finding { mark: RankMark::Slow, text }))
}

fn s(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "" } else { "s" }
}

/// "0, 1, 3 wait"
fn waits(ranks: &[usize]) -> String {
    let shown: Vec<String> = ranks.iter().take(8).map(ToString::to_string).collect();
    let more = if ranks.len() > shown.len() {
        format!(" and {} more", ranks.len() - shown.len())
    } else {
        String::new()
    };
    format!("{}{more} wait{}", shown.join(", "), if ranks.len() == 1 { "s" } else { "" })
}

fn failures(now: &JobView, rows: &[Row], findings: &mut Vec<Finding>) {
    for (rank, row) in now.ranks.iter().zip(rows) {
        let failed = rank.groups.iter().flat_map(|g| &g.calls).rfind(|c| c.state == "failed");
        let text = match (&rank.state, failed) {
            (RankState::Ended(0), _) if rank.errors == 0 => continue,
            (RankState::Ended(code), _) if *code != 0 => format!("rank {} ended with code {code}", rank.rank),
            (RankState::Stopped, _) => format!(
                "rank {} (pid {}, host {}) is stopped; `kill -CONT {}` continues it",
                rank.rank, row.pid, row.host, row.pid
            ),
            _ if has_gone_on(rank) => continue,
            (_, Some(call)) => format!("rank {}: {} failed", rank.rank, call.text),
            _ if rank.errors > 0 => format!("rank {}: {} calls failed", rank.rank, rank.errors),
            _ => continue,
        };
        findings.push(Finding { mark: RankMark::Failed, text });
    }
}

/// Counters of one end: bytes so far, bits a second.
type LinkEnd = Option<(u64, Option<f64>)>;

/// A link by its ranks, with what went there and back.
type Ends = BTreeMap<(usize, usize, String), [LinkEnd; 2]>;

fn lines(before: Option<&JobView>, now: &JobView) -> Vec<LinkLine> {
    let mut ends = Ends::new();
    for rank in &now.ranks {
        let old = before.and_then(|v| v.ranks.iter().find(|r| r.rank == rank.rank));
        let span = old.map(|o| rank.at_ns.saturating_sub(o.at_ns) as f64 / 1e9).filter(|t| *t > 0.0);
        // Bytes there and back, now and before: two ranks may have had a link in each of several worlds.
        let mut totals: BTreeMap<(usize, &str), [u64; 4]> = BTreeMap::new();
        for link in &rank.links {
            let Some(peer) = place(now, link.world, link.peer) else { continue };
            let is_it = |l: &&LinkView| (l.world, l.peer, &l.kind) == (link.world, link.peer, &link.kind);
            let was = old.and_then(|o| o.links.iter().find(is_it)).map_or((0, 0), |l| (l.sent, l.received));
            let total = totals.entry((peer, &link.kind)).or_default();
            for (sum, bytes) in total.iter_mut().zip([link.sent, link.received, was.0, was.1]) {
                *sum = sum.wrapping_add(bytes);
            }
        }
        let rate = |new: u64, old: u64| Some(new.saturating_sub(old) as f64 * 8.0 / span?);
        for ((peer, kind), [sent, received, was_sent, was_received]) in totals {
            let low = rank.rank.min(peer);
            let high = rank.rank.max(peer);
            let entry = ends.entry((low, high, kind.into())).or_default();
            // The sender knows best; the receiver speaks where the sender is not seen.
            let (mine, theirs) = if rank.rank == low { (0, 1) } else { (1, 0) };
            entry[mine] = Some((sent, rate(sent, was_sent)));
            entry[theirs].get_or_insert_with(|| (received, rate(received, was_received)));
        }
    }
    let line = |((a, b, kind), [there, back]): (_, [LinkEnd; 2])| LinkLine {
        a,
        b,
        kind,
        there: there.and_then(|t| t.1),
        back: back.and_then(|t| t.1),
        total: there.map_or(0, |t| t.0) + back.map_or(0, |t| t.0),
    };
    ends.into_iter().map(line).filter(|l| l.total > 0).collect()
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
