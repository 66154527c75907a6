//! The same random calls on every rank, with results that are checked.
use crate::Words;
use comity::{Group, ReduceOp, Result};
use scope::Rng;
use std::{thread, time::Duration};

#[derive(Debug)]
pub(crate) struct Calls {
    /// The same on all ranks.
    shared: Rng,
    made: u64,
    /// Random numbers of this rank's own, which keep it from being on time.
    own: Option<Rng>,
    seed: u64,
}

/// Element `i` of what rank `r` gives; sums of them are exact in every type.
fn value(r: usize, i: usize) -> u32 {
    (r as u32 + 1) * (i as u32 % 13 + 1)
}

impl Calls {
    pub(crate) fn new(seed: u64) -> Self {
        Self { shared: Rng::new(seed), made: 0, own: None, seed }
    }

    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// Make a call, and every fourth time one by which the ranks agree to end; true when one of them wanted to.
    pub(crate) fn step(&mut self, group: &Group, end: bool, words: &Words) -> Result<bool> {
        let rank = group.rank();
        let n = group.size();
        let seed = self.seed;
        let own = self.own.get_or_insert_with(|| Rng::new(seed ^ (rank as u64 + 1) << 32));
        if own.below(4) == 0 {
            thread::sleep(Duration::from_micros(own.between(0, 2000)));
        }
        self.made += 1;
        if self.made % 4 == 1 {
            let mut flag = [u32::from(end), 1];
            group.all_reduce(&mut flag, ReduceOp::Sum)?;
            check(group, words, "all_reduce of flags", flag[1] == n as u32);
            return Ok(flag[0] > 0);
        }
        let kind = self.shared.between(0, 8);
        // Small, middle and large ones.
        let most = 1 << (4 + 2 * self.shared.below(7));
        let count = 1 + self.shared.below(most);
        let root = self.shared.below(n);
        let (what, right) = one(group, kind, count, root)?;
        check(group, words, what, right);
        Ok(false)
    }
}

/// A call of this kind, with so many elements a rank: its name, and whether its result is right.
fn one(group: &Group, kind: u64, count: usize, root: usize) -> Result<(&'static str, bool)> {
    let rank = group.rank();
    let n = group.size();
    let all = (n * (n + 1) / 2) as u32;
    let mine: Vec<u32> = (0..count).map(|i| value(rank, i)).collect();
    let is = |x: &[u32], times: u32| x.iter().enumerate().all(|(i, v)| *v == times * value(0, i));
    Ok(match kind {
        0 | 1 => {
            let mut x: Vec<f32> = mine.iter().map(|v| *v as f32).collect();
            group.all_reduce(&mut x, ReduceOp::Sum)?;
            let right = x.iter().enumerate().all(|(i, v)| *v == (all * value(0, i)) as f32);
            ("all_reduce of f32", right)
        }
        2 => {
            let mut x = mine;
            group.all_reduce(&mut x, ReduceOp::Max)?;
            ("all_reduce of the greatest", is(&x, n as u32))
        }
        3 => {
            let mut x = vec![0; count * n];
            group.all_gather(&mine, &mut x)?;
            ("all_gather", x.chunks(count).enumerate().all(|(r, x)| is(x, r as u32 + 1)))
        }
        4 => {
            let mut x = mine;
            group.broadcast(&mut x, root)?;
            ("broadcast", is(&x, root as u32 + 1))
        }
        5 => {
            let mut x = mine;
            group.reduce(&mut x, ReduceOp::Sum, root)?;
            ("reduce", rank != root || is(&x, all))
        }
        6 => {
            let src: Vec<u32> = (0..n).flat_map(|_| mine.iter().copied()).collect();
            let mut x = vec![0; count];
            group.reduce_scatter(&src, &mut x, ReduceOp::Sum)?;
            ("reduce_scatter", is(&x, all))
        }
        7 => {
            let src: Vec<u32> = (0..n).flat_map(|_| mine.iter().copied()).collect();
            let mut x = vec![0; count * n];
            group.all_to_all(&src, &mut x)?;
            ("all_to_all", x.chunks(count).enumerate().all(|(r, x)| is(x, r as u32 + 1)))
        }
        _ if n > 1 => {
            let to = (rank + 1) % n;
            let from = (rank + n - 1) % n;
            let mut x = vec![0; count];
            group.sendrecv(&mine, to, &mut x, from, 5)?;
            ("sendrecv", is(&x, from as u32 + 1))
        }
        _ => ("barrier", group.barrier().map(|()| true)?),
    })
}

/// A wrong result is the worst that can happen, and ends the process.
fn check(group: &Group, words: &Words, what: &str, right: bool) {
    if !right {
        words.say("wrong", &[&what]);
        group.abort("a wrong result");
        std::process::exit(70);
    }
}
