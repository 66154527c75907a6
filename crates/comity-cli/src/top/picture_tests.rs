use super::*;
use crate::live::view::{self, LinkView};

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

fn looked(ranks: Vec<RankView>) -> JobView {
    JobView { ranks, ..view::job("7f", "h", 3) }
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
            r.links.push(LinkView { peer: (r.rank + 1) % 3, kind: "tcp".into(), sent: t / 8, received: 0 });
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
