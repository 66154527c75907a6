//! Jobs that go on without ranks.
//!
//! ```text
//!                   fails, and enough are left              the pause is over
//!   member --------------------------------------> down ----------------------> joiner
//!     |  <---------------------------------------------------------------------    |
//!     | ends with 0                     the group has taken it in                  | fails: down again
//!     v
//!   done                 no member runs any more: joiners end, and those that are down stay down
//! ```
//!
//! | rule | reason |
//! |---|---|
//! | Members and ranks that are done count as left. Joiners do not | a joiner may wait for a group that nobody forms any more |
//! | Fewer are left than the terms ask for: the job ends like any other that failed | |
//! | Processes that others started are members too | they may carry the job while ranks of this launcher are down |
//! | From the first rank that is done on, nobody is started again | the job's work is done |
//! | Only words about the first failures name its cause | after that the group has other numbers than the launcher |
use super::{GRACE, Machine, Role};
use std::time::Instant;

/// Terms on which a job goes on without ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElasticTerms {
    /// Ranks that have to be left.
    pub(crate) fewest: usize,
    /// Number of times that each rank is started again at most.
    pub(crate) restarts: u32,
}

/// Host that was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostHost {
    pub(super) host: usize,
    /// Tries in vain since it was lost.
    pub(super) tries: u32,
    /// When it is tried again; none while it is tried.
    pub(super) again: Option<Instant>,
}

/// Members of the group, with those that have done their work.
pub(super) fn left_now(machine: &Machine) -> usize {
    machine.ranks.iter().filter(|r| r.is_member()).count() + machine.well.len() + machine.guests
}

/// Returns whether ranks are down that will be started again, or another launcher may want some.
pub(super) fn may_start(machine: &Machine) -> bool {
    let obeys = machine.plan.role == Role::Host && machine.plan.elastic.is_some() && !machine.is_ordered;
    obeys || !machine.lost_hosts.is_empty() || machine.ranks.iter().any(|r| r.again.is_some())
}

/// Returns whether the group may have formed again before the failure that ended the job.
pub(super) fn has_gone_on(machine: &Machine) -> bool {
    let times = machine.first_failure.zip(machine.failed_at).filter(|_| machine.plan.elastic.is_some());
    times.is_some_and(|(first, last)| last.saturating_duration_since(first) > GRACE)
}

/// End of the sentence on the failure that left too few ranks.
pub(super) fn too_few(machine: &Machine) -> String {
    let Some((left, terms)) = machine.left.zip(machine.plan.elastic).filter(|(l, t)| *l < t.fewest) else {
        return String::new();
    };
    let were = if left == 1 { "1 rank was" } else { &format!("{left} ranks were") };
    format!("; {were} left then, and --elastic asks for {} at least", terms.fewest)
}

/// End of the summary: the ranks that were started again.
pub(super) fn restarted(machine: &Machine) -> String {
    let again = (machine.plan.first..).zip(&machine.ranks).filter(|(_, r)| r.restarts > 0);
    let all: Vec<String> = again
        .map(|(rank, r)| {
            format!(
                "{rank} {}",
                if r.restarts == 1 { "once".into() } else { format!("{} times", r.restarts) }
            )
        })
        .collect();
    if all.is_empty() { String::new() } else { format!("; started again: {}", all.join(", ")) }
}
