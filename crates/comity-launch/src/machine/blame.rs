//! Blame for the end of a job, by what ranks say of each other: pure functions of what the machine knows.
use super::elastic::has_gone_on;
use super::{Life, Machine, Phase, Role, StopReason};

/// Cause of the job's end, by what the ranks say of each other: one that failed because of another one is not the cause. Whoever
/// crashed is no consequence. The first failure stays the cause where ranks name each other in a circle.
pub(super) fn root_cause(machine: &Machine) -> Option<StopReason> {
    let found = blamed(machine).ok().or_else(|| machine.cause.clone());
    match found {
        // Those who missed it were right, and the host is why.
        Some(StopReason::Missed { rank, .. }) if machine.rank(rank).is_some_and(|r| r.life == Life::Lost) => {
            machine.rank(rank).map(|r| StopReason::HostLost { host: r.host })
        }
        found => found,
    }
}

/// The cause by the ranks' words, or the ranks that name each other in a circle; none where nobody was named.
pub(super) fn blamed(machine: &Machine) -> Result<StopReason, Vec<usize>> {
    let Some(StopReason::Failed { rank, ending }) = &machine.cause else { return Err(Vec::new()) };
    if has_gone_on(machine) {
        return Err(Vec::new());
    }
    let mut rank = *rank;
    let mut ending = *ending;
    let mut passed = vec![rank];
    while ending.may_be_a_consequence()
        && let Some(next) = machine.rank(rank).and_then(|r| r.blames).filter(|n| *n < machine.plan.world)
    {
        if let Some(at) = passed.iter().position(|rank| *rank == next) {
            let mut circle = passed.split_off(at);
            circle.sort_unstable();
            return Err(circle);
        }
        passed.push(next);
        let Some(&(_, theirs)) = machine.failures.iter().find(|(r, _)| *r == next) else {
            // What it said itself after that may be a consequence of the others' ends.
            let ended = machine.well.contains(&next);
            return Ok(StopReason::Missed { rank: next, ended, by: rank, ending });
        };
        rank = next;
        ending = theirs;
    }
    Ok(StopReason::Failed { rank, ending })
}

/// The first rank that still runs and the rank that gave it up, if all that run were given up by ranks that ended with 0.
pub(super) fn deserted(machine: &Machine) -> Option<(usize, usize)> {
    if !may_be_deserted(machine) {
        return None;
    }
    if machine.plan.elastic.is_some() {
        return machine.awaited().next().zip(machine.well.first().copied());
    }
    let here: Vec<_> = machine.given_up_here().collect();
    let giver = |rank: usize| {
        let mut all = here.iter().chain(&machine.given_up);
        all.find_map(|(named, by)| (*named == rank).then_some(*by))
    };
    let mut awaited = machine.awaited();
    let first = awaited.next()?;
    let by = giver(first)?;
    awaited.all(|rank| giver(rank).is_some()).then_some((first, by))
}

pub(super) fn may_be_deserted(machine: &Machine) -> bool {
    let some_left = !machine.well.is_empty() || !machine.given_up.is_empty();
    machine.plan.role != Role::Host && machine.phase == Phase::Running && some_left
}
