//! The promises, and which of them a run broke.
mod elastic;

use super::scenario::{BEDTIME, NEVER, PlantedFault, SECOND, SILENCE, Script, Stray};
use super::world::{Place, Process, World};
use crate::machine::{Ending, Role, StopOrder, StopReason, findings};

/// Longest time from a job's first failure to its launcher's end, beside `--grace`: the silence of a host, SIGTERM, SIGKILL, strays,
/// pipes, other nodes, and messages.
const LONGEST: u64 = (3 + 1 + 10 + 6 + 2 + 2 + 20 + 2) * SECOND;

type Judgement = Result<(), String>;

/// The first promise that the run broke, in words.
pub(super) fn judge(world: &World<'_>) -> Judgement {
    every_job_ends(world)?;
    nothing_is_left(world)?;
    for (number, place) in world.places.iter().enumerate().filter(|(_, p)| p.up) {
        one_verdict(number, place)?;
        if let Some(terms) = world.s.elastic {
            return elastic::judge(world, terms);
        }
        orders_have_their_time(world, number, place)?;
    }
    news_is_heeded(world)?;
    starts(world)?;
    the_cause_is_true(world)?;
    all_nodes_say_the_same(world)
}

fn broken(words: String) -> Judgement {
    Err(words)
}

fn every_job_ends(world: &World<'_>) -> Judgement {
    for (number, place) in world.places.iter().enumerate().filter(|(_, p)| p.up) {
        let Some(over) = place.over else {
            // A host that was never told to run waits for its launcher.
            if place.role == Role::Host && place.starts == 0 {
                continue;
            }
            return broken(format!("launcher {number} never ends"));
        };
        let begun =
            place.failing_at.or_else(|| (place.role != Role::Host).then(|| last_end(world)).flatten());
        // A reader that takes nothing is waited for.
        let is_stuck = world.s.stuck.1 > begun.unwrap_or(0);
        let longest = LONGEST + 2 * world.s.grace;
        if let Some(begun) = begun.filter(|at| over.saturating_sub(*at) > longest && !is_stuck) {
            return broken(format!("launcher {number} ends at {over} ms, its job at {begun}"));
        }
    }
    Ok(())
}

/// When the last rank ended.
fn last_end(world: &World<'_>) -> Option<u64> {
    world.ranks.iter().map(|p| p.ended.map(|(at, _)| at)).collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn nothing_is_left(world: &World<'_>) -> Judgement {
    for (rank, process) in world.ranks.iter().enumerate() {
        let script: &Script = &world.s.scripts[rank];
        if process.alive && !script.hangs {
            return broken(format!("rank {rank} is left running"));
        }
        if process.has_stray && script.stray != Stray::Hangs && !script.hangs {
            return broken(format!("what rank {rank} started is left running"));
        }
        for cut in world.cuts.iter().filter(|cut| cut.host == world.s.hosts[rank]) {
            let ended = process.ended.map_or(0, |(at, _)| at);
            // With a host that is back its ranks are, too.
            let stays = world.s.role == Role::Fleet && world.s.elastic.is_none();
            let is_late = ended > cut.at + 5 * SECOND && stays;
            if is_late && !process.has_vanished && !script.hangs {
                return broken(format!("rank {rank} outlives its cable by {} ms", ended - cut.at));
            }
        }
    }
    Ok(())
}

fn one_verdict(number: usize, place: &Place) -> Judgement {
    match place.said.len() {
        1 => Ok(()),
        0 if place.role == Role::Host && place.starts == 0 => Ok(()),
        n => broken(format!("launcher {number} says {n} verdicts")),
    }
}

/// SIGTERM comes before SIGKILL, each once, and none before its time.
fn orders_have_their_time(world: &World<'_>, number: usize, place: &Place) -> Judgement {
    let wrong = |why: &str| broken(format!("launcher {number} {why}: {:?}", place.orders));
    // One that obeys gets them from two sides, the launcher's and its own.
    if place.role == Role::Host {
        return Ok(());
    }
    let kinds: Vec<StopOrder> = place.orders.iter().map(|(_, order)| *order).collect();
    let right = [StopOrder::Term, StopOrder::Kill, StopOrder::Abandon];
    if !right.starts_with(&kinds) {
        return wrong("gives orders out of order");
    }
    let hurries = |from: u64, to: u64| place.hurries.iter().any(|at| (from..=to).contains(at));
    let is_late = |at: u64| world.s.timeout.is_some_and(|limit| at >= limit);
    let stops = world.s.faults.iter().any(|f| matches!(f, PlantedFault::Stop { .. }));
    if let Some((term, _)) = place.orders.first() {
        let Some(failing) = place.failing_at else { return wrong("ends a job that does not fail") };
        let is_soon = *term < failing + SECOND;
        if is_soon && !hurries(0, *term) && !is_late(*term) {
            return wrong("gives no time to report a failure");
        }
        if let Some((kill, _)) = place.orders.get(1) {
            let is_soon = *kill < term + world.s.grace;
            if is_soon && !hurries(0, *kill) && !stops {
                return wrong("does not wait for the grace");
            }
        }
    }
    Ok(())
}

/// A wish of the user, the loss of a host and a rank that cannot be started end the job.
fn news_is_heeded(world: &World<'_>) -> Judgement {
    let fails_by = |place: &Place, at: u64| place.failing_at.is_some_and(|failing| failing <= at);
    let is_over_by = |place: &Place, at: u64| place.over.is_some_and(|over| over <= at);
    for (number, place) in world.places.iter().enumerate().filter(|(_, p)| p.up) {
        if let Some(at) = place.stop_heard
            && !fails_by(place, at)
            && !is_over_by(place, at + 5 * SECOND)
        {
            return broken(format!("launcher {number} is deaf to a stop at {at} ms"));
        }
        for cut in world.cuts.iter().filter(|cut| cut.runs) {
            let at = cut.at + if place.role == Role::Fleet { SILENCE } else { 5 * SECOND };
            let is_missed = match place.role {
                Role::Fleet => fails_by(place, at),
                // Where all ranks ended well before, the verdict alone says it.
                Role::Node => {
                    world.places.len() == 1 || place.said.iter().all(|(_, verdict)| verdict.code != 0)
                }
                Role::Alone | Role::Host => true,
            };
            if !is_missed && !is_over_by(place, at) {
                return broken(format!("launcher {number} does not miss host {}", cut.host));
            }
        }
    }
    let is_asleep = found(world)
        .is_some_and(|(cause, _)| matches!(cause, Some(StopReason::Interrupted { .. })))
        && world.places[0].stop_heard == Some(BEDTIME);
    let unstartable =
        |rank: usize| !world.s.scripts[rank].is_startable && world.places[world.place_of(rank)].starts > 0;
    if is_asleep && world.cuts.is_empty() && (0..world.ranks.len()).any(unstartable) {
        return broken("a rank that cannot be started is not missed".into());
    }
    Ok(())
}

fn starts(world: &World<'_>) -> Judgement {
    if let Some(rank) = world.ranks.iter().position(|p| p.starts > 1) {
        return broken(format!("rank {rank} is started twice"));
    }
    let refuses = world.s.faults.iter().any(|f| matches!(f, PlantedFault::Refuse { .. }));
    let first = &world.places[0];
    if refuses && world.s.role == Role::Fleet && world.ranks.iter().any(|p| p.starts > 0) {
        return broken("ranks are started though a host refuses".into());
    }
    let is_free = !refuses && first.stop_heard.is_none_or(|at| at >= BEDTIME) && world.cuts.is_empty();
    let is_timely = world.s.timeout.is_none_or(|limit| limit > 3 * SECOND);
    let all = world.s.scripts.iter().all(|s| s.is_startable);
    if is_free && is_timely && all && world.ranks.iter().any(|p| p.starts == 0) {
        return broken("a rank is not started".into());
    }
    Ok(())
}

/// The cause that the launcher found, and the exit code that it gave.
fn found(world: &World<'_>) -> Option<(Option<StopReason>, u8)> {
    let first = world.places.iter().find(|p| p.up)?;
    let code = first.said.first()?.1.code;
    let cause = match (&first.all, first.role) {
        // It may have said its own before it knew the others'.
        (Some(_), Role::Node) if world.s.stuck != (NEVER, NEVER) => return None,
        (Some(all), Role::Node) => {
            let cause = findings::replay(all).root_cause();
            let is_overruled = findings::said_by_a_node(all, cause.as_ref()).is_some();
            cause.filter(|_| !is_overruled)
        }
        (None, Role::Node) => return None,
        _ => first.machine.root_cause(),
    };
    Some((cause, code))
}

/// The last line of the first launcher.
fn said<'a>(world: &'a World<'_>) -> &'a str {
    let first = world.places.first().and_then(|p| p.said.first());
    first.and_then(|(_, verdict)| verdict.text.as_deref()).unwrap_or_default()
}

fn the_cause_is_true(world: &World<'_>) -> Judgement {
    let Some((cause, code)) = found(world) else { return Ok(()) };
    let culprits: Vec<usize> = (0..world.ranks.len()).filter(|r| world.ranks[*r].is_culprit).collect();
    let unstarted = world.s.scripts.iter().any(|s| !s.is_startable);
    let refused = world.s.faults.iter().any(|f| matches!(f, PlantedFault::Refuse { .. }));
    let stop = world.places.iter().filter_map(|p| p.stop_heard).min();
    match &cause {
        Some(StopReason::Failed { rank, ending }) => {
            let process: &Process = &world.ranks[*rank];
            // Who noticed that a host was gone before its launcher did names a rank there.
            if !process.is_culprit {
                return broken(format!("rank {rank} is blamed, at fault are {culprits:?}"));
            }
            if process.ended.map(|(_, e)| e) != Some(*ending) {
                return broken(format!("rank {rank} is said to have {ending}: {:?}", process.ended));
            }
            expect(code, ending.code(), &cause)?;
        }
        Some(StopReason::Missed { rank, by, ending, .. }) => {
            if !world.ranks[*rank].is_culprit && !followed_too_late(world, *rank) {
                return broken(format!("rank {by} is said to miss rank {rank}, at fault are {culprits:?}"));
            }
            let own = if ending.is_failure() { ending.code() } else { crate::machine::REFUSED };
            expect(code, own, &cause)?;
        }
        Some(StopReason::HostLost { host }) => {
            if !world.cuts.iter().any(|cut| cut.host == *host) {
                return broken(format!("host {host} is said to be lost"));
            }
        }
        Some(StopReason::Interrupted { signal }) => expect(code, Ending::Signal(*signal).code(), &cause)?,
        Some(StopReason::TimedOut) => expect(code, 124, &cause)?,
        Some(StopReason::Orphaned) => expect(code, 137, &cause)?,
        Some(StopReason::Unread(_)) => expect(code, 141, &cause)?,
        Some(StopReason::Unstarted) if unstarted => {}
        Some(StopReason::Unstarted) => return broken("all could be started".into()),
        None if world.s.role == Role::Node && code != 0 => {}
        None => {
            let well = |p: &Process| p.ended.is_some_and(|(_, ending)| !ending.is_failure());
            let all_well = world.ranks.iter().all(well);
            let is_refused = refused || !world.cuts.is_empty();
            if code == 0 && !all_well || code != 0 && !is_refused {
                return broken(format!("exit code {code}, and {:?}", ends(world)));
            }
        }
    }
    the_first_wins(world, cause.as_ref(), (&culprits, stop))
}

/// The rank followed another one, but its launcher noticed only after SIGTERM: then its own word is not believed.
fn followed_too_late(world: &World<'_>, rank: usize) -> bool {
    let process = &world.ranks[rank];
    // Its host says it to the launcher that decides.
    let (place, way) = match world.s.role {
        Role::Fleet => (0, world.s.delay),
        _ => (world.place_of(rank), 0),
    };
    let term = world.places[place].orders.first().map(|(at, _)| *at);
    let noticed = process.ended.map(|(at, _)| at + world.s.reaped + way);
    process.is_follower && term.is_some() && noticed >= term
}

fn ends(world: &World<'_>) -> Vec<Option<Ending>> {
    world.ranks.iter().map(|p| p.ended.map(|(_, e)| e)).collect()
}

fn expect(code: u8, right: u8, cause: &Option<StopReason>) -> Judgement {
    if code == right {
        Ok(())
    } else {
        broken(format!("exit code {code} in the place of {right}: {cause:?}"))
    }
}

/// A failure that was known before the user wanted anything is the cause; where one rank alone is at fault, it is named.
fn the_first_wins(
    world: &World<'_>,
    cause: Option<&StopReason>,
    (culprits, stop): (&[usize], Option<u64>),
) -> Judgement {
    let failed = world.places.iter().filter(|p| p.role != Role::Host).filter_map(|p| p.failure_heard).min();
    let from_outside = cause.is_some_and(StopReason::is_from_outside);
    let end = |at: Option<u64>| at.unwrap_or(u64::MAX);
    // Nodes hear of each other after a while.
    let slack = if world.s.role == Role::Node { SECOND } else { 0 };
    if from_outside && end(failed).saturating_add(slack) < end(stop).min(world.s.timeout.unwrap_or(u64::MAX))
    {
        return broken(format!("{cause:?}, though a rank failed before"));
    }
    let is_alone = culprits.len() == 1
        && world.cuts.is_empty()
        && world.s.timeout.is_none()
        && world.s.scripts.iter().all(|s| s.is_startable)
        && stop.is_none_or(|at| at >= BEDTIME);
    let Some(&culprit) = culprits.first().filter(|_| is_alone) else { return Ok(()) };
    let process = &world.ranks[culprit];
    let followers = world.ranks.iter().any(|p| p.is_follower);
    let fails = process.ended.is_some_and(|(_, ending)| ending.is_failure());
    let is_stopped =
        world.s.faults.iter().any(|f| matches!(f, PlantedFault::Stop { rank, .. } if *rank == culprit));
    let others_ended = (0..world.ranks.len())
        .filter(|r| *r != culprit)
        .all(|r| world.ranks[r].is_follower && world.ranks[r].word == Some(culprit));
    let named = match cause {
        Some(StopReason::Failed { rank, .. } | StopReason::Missed { rank, .. }) => *rank == culprit,
        // The node of a rank that did not fail says it for all.
        None if world.s.role == Role::Node => said(world).contains(&format!(": rank {culprit} fell silent")),
        _ => false,
    };
    let must = match is_stopped {
        true => followers && others_ended && world.ranks.len() > 1,
        false => fails || followers && world.ranks.iter().any(|p| p.is_follower && p.word == Some(culprit)),
    };
    if must && !named {
        return broken(format!("rank {culprit} alone is at fault: {cause:?}"));
    }
    Ok(())
}

fn all_nodes_say_the_same(world: &World<'_>) -> Judgement {
    // A node whose reader takes nothing says late what it found, and the others wait only so long.
    let is_stuck = world.s.stuck != (NEVER, NEVER);
    if world.s.role != Role::Node || !world.cuts.is_empty() || is_stuck {
        return Ok(());
    }
    let mut all = world.places.iter().filter_map(|p| p.said.first()).map(|(_, verdict)| verdict);
    let Some(first) = all.next() else { return Ok(()) };
    match all.find(|verdict| *verdict != first) {
        Some(other) => broken(format!("nodes differ: {first:?}, {other:?}")),
        None => Ok(()),
    }
}
