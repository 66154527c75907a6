//! Ranks that a rank tells first that a group has failed.
//!
//! Up to [`DIRECT`] members, whoever sees a failure tells all. Above, each rank that learns of it for the first time tells its partners.
//! These are the nearest members at distance 1, 2, 4, 8, ... on both sides of it, around the ring of those that are there.
//!
//! ```text
//! 12 members, as seen by 0:   0 -> 1, 2, 4, 8 and 11, 10, 8, 4
//! ```
//!
//! Cost: at most 2 log2(n) notes a rank, log2(n) steps to the last. A tree would need half the notes, but one dead rank in it
//! cuts off all below it. Here as many others tell each rank as it has partners. So the news gets around any smaller number of ranks that
//! are dead and not yet known to be. Ranks that are known to be gone are stepped over. No number of them tears the ring, because a
//! rank's neighbours are always among its partners.

/// The largest group in which whoever sees a failure tells all others itself.
pub(crate) const DIRECT: usize = 64;

/// The partners of `mine` in a group of `size`, of whom `there` says who has neither left nor ended.
pub(crate) fn partners(mine: usize, size: usize, there: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut partners = Vec::new();
    let mut distance = 1;
    while distance < size {
        for back in [false, true] {
            let at = |d: usize| (mine + if back { size - d } else { d }) % size;
            if let Some(partner) = (distance..size).map(at).find(|m| there(*m))
                && !partners.contains(&partner)
            {
                partners.push(partner);
            }
        }
        distance *= 2;
    }
    partners
}

/// The processes of a job of `size` that process `me` watches most closely: all others up to 64 ranks, above its partners.
pub fn neighbours(me: usize, size: usize) -> Vec<usize> {
    if size <= DIRECT { (0..size).filter(|r| *r != me).collect() } else { partners(me, size, |_| true) }
}

/// The most partners that a member of a group of `size` has.
#[cfg(test)]
pub(crate) fn most(size: usize) -> usize {
    2 * size.next_power_of_two().ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// In how many steps the news comes from `origin` to all that are `alive`, if each of them thinks that `believed` are there.
    fn steps(origin: usize, size: usize, believed: &[bool], alive: &[bool]) -> Option<usize> {
        let mut knows = vec![false; size];
        knows[origin] = true;
        let mut news = vec![origin];
        let mut steps = 0;
        loop {
            let mut next = Vec::new();
            for m in news {
                for p in partners(m, size, |r| believed[r]) {
                    if alive[p] && !std::mem::replace(&mut knows[p], true) {
                        next.push(p);
                    }
                }
            }
            if next.is_empty() {
                return (0..size).all(|m| knows[m] || !alive[m]).then_some(steps);
            }
            (news, steps) = (next, steps + 1);
        }
    }

    #[test]
    fn everyone_is_told_in_few_steps_by_few_notes() {
        for size in [2, 3, 64, 65, 100, 127, 128, 129, 500, 1000, 1024] {
            let all = vec![true; size];
            for mine in 0..size {
                let p = partners(mine, size, |_| true);
                assert!(p.len() <= most(size) && !p.contains(&mine) && p.iter().all(|m| *m < size));
            }
            // Both directions halve the way.
            let found = steps(size / 3, size, &all, &all).unwrap();
            assert!(found <= size.next_power_of_two().ilog2() as usize / 2 + 1, "{size}: {found} steps");
        }
    }

    proptest! {
        /// However many are known to be gone, and as many more dead as a rank has partners but one, the living are all told.
        #[test]
        fn the_dead_do_not_stop_it(
            size in 65usize..400, gone in 0usize..400, seed: u64,
        ) {
            let mut order: Vec<usize> = (0..size).collect();
            let mut state = seed;
            for i in (1..size).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                order.swap(i, (state >> 33) as usize % (i + 1));
            }
            let gone = gone % (size - 1);
            let mut believed = vec![true; size];
            order[..gone].iter().for_each(|m| believed[*m] = false);
            prop_assert!(steps(order[size - 1], size, &believed, &believed).is_some());

            let fewest = partners(0, size, |_| true).len();
            let all = vec![true; size];
            let mut alive = all.clone();
            order[..fewest - 1].iter().for_each(|m| alive[*m] = false);
            prop_assert!(steps(order[size - 1], size, &all, &alive).is_some());
        }
    }
}
