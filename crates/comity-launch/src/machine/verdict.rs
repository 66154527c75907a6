//! Verdict of the launcher on a job that has ended: one line, and the exit code.
use super::ends::{has_gone_on, restarted, too_few};
use super::{Ending, Life, Machine, Phase, REFUSED, Role, StopReason};
use comity_cluster::cores::run_words;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Last words of a launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Ends of all ranks, for a job that failed.
    pub(crate) summary: Option<String>,
    /// The last line; none when all went well.
    pub(crate) text: Option<String>,
    pub(crate) code: u8,
}

/// Ranks that were killed because they had not ended this long after SIGTERM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CutOff {
    pub(crate) ranks: Vec<usize>,
    pub(crate) after: Duration,
}

/// The last line with the ranks that were cut off.
pub(crate) fn with_cut_off<'a>(
    text: Option<String>,
    all: impl Iterator<Item = &'a CutOff>,
) -> Option<String> {
    let mut text = text?;
    for cut in all.filter(|cut| !cut.ranks.is_empty()) {
        let (ranks, were) = match cut.ranks[..] {
            [rank] => (format!("rank {rank}"), "was"),
            _ => (format!("ranks {}", run_words(&cut.ranks, ", ")), "were"),
        };
        let seconds = (cut.after.as_secs_f64() * 10.).round() / 10.;
        text.push_str(&format!(
            "; {ranks} had not ended {seconds} s after SIGTERM and {were} killed (--grace SECONDS gives more time)"
        ));
    }
    Some(text)
}

/// End of a rank, and whether the launcher ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankEnd {
    ending: Ending,
    by_launcher: bool,
}

impl std::fmt::Display for RankEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.by_launcher, self.ending) {
            (true, Ending::Signal(libc::SIGTERM)) => f.write_str("was ended by the launcher (SIGTERM)"),
            (true, Ending::Signal(libc::SIGKILL)) => f.write_str("was ended by the launcher (SIGKILL)"),
            _ => self.ending.fmt(f),
        }
    }
}

/// Ends of all ranks and the place of their output, for a job that failed: "how they ended: 1: exited with code 7; 0, 2-5: ...".
pub(super) fn summary(
    cause: Option<&StopReason>,
    endings: &[Option<RankEnd>],
    logs: Option<&Path>,
) -> Option<String> {
    let told = matches!(
        cause?,
        StopReason::Failed { .. }
            | StopReason::Missed { .. }
            | StopReason::HostLost { .. }
            | StopReason::TimedOut
    );
    if endings.len() < 2 || !told {
        return None;
    }
    let mut kinds: Vec<(Option<RankEnd>, Vec<usize>)> = Vec::new();
    for (rank, ending) in endings.iter().enumerate() {
        match kinds.iter_mut().find(|(kind, _)| kind == ending) {
            Some((_, ranks)) => ranks.push(rank),
            None => kinds.push((*ending, vec![rank])),
        }
    }
    let parts: Vec<_> = kinds
        .iter()
        .map(|(kind, ranks)| match kind {
            Some(ending) if ranks.len() > 1 => {
                format!("{} {}", run_words(ranks, ", "), ending.to_string().replacen("was ", "were ", 1))
            }
            Some(ending) => format!("{} {ending}", run_words(ranks, ", ")),
            None => format!("{} not known", run_words(ranks, ", ")),
        })
        .collect();
    let logs = logs.map(|dir| format!("; their output is in {}/rank-*.out and .err", dir.display()));
    Some(format!("how the ranks ended: {}{}", parts.join("; "), logs.unwrap_or_default()))
}

/// Words for a rank, such as "rank 3 (pid 77, host c)".
pub(super) type NameOf<'a> = &'a dyn Fn(usize) -> String;

impl Verdict {
    /// The last line and the exit code, without the ranks that were [cut off](with_cut_off). `name` has a rank's name for people,
    /// `logs` the folder of the ranks' output.
    pub(crate) fn of(machine: &Machine, name: NameOf<'_>, logs: Option<&Path>) -> Self {
        if let (false, Some(problem)) = (machine.begun, machine.problems.first()) {
            let other = machine.problems.iter().map(|p| p.code).find(|code| *code != super::USAGE);
            if machine.cause.is_none() {
                return Self { code: other.unwrap_or(problem.code), ..Self::default() };
            }
        }
        let Some(cause) = machine.root_cause() else { return Self::default() };
        let end = |state: &super::RankState| match state.life {
            Life::Ended { ending, early, .. } => Some(RankEnd { ending, by_launcher: !early }),
            _ => None,
        };
        let endings: Vec<_> = machine.ranks.iter().map(end).collect();
        // One line says it all.
        let is_said = is_alike(machine, &cause) && logs.is_none();
        let ran = machine.begun && machine.unstarted.is_none() && !is_said;
        let summary =
            ran.then(|| summary(Some(&cause), &endings, logs)).flatten().map(|s| s + &restarted(machine));
        let (text, code) = told(machine, &cause, name);
        Self { summary, text: Some(text), code }
    }
}

fn told(machine: &Machine, cause: &StopReason, name: NameOf<'_>) -> (String, u8) {
    match cause {
        StopReason::Failed { rank, ending } => {
            if let Err(circle) = blamed(machine)
                && circle.len() > 1
            {
                return (mutual(machine, &circle, name, *ending), ending.code());
            }
            if is_alike(machine, cause) {
                let all = match machine.plan.world {
                    2 => "both".into(),
                    world => format!("all {world}"),
                };
                return (format!("{all} ranks {ending}, {} first", name(*rank)), ending.code());
            }
            let memory = machine.rank(*rank).map(|r| r.memory.as_str()).filter(|m| !m.is_empty());
            let why = memory.map(|m| format!(": {m}")).unwrap_or_default();
            (format!("{} {ending}{why}{}", name(*rank), too_few(machine)), ending.code())
        }
        StopReason::Missed { rank, ended, by, ending } => {
            let code = if ending.is_failure() { ending.code() } else { REFUSED };
            (missed(machine, name(*rank), *rank, *ended, *by, *ending), code)
        }
        StopReason::HostLost { host } => {
            let why = machine.losses.iter().find(|(h, _)| h == host).map(|(_, why)| why.clone());
            (why.unwrap_or_default() + &too_few(machine), REFUSED)
        }
        StopReason::Interrupted { signal } => {
            let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a signal");
            (format!("ended by {name}"), Ending::Signal(*signal).code())
        }
        StopReason::TimedOut => {
            let seconds = machine.plan.timeout.unwrap_or_default().as_secs_f64();
            (format!("ended because the job took longer than --timeout {seconds} s"), 124)
        }
        StopReason::Unread(problem) => (problem.why.clone(), problem.code),
        StopReason::Orphaned => ("ended because the process that started it is gone".into(), 137),
        StopReason::Unstarted => match &machine.unstarted {
            Some(problem) => (problem.why.clone(), problem.code),
            None => ("not all ranks could be started".into(), REFUSED),
        },
    }
}

/// Returns true if all ranks ended by themselves with one code, and none on another's account: as for a program that is not there.
fn is_alike(machine: &Machine, cause: &StopReason) -> bool {
    let StopReason::Failed { ending: ending @ Ending::Exit(_), .. } = cause else { return false };
    let is_whole = machine.ranks.len() == machine.plan.world && machine.plan.world > 1;
    is_whole
        && machine.plan.elastic.is_none()
        && machine.ranks.iter().all(|r| {
            r.blames.is_none()
                && matches!(&r.life, Life::Ended { ending: theirs, early: true, .. } if theirs == ending)
        })
}

/// Words for ranks that name each other, as those do that made different calls.
fn mutual(machine: &Machine, circle: &[usize], name: NameOf<'_>, ending: Ending) -> String {
    let all: Vec<_> = circle.iter().map(|rank| name(*rank)).collect();
    let errors = "name each other as the cause; their errors have the call of each";
    format!("{} {errors}; the first failure {ending}{}", all.join(" and "), too_few(machine))
}

fn missed(machine: &Machine, name: String, rank: usize, ended: bool, by: usize, ending: Ending) -> String {
    let was_stopped = machine.rank(rank).is_some_and(|r| r.stopped);
    match (ended, was_stopped) {
        (true, _) => format!("{name} ended with code 0 while others still needed it; rank {by} {ending}"),
        (_, true) => format!("{name} fell silent: it was stopped; rank {by} gave it up and {ending}"),
        _ => format!("{name} was still running when rank {by} gave it up and {ending}"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_each_kind_of_end_once() {
        let end = |ending, by_launcher| Some(RankEnd { ending, by_launcher });
        let seven = end(Ending::Exit(7), false);
        let killed = end(Ending::Signal(15), true);
        let all = [killed, seven, killed, killed, None];
        assert_eq!(
            summary(Some(&StopReason::TimedOut), &all, Some(Path::new("/logs"))).unwrap(),
            "how the ranks ended: 0, 2-3 were ended by the launcher (SIGTERM); 1 exited with code 7; 4 not known; their output is in /logs/rank-*.out and .err"
        );
        let stranger = [end(Ending::Signal(15), false), seven];
        let said = summary(Some(&StopReason::TimedOut), &stranger, None).unwrap();
        assert!(said.contains("0 was killed by signal 15 (SIGTERM); 1 exited"), "{said}");
        assert_eq!(summary(Some(&StopReason::TimedOut), &all[..1], None), None);
        assert_eq!(summary(Some(&StopReason::Interrupted { signal: 2 }), &all, None), None);
    }
}
