//! Operations between threads whose buffers all can see.
//!
//! Each call begins and ends with a meeting: nobody reads what is not there yet, nobody goes on while another still reads. Calls of
//! up to a kibibyte meet once: what so little needs travels with the flags. Additions are in the widest vectors that the processor has,
//! for the compiler that built this knows only what every processor can.
#![allow(unsafe_code, reason = "vector instructions")]

use super::Step;
use crate::cell::Operation;

/// So many bytes travel with the flags.
const SMALL: u64 = 1024;
/// Elements summed at a time, in the first cache.
const BLOCK: usize = 4096;

/// All threads' memory.
pub(super) struct Buffers {
    op: Operation,
    ranks: usize,
    small: bool,
    /// Buffers that threads read, one each.
    from: Vec<Vec<f32>>,
    /// Buffers that they write, one each.
    to: Vec<Vec<f32>>,
}

/// Buffers of an operation of `bytes`, every page written once.
pub(super) fn buffers(op: Operation, ranks: usize, bytes: u64) -> Buffers {
    let whole = (bytes / 4) as usize;
    let part = whole / ranks;
    let (from, to) = match op {
        Operation::AllReduce => (0, whole),
        Operation::AllGather => (part, part * ranks),
        Operation::ReduceScatter => (part * ranks, part),
        Operation::AllToAll => (part * ranks, part * ranks),
        Operation::Broadcast | Operation::PingPong => (whole, whole),
        Operation::Barrier => (0, 0),
    };
    let make = |n: usize, value: f32| (0..ranks).map(|_| vec![value; n]).collect();
    Buffers { op, ranks, small: bytes <= SMALL, from: make(from, 1.0), to: make(to, 1.0) }
}

impl Buffers {
    /// Each thread's part of a call.
    pub(super) fn steps(&mut self) -> Vec<Step<'_>> {
        let small = self.small;
        let ranks = self.ranks;
        let from = &self.from;
        if self.op == Operation::AllReduce {
            return all_reduce(&mut self.to, ranks, small);
        }
        let op = self.op;
        let each = self.to.iter_mut().enumerate();
        each.map(|(me, to)| -> Step<'_> {
            match op {
                Operation::PingPong => ping_pong(me, from, to),
                Operation::Broadcast => broadcast(me, from, to, small),
                _ => Box::new(move |turn| {
                    turn.meet();
                    match op {
                        Operation::AllGather => gather(from, to),
                        Operation::ReduceScatter => reduce_part(me, from, to),
                        Operation::AllToAll => exchange_parts(me, from, to),
                        _ => {}
                    }
                    if !small {
                        turn.meet();
                    }
                    Ok(())
                }),
            }
        })
        .collect()
    }
}

/// Each thread sums its share of all buffers and writes it to all.
fn all_reduce(buffers: &mut [Vec<f32>], ranks: usize, small: bool) -> Vec<Step<'_>> {
    let whole = buffers[0].len();
    let bounds: Vec<usize> = (0..=ranks).map(|r| whole * r / ranks).collect();
    let mut shares: Vec<Vec<&mut [f32]>> = (0..ranks).map(|_| Vec::new()).collect();
    for buffer in buffers {
        let mut rest = &mut buffer[..];
        for (r, share) in shares.iter_mut().enumerate() {
            let (mine, after) = rest.split_at_mut(bounds[r + 1] - bounds[r]);
            share.push(mine);
            rest = after;
        }
    }
    shares.into_iter().map(|share| sum_to_all(share, small)).collect()
}

fn sum_to_all(mut share: Vec<&mut [f32]>, small: bool) -> Step<'_> {
    let mut sum = vec![0.0; BLOCK];
    Box::new(move |turn| {
        turn.meet();
        let len = share[0].len();
        for at in (0..len).step_by(BLOCK) {
            let end = (at + BLOCK).min(len);
            let sum = &mut sum[..end - at];
            sum.copy_from_slice(&share[0][at..end]);
            share[1..].iter().for_each(|s| add(sum, &s[at..end]));
            share.iter_mut().for_each(|s| s[at..end].copy_from_slice(sum));
        }
        if !small {
            turn.meet();
        }
        Ok(())
    })
}

fn gather(from: &[Vec<f32>], to: &mut [f32]) {
    let part = from[0].len().max(1);
    to.chunks_mut(part).zip(from).for_each(|(to, from)| to.copy_from_slice(from));
}

fn reduce_part(me: usize, from: &[Vec<f32>], to: &mut [f32]) {
    let part = to.len();
    let at = me * to.len();
    for begin in (0..part).step_by(BLOCK) {
        let end = (begin + BLOCK).min(part);
        let to = &mut to[begin..end];
        to.copy_from_slice(&from[0][at + begin..at + end]);
        from[1..].iter().for_each(|f| add(to, &f[at + begin..at + end]));
    }
}

fn exchange_parts(me: usize, from: &[Vec<f32>], to: &mut [f32]) {
    let part = to.len() / from.len();
    let parts = to.chunks_mut(part.max(1)).zip(from);
    parts.for_each(|(to, from)| to.copy_from_slice(&from[me * part..me * part + to.len()]));
}

/// Roots 0 and 1 in turn.
fn broadcast<'a>(me: usize, from: &'a [Vec<f32>], to: &'a mut [f32], small: bool) -> Step<'a> {
    Box::new(move |turn| {
        for (root, from) in from.iter().enumerate().take(2) {
            turn.meet();
            if me != root {
                to.copy_from_slice(from);
            }
            if !small {
                turn.meet();
            }
        }
        Ok(())
    })
}

/// Thread 1 reads what thread 0 has, then thread 0 what thread 1 has; the others look on.
fn ping_pong<'a>(me: usize, from: &'a [Vec<f32>], to: &'a mut [f32]) -> Step<'a> {
    Box::new(move |turn| {
        match me {
            0 => {
                turn.arrive();
                turn.wait_for(1);
                to.copy_from_slice(&from[1]);
            }
            1 => {
                turn.generation += 1;
                turn.wait_for(0);
                to.copy_from_slice(&from[0]);
                turn.generation -= 1;
                turn.arrive();
            }
            _ => turn.arrive(),
        }
        Ok(())
    })
}

/// Adds `from` to `to`, element by element.
fn add(to: &mut [f32], from: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the line above asked whether the processor has these instructions.
        return unsafe { wide(to, from) };
    }
    plain(to, from);
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::missing_safety_doc, reason = "it is not unsafe, but needs a feature")]
#[target_feature(enable = "avx2")]
fn wide(to: &mut [f32], from: &[f32]) {
    plain(to, from);
}

#[inline(always)]
fn plain(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_where_they_belong() {
        let from = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        let mut to = [0.0; 4];
        gather(&from, &mut to);
        assert_eq!(to, [1.0, 2.0, 3.0, 4.0]);
        let mut to = [0.0; 2];
        exchange_parts(1, &from, &mut to);
        assert_eq!(to, [2.0, 4.0]);
        let mut to = [0.0];
        reduce_part(1, &from, &mut to);
        assert_eq!(to, [6.0]);
    }

    #[test]
    fn it_adds() {
        let mut to = [1.0; 19];
        add(&mut to, &[2.0; 19]);
        assert_eq!(to, [3.0; 19]);
    }
}
