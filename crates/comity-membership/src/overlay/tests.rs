//! The graph itself.

use super::*;
use proptest::prelude::*;

/// Number of steps from `origin` to the farthest rank.
fn depth(origin: usize, size: usize, there: &dyn Fn(usize) -> bool) -> Option<usize> {
    depth_past_the_dead(origin, size, there, there)
}

/// The same if some of those that are there, as far as the others know, are not `alive`.
fn depth_past_the_dead(
    origin: usize,
    size: usize,
    there: &dyn Fn(usize) -> bool,
    alive: &dyn Fn(usize) -> bool,
) -> Option<usize> {
    let mut knows = vec![false; size];
    knows[origin] = true;
    let mut news = vec![origin];
    let mut steps = 0;
    loop {
        let mut next = Vec::new();
        for one in news.iter().flat_map(|r| around(*r, size, there)) {
            if alive(one) && !std::mem::replace(&mut knows[one], true) {
                next.push(one);
            }
        }
        if next.is_empty() {
            return (0..size).all(|r| knows[r] || !alive(r)).then_some(steps);
        }
        (news, steps) = (next, steps + 1);
    }
}

#[test]
fn neighbours_are_few_and_news_get_around_in_few_steps() {
    for (size, few, most) in [(65, 14, 4), (128, 13, 4), (256, 15, 5), (1024, 19, 6), (4096, 23, 7)] {
        assert!(overlay_neighbours(size / 3, size).len() <= few, "{size}");
        let steps = depth(size / 3, size, &|_| true).unwrap();
        assert!(steps <= most, "{size}: {steps} steps");
    }
}

#[test]
fn what_is_for_one_rank_comes_in_few_steps() {
    for size in [65, 100, 256, 1000, 4096] {
        let webs: Vec<Overlay> = (0..size)
            .map(|r| {
                let mut web = Overlay::new(r, size);
                web.connected.extend(overlay_neighbours(r, size));
                web
            })
            .collect();
        let most = size.next_power_of_two().ilog2() as usize / 2 + 2;
        for target in 0..size {
            let mut at = size / 5;
            let mut from = None;
            let mut steps = 0;
            while at != target {
                let next = webs[at].next_to(target, from).unwrap();
                (from, at, steps) = (Some(at), next, steps + 1);
                assert!(steps <= most, "{size}: to {target}");
            }
        }
    }
}

#[test]
fn news_are_taken_once_in_any_order() {
    let mut web = Overlay::new(0, 8);
    let new: Vec<bool> = [1, 3, 2, 3, 1, 4, 2].map(|n| web.is_new(5, n)).into();
    assert_eq!(new, [true, true, true, false, false, true, false]);
    assert!(!web.is_new(0, 9) && !web.is_new(8, 1));
}

proptest! {
    /// Whoever has left, the graph of the others is one, and neighbours agree that they are.
    #[test]
    fn it_closes_over_those_that_end(size in 3usize..200, gone in 0usize..200, seed: u64) {
        let mut state = seed;
        let mut order: Vec<usize> = (0..size).collect();
        for i in (1..size).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            order.swap(i, (state >> 33) as usize % (i + 1));
        }
        let gone = &order[..gone % (size - 1)];
        let there = |r: usize| !gone.contains(&r);
        prop_assert!(depth(order[size - 1], size, &there).is_some());
        for a in (0..size).filter(|r| there(*r)) {
            for b in around(a, size, there) {
                prop_assert!(there(b) && around(b, size, there).contains(&a), "{a} {b}");
            }
        }
    }

    /// Fewer dead ranks than a rank has neighbours leave nobody untold, though nobody knows of them.
    #[test]
    fn the_dead_do_not_stop_news(size in 65usize..400, dead in 0usize..400, origin in 0usize..400, seed: u64) {
        let origin = origin % size;
        let fewest = overlay_neighbours(0, size).len();
        let dead: Vec<usize> = (0..fewest - 1).map(|i| (seed as usize).wrapping_add(i * (dead + 1)) % size).collect();
        let alive = |r: usize| r == origin || !dead.contains(&r);
        prop_assert!(depth_past_the_dead(origin, size, &|_| true, &alive).is_some());
    }

    /// Fewer edges than a rank has cut nobody off; all those of one rank cut off that one.
    #[test]
    fn an_edge_that_is_gone_cuts_nobody_off(size in 65usize..200, rank in 1usize..65) {
        let mut web = Overlay::new(0, size);
        web.connected.extend(overlay_neighbours(0, size));
        let edges = overlay_neighbours(rank, size);
        for (i, one) in edges.iter().enumerate() {
            prop_assert_eq!(web.unreachable(), None);
            let loss = Loss { cause: "died".into(), silence: None };
            web.lost.insert(if i % 2 == 0 { (*one, rank) } else { (rank, *one) }, loss);
            web.connected.retain(|c| *c != rank || *one != 0);
            web.stirred = true;
        }
        let (lost, here) = web.unreachable().unwrap();
        prop_assert_eq!(lost, vec![rank]);
        prop_assert!(!here[rank] && here[0]);
    }
}

#[test]
fn who_may_be_taken_for_a_neighbour_of_a_lost_rank_says_so_once() {
    let mut web = Overlay::new(0, 128);
    web.close_over(5);
    web.hearsay.insert(5);
    assert_eq!(web.take_near_hearsay(), []);
    // Whoever has not heard that 5 is lost takes it for the neighbour of 0 at distance 4 from now on.
    web.close_over(4);
    assert_eq!(web.take_near_hearsay(), [5]);
    assert_eq!(web.take_near_hearsay(), []);
}

proptest! {
    #[test]
    fn those_are_the_neighbours_that_the_graph_would_have(
        size in 4usize..200, me: prop::sample::Index, rank: prop::sample::Index, out in prop::collection::vec(any::<bool>(), 200), all: bool,
    ) {
        let me = me.index(size);
        let rank = rank.index(size);
        prop_assume!(me != rank);
        let mut web = Overlay::new(me, size);
        (0..size).filter(|r| *r != me && !all && out[*r]).for_each(|r| web.close_over(r));
        let is_near = around(me, size, |r| r == rank || web.is_in(r)).contains(&rank);
        web.close_over(rank);
        web.hearsay.insert(rank);
        prop_assert_eq!(web.take_near_hearsay(), if is_near { vec![rank] } else { vec![] });
    }
}
