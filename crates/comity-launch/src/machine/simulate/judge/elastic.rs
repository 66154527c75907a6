//! Promises about a job that goes on without ranks.
use super::{Judgement, LONGEST, broken, expect};
use crate::machine::simulate::scenario::{SECOND, SILENCE};
use crate::machine::simulate::world::{Place, Process, World};
use crate::machine::{ElasticTerms, Ending, Role, StopReason, restart};

/// Time in which a launcher knows that too few ranks are left.
const KNOWN: u64 = 300 + SECOND;

pub(super) fn judge(world: &World<'_>, terms: ElasticTerms) -> Judgement {
    let place = &world.places[0];
    for (rank, process) in world.ranks.iter().enumerate() {
        starts(world, terms, (rank, process))?;
    }
    others_go_on(world, place)?;
    too_few_end(world, place)?;
    the_verdict_is_true(world, place)
}

/// When the job was to end for another reason than its ranks.
fn stopped(world: &World<'_>, place: &Place) -> u64 {
    let unstartable = world.s.scripts.iter().any(|s| !s.is_startable).then_some(0);
    let times = [place.stop_heard, world.s.timeout, unstartable];
    times.into_iter().flatten().min().unwrap_or(u64::MAX)
}

fn starts(world: &World<'_>, terms: ElasticTerms, (rank, process): (usize, &Process)) -> Judgement {
    let lost = world.cuts.iter().filter(|cut| cut.host == world.s.hosts[rank]).count();
    let most = terms.restarts as usize + 1 + lost;
    if process.started.len() > most {
        return broken(format!(
            "rank {rank} is started {} times, and {most} are allowed",
            process.started.len()
        ));
    }
    for (i, at) in process.started.iter().enumerate().skip(1) {
        let Some(known) = process.known.get(i - 1) else {
            return broken(format!("rank {rank} is started while it runs"));
        };
        let failures = process.known[..i].iter().filter(|end| !end.with_host).count();
        // Of an end just before its host was lost the launcher may not know.
        if lost == 0 && *at < known.at + pause(failures) {
            return broken(format!("rank {rank} is started {} ms after its end", at - known.at));
        }
        // Of a rank that is done behind a cut cable the launcher does not know.
        let done = world.group.done.filter(|_| world.cuts.is_empty());
        if done.is_some_and(|done| *at > done + world.s.reaped + 2 * way(world)) {
            return broken(format!("rank {rank} is started when the work is done"));
        }
    }
    let place = &world.places[0];
    let is_lost = process.ended.is_some_and(|(_, e)| e.is_failure()) && !process.is_told;
    let host = world.s.hosts[rank];
    let is_away = world.cuts.iter().any(|cut| cut.host == host);
    let Some(known) = process.known.last().filter(|_| is_lost && !is_away && process.started.len() < most)
    else {
        return Ok(());
    };
    let due = known.at + pause(process.started.len()) + 2 * way(world);
    let ends = [place.failing_at, place.over, world.group.done, Some(stopped(world, place))];
    if ends.into_iter().flatten().all(|at| at > due) {
        return broken(format!("rank {rank} is not started again at {due} ms"));
    }
    Ok(())
}

/// Time of a message between the launcher and a host.
fn way(world: &World<'_>) -> u64 {
    if world.s.role == Role::Fleet { world.s.delay } else { 0 }
}

fn pause(number: usize) -> u64 {
    restart::pause(number as u32).as_millis() as u64
}

/// Ranks are ended when too few are left, when the work is done, or when somebody else wants it so.
fn others_go_on(world: &World<'_>, place: &Place) -> Judgement {
    let Some((term, _)) = place.orders.first() else { return Ok(()) };
    let group = &world.group;
    let cut = world.cuts.iter().map(|cut| cut.at).min();
    let may = [cut, group.first_low, group.done, Some(stopped(world, place))]
        .into_iter()
        .flatten()
        .any(|at| at <= *term);
    if may { Ok(()) } else { broken(format!("ranks are ended at {term} ms, and enough were left")) }
}

fn too_few_end(world: &World<'_>, place: &Place) -> Judgement {
    // Whom the launcher ends is not missed.
    let ended = place.orders.first().map_or(u64::MAX, |(at, _)| *at);
    let stop = stopped(world, place).min(ended);
    let known = KNOWN + way(world) + if world.cuts.is_empty() { 0 } else { SILENCE };
    if let Some(low) = world.group.low_since.filter(|low| low + known < stop)
        && place.failing_at.is_none_or(|at| at > low + known)
        && place.over.is_none_or(|at| at > low + known)
    {
        return broken(format!("too few are left from {low} ms on, and the job goes on"));
    }
    let longest = LONGEST + 2 * world.s.grace;
    match world.group.empty_since {
        Some(since) if world.s.stuck.1 <= since && place.over.is_none_or(|at| at > since + longest) => {
            broken(format!("no rank of the group is left from {since} ms on, and the job goes on"))
        }
        _ => Ok(()),
    }
}

fn the_verdict_is_true(world: &World<'_>, place: &Place) -> Judgement {
    let Some((_, verdict)) = place.said.first() else { return Ok(()) };
    let cause = place.machine.root_cause();
    match &cause {
        Some(StopReason::Failed { rank, ending }) => {
            let process = &world.ranks[*rank];
            if !process.is_culprit && !process.is_follower {
                return broken(format!("rank {rank} is blamed, and did not fail"));
            }
            expect(verdict.code, ending.code(), &cause)
        }
        Some(StopReason::Interrupted { signal }) => {
            expect(verdict.code, Ending::Signal(*signal).code(), &cause)
        }
        Some(StopReason::TimedOut) => expect(verdict.code, 124, &cause),
        None if !place.machine.begun && verdict.code != 0 => Ok(()),
        None if world.group.done.is_none() => broken("exit code 0, and nobody has done the work".into()),
        None => expect(verdict.code, 0, &cause),
        Some(_) if verdict.code == 0 => broken(format!("exit code 0: {cause:?}")),
        Some(_) => Ok(()),
    }
}
