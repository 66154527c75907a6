//! Findings of each node at the end of its ranks, and the verdict that all of them draw from these.
use super::{CutOff, Ending, Event, JobPlan, Life, Machine, REFUSED, StopReason, Verdict, with_cut_off};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A node's part of the truth.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NodeFindings {
    host: String,
    ranks: Vec<RankFinding>,
    /// Sentence and exit code, if the job ended for another reason than a rank's failure.
    cause: Option<(String, u8)>,
    cut_off: Option<CutOff>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankFinding {
    rank: usize,
    pid: i32,
    ending: Ending,
    /// Milliseconds since the nodes had agreed.
    at: u64,
    /// Before the ranks there were ended.
    early: bool,
    root_cause: Option<usize>,
    memory: String,
}

impl NodeFindings {
    /// Findings of this node. `since`: when the nodes had agreed; `pid` and `name`: of a rank.
    pub(crate) fn of(
        machine: &Machine,
        host: String,
        since: Instant,
        pid: &dyn Fn(usize) -> i32,
        name: &dyn Fn(usize) -> String,
    ) -> Self {
        let mut ranks = Vec::new();
        for (rank, state) in (machine.plan.first..).zip(&machine.ranks) {
            let Life::Ended { ending, at, early } = state.life else { continue };
            let at = at.saturating_duration_since(since).as_millis();
            ranks.push(RankFinding {
                rank,
                pid: pid(rank),
                ending,
                at: u64::try_from(at).unwrap_or(u64::MAX),
                early,
                root_cause: state.blames,
                memory: state.memory.clone(),
            });
        }
        let is_told = match machine.root_cause() {
            // No rank failed, so nobody else finds that.
            Some(StopReason::Missed { ending, .. }) => !ending.is_failure(),
            None | Some(StopReason::Failed { .. } | StopReason::HostLost { .. }) => false,
            Some(_) => true,
        };
        let verdict = Verdict::of(machine, name, None);
        let cause = verdict.text.filter(|_| is_told).map(|text| (text, verdict.code));
        Self { host, ranks, cause, cut_off: machine.cut_off.clone() }
    }
}

/// Verdict of this node where the others did not say what they found: `lost` has the sentence on a node that was lost.
pub(crate) fn verdict_alone(
    machine: &Machine,
    lost: Option<String>,
    name: &dyn Fn(usize) -> String,
) -> Verdict {
    let own = Verdict::of(machine, name, None);
    let is_own = match machine.root_cause() {
        Some(StopReason::Failed { ending, .. }) => !ending.may_be_a_consequence(),
        Some(StopReason::Interrupted { .. } | StopReason::TimedOut) => true,
        _ => false,
    };
    if is_own {
        return own;
    }
    let silent = || "the other nodes did not say how their ranks ended".to_owned();
    let text = match lost {
        Some(lost) => Some(lost),
        None if own.text.as_deref().is_none_or(str::is_empty) => Some(silent()),
        None => return own,
    };
    Verdict { summary: None, text, code: REFUSED }
}

/// A machine to which the ends of all nodes' ranks happen in their order.
pub(super) fn replay(all: &[NodeFindings]) -> Machine {
    let mut ranks: Vec<&RankFinding> = all.iter().flat_map(|n| &n.ranks).collect();
    let world = ranks.iter().map(|r| r.rank + 1).max().unwrap_or_default();
    ranks.sort_by_key(|r| (!r.early, r.at));
    let plan = JobPlan { hosts: vec![0; world], world, ..JobPlan::default() };
    let begun = Instant::now();
    let mut machine = Machine::new(plan, begun);
    machine.on(Event::Begin, begun);
    for found in ranks {
        let at = begun.checked_add(Duration::from_millis(found.at)).unwrap_or(begun);
        let rank = found.rank;
        if let Some(named) = found.root_cause {
            machine.on(Event::Blames { by: rank, rank: named }, at);
        }
        if !found.early {
            machine.end_judging();
        }
        machine.on(Event::Ended { rank, ending: found.ending, memory: found.memory.clone() }, at);
    }
    machine
}

/// The node that knows more of the cause than its ranks' ends tell, its host and its word: where no rank failed, or one is missed that
/// was being ended at its node for another reason.
pub(super) fn said_by_a_node<'a>(
    all: &'a [NodeFindings],
    cause: Option<&StopReason>,
) -> Option<(usize, &'a str, &'a (String, u8))> {
    let was_ended = |node: &NodeFindings| match cause {
        None => true,
        Some(StopReason::Missed { rank, .. }) => node.ranks.iter().any(|r| r.rank == *rank && !r.early),
        Some(_) => false,
    };
    let mut nodes = all.iter().enumerate().filter(|(_, node)| was_ended(node));
    nodes.find_map(|(number, node)| Some((number, node.host.as_str(), node.cause.as_ref()?)))
}

pub(crate) fn judge(all: &[NodeFindings]) -> Verdict {
    let machine = replay(all);
    let ranks: Vec<(&RankFinding, &str)> =
        all.iter().flat_map(|n| n.ranks.iter().map(|r| (r, n.host.as_str()))).collect();
    let find = |rank: usize| ranks.iter().find(|(r, _)| r.rank == rank);
    let name = |rank: usize| match find(rank) {
        Some((r, host)) => format!("rank {rank} (pid {}, host {host})", r.pid),
        None => format!("rank {rank}"),
    };
    let verdict = match said_by_a_node(all, machine.root_cause().as_ref()) {
        Some((node, host, (text, code))) => {
            let text = Some(format!("node {node} (host {host}): {text}"));
            Verdict { summary: None, text, code: *code }
        }
        None => Verdict::of(&machine, &name, None),
    };
    let cuts = all.iter().filter_map(|node| node.cut_off.as_ref());
    Verdict { text: with_cut_off(verdict.text, cuts), ..verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize, code: i32, at: u64, root_cause: Option<usize>) -> RankFinding {
        let memory = String::new();
        RankFinding { rank, pid: 70, ending: Ending::Exit(code), at, early: true, root_cause, memory }
    }

    fn node(host: &str, ranks: Vec<RankFinding>) -> NodeFindings {
        NodeFindings { host: host.into(), ranks, cause: None, cut_off: None }
    }

    #[test]
    fn the_first_failure_that_others_name_is_the_jobs() {
        let all = [node("a", vec![rank(0, 1, 5, Some(1))]), node("b", vec![rank(1, 7, 9, None)])];
        let found = judge(&all);
        assert_eq!(found.text.unwrap(), "rank 1 (pid 70, host b) exited with code 7");
        assert_eq!(
            (found.code, found.summary.unwrap().as_str()),
            (7, "how the ranks ended: 0 exited with code 1; 1 exited with code 7")
        );
    }

    #[test]
    fn who_misses_a_rank_that_its_node_ended_is_no_cause() {
        let mut told = rank(0, 1, 9, None);
        told.early = false;
        let mut a = node("a", vec![told]);
        a.cause = Some(("ended by SIGINT".into(), 130));
        let found = judge(&[a.clone(), node("b", vec![rank(1, 3, 5, Some(0))])]);
        assert_eq!((found.text.as_deref(), found.code), (Some("node 0 (host a): ended by SIGINT"), 130));
        a.cause = None;
        let found = judge(&[a, node("b", vec![rank(1, 3, 5, Some(0))])]);
        assert!(found.text.is_some_and(|text| text.starts_with("rank 0 ")) && found.code == 3);
    }

    #[test]
    fn a_node_that_was_ended_from_outside_is_named() {
        let mut b = node("b", vec![]);
        b.cause = Some(("ended by SIGINT".into(), 130));
        let found = judge(&[node("a", vec![rank(0, 0, 5, None)]), b]);
        assert_eq!((found.text.as_deref(), found.code), (Some("node 1 (host b): ended by SIGINT"), 130));
        assert_eq!(judge(&[node("a", vec![rank(0, 0, 5, None)])]).code, 0);
    }
}
