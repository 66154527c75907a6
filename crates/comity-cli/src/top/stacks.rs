//! Place of each rank: the end of its flight recorder, while the job runs.
use super::picture::busiest;
use super::text::age;
use crate::live::{CallView, JobView, RankState, RankView};
use std::fmt::Write;

/// All ranks; those that stand alike in one paragraph.
pub(super) fn stacks(job: &JobView) -> String {
    let mut out =
        format!("job {} (launcher pid {} on {}), {} ranks\n", job.job_id, job.launcher, job.host, job.size);
    let mut alike: Vec<(String, Vec<&RankView>)> = Vec::new();
    for rank in &job.ranks {
        let does = does(rank);
        match alike.iter_mut().find(|(d, _)| *d == does) {
            Some((_, ranks)) => ranks.push(rank),
            None => alike.push((does, vec![rank])),
        }
    }
    // Where few are stands first: there the reason is.
    alike.sort_by_key(|(_, ranks)| ranks.len());
    for (does, ranks) in &alike {
        let names: Vec<String> = ranks.iter().map(|r| r.rank.to_string()).collect();
        let s = if ranks.len() == 1 { "" } else { "s" };
        // Writing to a string does not fail.
        let _ = writeln!(out, "\nrank{s} {}: {does}", names.join(", "));
        for rank in ranks.iter().take(16) {
            write_rank(&mut out, rank);
        }
        if ranks.len() > 16 {
            let _ = writeln!(out, "  and {} more alike", ranks.len() - 16);
        }
    }
    if let Some(missing) = job.missing() {
        let _ = writeln!(out, "\n{missing}");
    }
    for host in &job.silent {
        let _ = writeln!(out, "\n{}", job.silence(host));
    }
    out
}

/// Text by which ranks are grouped: the same call, the same state.
fn does(rank: &RankView) -> String {
    match (rank.state, busiest(rank)) {
        (RankState::Waiting, _) => "not started".into(),
        (RankState::Ended(0), _) => "ended".into(),
        (RankState::Ended(code), _) => format!("failed with code {code}"),
        (state, busy) => {
            let stopped = if state == RankState::Stopped { "stopped, " } else { "" };
            match busy {
                Some((_, c)) if c.state == "begun" => format!("{stopped}in {}", c.text),
                Some((_, c)) => format!("{stopped}in no call; the last was {}", c.text),
                None if rank.calls > 0 => format!("{stopped}in no call; its groups are closed"),
                None if rank.groups.is_empty() => {
                    format!("{stopped}before its first group: it prepares, or waits in init for other ranks")
                }
                None => format!("{stopped}before its first call, in a group that is there"),
            }
        }
    }
}

fn write_rank(out: &mut String, rank: &RankView) {
    let _ = writeln!(out, "  rank {} (pid {}, host {})", rank.rank, rank.pid, rank.host);
    let now = |ns: u64| age(Some(ns as f64 / 1e9));
    for group in &rank.groups {
        if group.id != "0" || rank.groups.len() > 1 {
            let _ = writeln!(
                out,
                "    group {} (rank {} of {}), {} calls",
                group.id, group.rank, group.size, group.made
            );
        }
        let on = group.waits_for.map(|r| format!(", waits for rank {r}")).unwrap_or_default();
        let asleep = if group.asleep_ns > 0 { ", asleep" } else { "" };
        for call in group.calls.iter().rev() {
            let CallView { text, began_ns, ended_ns, .. } = call;
            let _ = match call.state.as_str() {
                "begun" => writeln!(out, "    now     {text}, for {}{on}{asleep}", now(*began_ns)),
                state => writeln!(out, "    {state:<7} {text}, {} ago", now(*ended_ns)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{GroupView, job};

    #[test]
    fn ranks_before_their_first_call_have_met_or_not() {
        let rank = |rank, groups| RankView { rank, state: RankState::Running, groups, ..RankView::default() };
        let met = || vec![GroupView { id: "0".into(), size: 3, ..GroupView::default() }];
        let ranks = vec![rank(0, Vec::new()), rank(1, met()), rank(2, met())];
        let text = stacks(&JobView { ranks, ..job("7f", "h", 3) });
        assert!(text.contains("\nrank 0: before its first group: it prepares, or waits in init"), "{text}");
        assert!(text.contains("\nranks 1, 2: before its first call, in a group that is there"), "{text}");
    }

    #[test]
    fn ranks_that_stand_alike_are_told_together_and_the_odd_one_first() {
        let call = |state: &str, text: &str| CallView {
            text: text.into(),
            state: state.into(),
            began_ns: 5_000_000_000,
            ended_ns: 4_000_000_000,
            ..CallView::default()
        };
        let rank = |rank, calls, waits_for| RankView {
            rank,
            state: RankState::Running,
            groups: vec![GroupView { id: "0".into(), calls, waits_for, ..GroupView::default() }],
            ..RankView::default()
        };
        let waits = || vec![call("done", "barrier #1"), call("begun", "all_reduce #2")];
        let ranks = vec![
            rank(0, waits(), Some(1)),
            rank(1, vec![call("done", "barrier #1")], None),
            rank(2, waits(), Some(1)),
        ];
        let text = stacks(&JobView { ranks, ..job("7f", "h", 3) });
        let odd = text.find("rank 1: in no call; the last was barrier #1");
        let rest = text.find("ranks 0, 2: in all_reduce #2");
        assert!(odd.zip(rest).is_some_and(|(a, b)| a < b), "{text}");
        assert!(
            text.contains(
                "    now     all_reduce #2, for 5.0 s, waits for rank 1\n    done    barrier #1, 4.0 s ago\n"
            ),
            "{text}"
        );
    }
}
