//! Promises about a job that goes on without ranks.
use super::{Broken, LONGEST, broken, expect};
use crate::machine::simulate::scenario::SECOND;
use crate::machine::simulate::world::{Place, Process, World};
use crate::machine::{ElasticTerms, Ending, StopReason, restart};

/// Time in which a launcher knows that too few ranks are left.
const KNOWN: u64 = 300 + SECOND;

pub(super) fn judge(world: &World<'_>, terms: ElasticTerms) -> Broken {
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

fn starts(world: &World<'_>, terms: ElasticTerms, (rank, process): (usize, &Process)) -> Broken {
    let most = terms.restarts as usize + 1;
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
        if *at < known + pause(i) {
            return broken(format!("rank {rank} is started {} ms after its end", at - known));
        }
        if world.group.done.is_some_and(|done| *at > done + world.s.reaped) {
            return broken(format!("rank {rank} is started when the work is done"));
        }
    }
    let place = &world.places[0];
    let is_lost = process.ended.is_some_and(|(_, e)| e.is_failure()) && !process.is_told;
    let Some(known) = process.known.last().filter(|_| is_lost && process.started.len() < most) else {
        return Ok(());
    };
    let due = known + pause(process.started.len());
    let ends = [place.failing_at, place.over, world.group.done, Some(stopped(world, place))];
    if ends.into_iter().flatten().all(|at| at > due) {
        return broken(format!("rank {rank} is not started again at {due} ms"));
    }
    Ok(())
}

fn pause(number: usize) -> u64 {
    restart::pause(number as u32).as_millis() as u64
}

/// Ranks are ended when too few are left, when the work is done, or when somebody else wants it so.
fn others_go_on(world: &World<'_>, place: &Place) -> Broken {
    let Some((term, _)) = place.orders.first() else { return Ok(()) };
    let group = &world.group;
    let may = [group.first_low, group.done, Some(stopped(world, place))]
        .into_iter()
        .flatten()
        .any(|at| at <= *term);
    if may { Ok(()) } else { broken(format!("ranks are ended at {term} ms, and enough were left")) }
}

fn too_few_end(world: &World<'_>, place: &Place) -> Broken {
    // Whom the launcher ends is not missed.
    let ended = place.orders.first().map_or(u64::MAX, |(at, _)| *at);
    let stop = stopped(world, place).min(ended);
    if let Some(low) = world.group.low_since.filter(|low| low + KNOWN < stop)
        && place.failing_at.is_none_or(|at| at > low + KNOWN)
        && place.over.is_none_or(|at| at > low + KNOWN)
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

fn the_verdict_is_true(world: &World<'_>, place: &Place) -> Broken {
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
        None if world.group.done.is_none() => broken("exit code 0, and nobody has done the work".into()),
        None => expect(verdict.code, 0, &cause),
        Some(_) if verdict.code == 0 => broken(format!("exit code 0: {cause:?}")),
        Some(_) => Ok(()),
    }
}
