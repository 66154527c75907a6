//! Findings of each node at the end of its ranks, and the verdict that all of them draw from these.
use super::watch::{Nodes, RUNNING};
use crate::launch::REFUSED;
use crate::launch::ending::Ending;
use crate::launch::shutdown::{Shutdown, StopReason};
use crate::launch::supervisor::{Supervisor, host};
use crate::launch::verdict::{CutOff, Findings, summary, with_cut_off};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A node's part of the truth.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeFindings {
    host: String,
    ranks: Vec<RankFinding>,
    /// Why the job ended there, where no rank's failure was the reason: the sentence and the exit code.
    cause: Option<(String, u8)>,
    cut_off: Option<CutOff>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankFinding {
    rank: usize,
    pid: i32,
    /// Exit code, or the signal.
    code: i32,
    signalled: bool,
    /// Milliseconds since the nodes had agreed.
    at: u64,
    /// Before the ranks there were ended.
    early: bool,
    root_cause: Option<usize>,
    memory: String,
}

impl RankFinding {
    fn ending(&self) -> Ending {
        if self.signalled { Ending::Signal(self.code) } else { Ending::Exit(self.code) }
    }
}

impl Supervisor {
    /// Another node ends the job, or is not heard of any more: `usize::MAX` where it is not known which.
    pub(super) fn another_ends(&mut self, node: usize) {
        self.shutdown_of_host(node);
    }

    /// Findings of this node.
    pub(super) fn findings(&self) -> NodeFindings {
        let since = self.nodes.as_ref().map(|n| n.since);
        let mut ranks = Vec::new();
        for (number, end) in self.ends.iter().enumerate() {
            let Some(end) = end else { continue };
            let (code, signalled) = match end.ending {
                Ending::Exit(code) => (code, false),
                Ending::Signal(signal) => (signal, true),
            };
            let rank = self.job.first + number;
            let at = since.map(|s| end.at.saturating_duration_since(s)).unwrap_or_default();
            ranks.push(RankFinding {
                rank,
                pid: self.pid_of(number),
                code,
                signalled,
                at: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
                early: end.early,
                root_cause: self.meeting.root_cause_of(rank),
                memory: self.memory_of(number).unwrap_or_default().into(),
            });
        }
        let is_told = match self.cause() {
            // No rank failed, so nobody else finds that.
            Some(StopReason::Missed { ending, .. }) => !ending.is_failure(),
            None | Some(StopReason::Failed { .. } | StopReason::HostLost { .. }) => false,
            Some(_) => true,
        };
        let (text, code) = self.verdict();
        let cause = text.filter(|_| is_told).map(|text| (text, code));
        NodeFindings { host: host(), ranks, cause, cut_off: self.cut_off.clone() }
    }

    /// The last line and the exit code, of the whole job where all have said what they found.
    pub(in crate::launch) fn verdict_of_all(&self) -> (Option<String>, u8) {
        let Some(nodes) = &self.nodes else { return self.verdict() };
        let news = nodes.heard.news();
        if let Some(all) = &news.all {
            let (text, code, how) = judge(all);
            if let (Some(_), Some(how)) = (&text, how) {
                self.output.say(&how);
            }
            return (with_cut_off(text, all.iter().filter_map(|node| node.cut_off.as_ref())), code);
        }
        match (self.cause(), &news.lost) {
            (Some(StopReason::Failed { ending, .. }), _) if !ending.may_be_a_consequence() => self.verdict(),
            (Some(StopReason::Interrupted { .. } | StopReason::TimedOut), _) => self.verdict(),
            (_, Some((node, why))) => (Some(lost(nodes, *node, why)), REFUSED),
            (_, None) => match self.verdict() {
                (None, _) => (Some("the other nodes did not say how their ranks ended".into()), REFUSED),
                found => found,
            },
        }
    }
}

fn lost(nodes: &Nodes, node: Option<usize>, why: &str) -> String {
    match node.and_then(|n| Some((n, nodes.words.get(n)?))) {
        Some((n, word)) => {
            let first: usize = nodes.words[..n].iter().map(|w| w.size).sum();
            let last = first + word.size - 1;
            let ranks = if word.size == 1 { format!("rank {last}") } else { format!("ranks {first}-{last}") };
            format!("node {n} (host {}, {ranks}) was lost: {why}", word.host)
        }
        None => format!("the launchers of the nodes lost each other: {why}"),
    }
}

/// The last line, the exit code, and how all ranks ended.
fn judge(all: &[NodeFindings]) -> (Option<String>, u8, Option<String>) {
    let mut ranks: Vec<(&RankFinding, &str)> =
        all.iter().flat_map(|n| n.ranks.iter().map(|r| (r, n.host.as_str()))).collect();
    let world = ranks.iter().map(|(r, _)| r.rank + 1).max().unwrap_or_default();
    let mut endings = vec![None; world];
    ranks.iter().for_each(|(r, _)| endings[r.rank] = Some(r.ending()));
    ranks.sort_by_key(|(r, _)| r.at);
    let mut shutdown = Shutdown::new(world, None);
    let begun = Instant::now();
    for (rank, _) in ranks.iter().filter(|(r, _)| r.early) {
        let at = begun.checked_add(Duration::from_millis(rank.at)).unwrap_or(begun);
        shutdown.ended(rank.rank, rank.ending(), at);
    }
    let find = |rank: usize| ranks.iter().find(|(r, _)| r.rank == rank);
    shutdown.find_root_cause(|rank| find(rank).and_then(|(r, _)| r.root_cause));
    let Some(cause) = shutdown.cause() else {
        let other = all.iter().enumerate().find_map(|(n, found)| Some((n, found, found.cause.as_ref()?)));
        return match other {
            Some((n, found, (text, code))) => {
                (Some(format!("node {n} (host {}): {text}", found.host)), *code, None)
            }
            None => (None, RUNNING, None),
        };
    };
    let memory = match cause {
        StopReason::Failed { rank, .. } => {
            find(*rank).map(|(r, _)| r.memory.as_str()).filter(|m| !m.is_empty())
        }
        _ => None,
    };
    let name = |rank: usize| match find(rank) {
        Some((r, host)) => format!("rank {rank} (pid {}, host {host})", r.pid),
        None => format!("rank {rank}"),
    };
    let (text, code) = Findings {
        cause: Some(cause),
        name: &name,
        was_stopped: &|_| false,
        memory,
        timeout: None,
        unstarted: None,
        unread: None,
        lost_host: &|_| String::new(),
    }
    .verdict();
    (text, code, summary(Some(cause), &endings, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize, code: i32, at: u64, root_cause: Option<usize>) -> RankFinding {
        let memory = String::new();
        RankFinding { rank, pid: 70, code, signalled: false, at, early: true, root_cause, memory }
    }

    fn node(host: &str, ranks: Vec<RankFinding>) -> NodeFindings {
        NodeFindings { host: host.into(), ranks, cause: None, cut_off: None }
    }

    #[test]
    fn the_first_failure_that_others_name_is_the_jobs() {
        let all = [node("a", vec![rank(0, 1, 5, Some(1))]), node("b", vec![rank(1, 7, 9, None)])];
        let (text, code, how) = judge(&all);
        assert_eq!(text.unwrap(), "rank 1 (pid 70, host b) exited with code 7");
        assert_eq!(
            (code, how.unwrap().as_str()),
            (7, "how the ranks ended: 0 exited with code 1; 1 exited with code 7")
        );
    }

    #[test]
    fn a_node_that_was_ended_from_outside_is_named() {
        let mut b = node("b", vec![]);
        b.cause = Some(("ended by SIGINT".into(), 130));
        let (text, code, _) = judge(&[node("a", vec![rank(0, 0, 5, None)]), b]);
        assert_eq!((text.as_deref(), code), (Some("node 1 (host b): ended by SIGINT"), 130));
        assert_eq!(judge(&[node("a", vec![rank(0, 0, 5, None)])]).1, 0);
    }
}
