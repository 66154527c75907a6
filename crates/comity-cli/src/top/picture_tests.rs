use super::*;
use crate::live;

const SECOND: u64 = 1_000_000_000;

fn call(state: &str, began: u64) -> CallView {
    CallView {
        text: "all_reduce #7".into(),
        state: state.into(),
        began_ns: began,
        ended_ns: began,
        ..CallView::default()
    }
}

fn rank(rank: usize, call: CallView, waits_for: Option<usize>) -> RankView {
    let group =
        GroupView { id: "0".into(), size: 3, made: 7, waits_for, calls: vec![call], ..GroupView::default() };
    RankView {
        rank,
        pid: 100,
        host: "h".into(),
        state: RankState::Running,
        groups: vec![group],
        ..RankView::default()
    }
}

fn link(world: u32, peer: usize, sent: u64, received: u64) -> LinkView {
    LinkView { peer, world, kind: "tcp".into(), sent, received }
}

fn looked(ranks: Vec<RankView>) -> JobView {
    JobView { ranks, ..live::job("7f", "h", 3) }
}

fn said(p: &Picture) -> String {
    p.findings.iter().map(|f| f.text.clone()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_rank_that_is_in_no_call_holds_up_those_who_wait_for_each_other() {
    let at = |mut r: RankView, t: u64| {
        r.at_ns = t;
        r
    };
    let begun = || call("begun", 30 * SECOND);
    let all = |t: u64| {
        looked(vec![
            at(rank(0, begun(), Some(1)), t),
            at(rank(1, begun(), Some(2)), t),
            at(rank(2, call("done", 31 * SECOND), None), t),
        ])
    };
    let p = picture(Some(&all(SECOND)), &all(2 * SECOND));
    assert!(
        said(&p)
            .contains("nothing has moved for 30 s: ranks 0, 1 wait for rank 2, which is in no call for 31 s"),
        "{}",
        said(&p)
    );
    assert_eq!(
        p.rows.iter().map(|r| r.mark).collect::<Vec<_>>(),
        [RankMark::Waits, RankMark::Waits, RankMark::Hung]
    );
    // A circle has no end.
    let mut circle = all(2 * SECOND);
    circle.ranks[2] = at(rank(2, begun(), Some(0)), 2 * SECOND);
    let p = picture(Some(&circle.clone()), &circle);
    assert!(said(&p).contains("ranks 0, 1, 2 wait"), "{}", said(&p));
}

#[test]
fn who_waits_least_is_the_slowest() {
    let all = |t: u64, waited: [u64; 3]| {
        let mut v = looked((0..3).map(|r| rank(r, call("begun", 1000), None)).collect());
        for (r, w) in v.ranks.iter_mut().zip(waited) {
            (r.at_ns, r.waited_ns) = (t, w);
            r.links.push(link(0, (r.rank + 1) % 3, t / 8, 0));
        }
        v
    };
    let before = all(SECOND, [0; 3]);
    let now = all(2 * SECOND, [SECOND * 9 / 10, SECOND / 10, SECOND * 8 / 10]);
    let p = picture(Some(&before), &now);
    assert_eq!(said(&p), "slowest: rank 1 waits 10 % of the time, all others 80 % and more");
    assert_eq!(p.rows[1].mark, RankMark::Slow);
    assert_eq!(p.rows[0].waiting, Some(0.9));
    assert_eq!(p.rows[0].out, Some(1e9));
    let [one, two, three] = &p.lines[..] else { panic!("{:?}", p.lines) };
    assert_eq!(((one.a, one.b), (two.a, two.b), (three.a, three.b)), ((0, 1), (0, 2), (1, 2)));
    assert_eq!((one.there, one.back, two.back), (Some(1e9), Some(0.0), Some(1e9)));
    // All alike: nobody is slow.
    assert_eq!(said(&picture(Some(&before), &all(2 * SECOND, [SECOND / 2; 3]))), "");
    // One look knows no rates.
    assert_eq!(picture(None, &now).rows[0].waiting, None);
}

#[test]
fn a_rank_that_came_back_is_told() {
    let back = RankView { restarts: 1, ..rank(1, call("done", SECOND), None) };
    let rows = picture(None, &looked(vec![rank(0, call("done", SECOND), None), back])).rows;
    assert_eq!(rows.iter().map(|r| r.state.as_str()).collect::<Vec<_>>(), ["runs", "runs, start 2"]);
}

/// Rank 1 of three was killed and is back; a process that others started came too. The world's numbers are not the launcher's.
#[test]
fn a_group_that_was_formed_again_is_told_and_who_joined() {
    let member = |place: usize, number: usize, since: u32, joined: u32| {
        let mut r = rank(place, call("begun", 10 * SECOND), None);
        r.groups[0].calls[0].state = "failed".into();
        let group = GroupView {
            id: "abc".into(),
            rank: number,
            number,
            size: 4,
            epoch: 2,
            world: 2,
            since,
            joined,
            left: 1,
            waits_for: (place != 1).then_some(2),
            calls: vec![call("begun", 9 * SECOND)],
            ..GroupView::default()
        };
        r.groups.push(group);
        (r.restarts, r.errors) = (since, u64::from(since == 0));
        r
    };
    let all = || looked(vec![member(0, 0, 0, 2), member(1, 2, 2, 0), member(2, 1, 0, 2)]);
    let p = picture(Some(&all()), &all());
    let told = "epoch 2: the group was formed again with 4 ranks; joined: rank 1 and 1 process that others started; 1 rank left";
    assert_eq!(p.findings[0], Finding { mark: RankMark::Fine, text: told.into() });
    // What failed before is over, and the one for whom all wait is rank 1 of the launcher.
    assert!(!said(&p).contains("failed"), "{}", said(&p));
    assert_eq!(p.rows.iter().map(|r| r.waits_for).collect::<Vec<_>>(), [Some(1), None, Some(1)]);
    assert_eq!(p.rows[0].call, "all_reduce #7 (epoch 2)");
    assert!(
        said(&p).contains("ranks 0, 2 wait for rank 1, which is in all_reduce #7 (epoch 2)"),
        "{}",
        said(&p)
    );
    let text = crate::top::text::text(&p, false);
    assert!(text.contains(&format!("! {told}\n")), "{text}");
    // It died once more, and waits.
    let mut again = all();
    again.ranks[1] = RankView { restarts: 3, groups: Vec::new(), ..again.ranks[1].clone() };
    assert!(
        said(&picture(None, &again)).contains("; rank 1 waits to be taken in"),
        "{}",
        said(&picture(None, &again))
    );
}

/// Links go by the launcher's numbers, whatever those of a later world are; one to a process that others started is left out.
#[test]
fn links_of_a_group_with_joiners_are_those_of_the_launchers_ranks() {
    let member = |place: usize, number: usize, at_ns: u64, links: Vec<LinkView>| {
        let mut r = rank(place, call("begun", 1000), None);
        let group = GroupView { number, size: 4, epoch: 3, world: 2, ..r.groups[0].clone() };
        r.groups.push(group);
        RankView { at_ns, links, ..r }
    };
    // Ranks 0, 2 and 1 of the launcher are 0, 1 and 2 of the world, and 3 is a stranger. Before, 1 and 2 were those of the start.
    let all = |at: u64, new: u64| {
        looked(vec![
            member(
                0,
                0,
                at,
                vec![link(0, 1, 10, 20), link(2, 1, 300 * new, 0), link(2, 2, 50 * new, 7 * new)],
            ),
            member(
                1,
                2,
                at,
                vec![link(0, 0, 20, 10), link(2, 0, 7 * new, 50 * new), link(2, 3, 999 * new, 0)],
            ),
            member(2, 1, at, vec![link(2, 0, 40 * new, 300 * new)]),
        ])
    };
    let p = picture(Some(&all(SECOND, 1)), &all(2 * SECOND, 2));
    let [one, two] = &p.lines[..] else { panic!("{:?}", p.lines) };
    assert_eq!((one.a, one.b, one.total), (0, 1, 10 + 20 + 100 + 14));
    assert_eq!((one.there, one.back), (Some(50.0 * 8.0), Some(7.0 * 8.0)));
    assert_eq!((two.a, two.b, two.total), (0, 2, 600 + 80));
    assert_eq!((two.there, two.back), (Some(300.0 * 8.0), Some(40.0 * 8.0)));
}

#[test]
fn failures_are_told() {
    let mut v = looked(vec![rank(0, call("failed", SECOND), None), rank(1, call("done", SECOND), None)]);
    v.ranks[0].errors = 1;
    v.ranks[1].state = RankState::Ended(137);
    v.ranks.push(RankView { state: RankState::Stopped, ..rank(2, call("done", 1), None) });
    v.silent = vec!["c".into()];
    v.is_part = true;
    v.size = 9;
    let said = said(&picture(None, &v));
    for part in [
        "rank 0: all_reduce #7 failed",
        "rank 1 ended with code 137",
        "rank 2 (pid 100, host h) is stopped",
        "host c told of no rank",
        "shown are 3 of 9 ranks, those of host h; ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
