//! The least that a call does: an all_reduce of 8 bytes between two ranks whose message is there already, so that nothing waits.
//! The instructions of `one_call` are the same on a busy machine: a tracer's single steps, or Callgrind with `--toggle-collect`, count them.
//! That is one call of one rank, with the system call that wakes the other.

use comity::{Group, ReduceOp, Result};
use std::{hint::black_box, thread, time::Duration};

/// Calls before those that are counted: links and plans are made by the first.
const FIRST: usize = 3;
const COUNTED: usize = 20;
/// After so long the other rank has sent its message and sleeps, also where every instruction takes fifty times as long.
const ASLEEP: Duration = Duration::from_millis(20);

/// What is counted.
#[inline(never)]
fn one_call(group: &Group, x: &mut [f32; 2]) -> Result<()> {
    group.all_reduce(black_box(x), ReduceOp::Sum)
}

fn main() -> Result<()> {
    let mut groups = Group::local(2)?.into_iter();
    let (Some(here), Some(there)) = (groups.next(), groups.next()) else { return Ok(()) };
    let other = thread::spawn(move || -> Result<()> {
        (0..FIRST + COUNTED).try_for_each(|_| there.all_reduce(&mut [1f32; 2], ReduceOp::Sum))
    });
    for _ in 0..FIRST {
        here.all_reduce(&mut [1f32; 2], ReduceOp::Sum)?;
    }
    for _ in 0..COUNTED {
        thread::sleep(ASLEEP);
        let mut x = [1f32; 2];
        one_call(&here, &mut x)?;
        assert_eq!(x, [2.0; 2]);
    }
    println!("{COUNTED} calls");
    other.join().unwrap_or(Ok(()))
}
