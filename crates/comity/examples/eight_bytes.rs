//! The least that a call does: all_reduce of 8 bytes. The gate's step `counts` counts the instructions of one call on rank 0.
//!
//! ```text
//! eight_bytes EMPTY CALLS [MORE]
//! ```
//!
//! A marker is a signal that nobody but a tracer sees. Rank 0 sends itself two with nothing between them, `EMPTY` times, and two around
//! a call, `CALLS` times. `MORE` turns of a loop inside the second pairs are what the step must find. With the folder `COUNTED_IN` each
//! rank leaves its process id there, and rank 0 waits for a file `go`. Its siblings are `crates/comity-c/tests/c/eight_bytes.c` and
//! `python/tests/scripts/eight_bytes.py`.

use comity::{Group, ReduceOp, Result};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    env, fs,
    hint::black_box,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Calls before those that are counted: links and plans are made by the first.
const FIRST: usize = 20;
/// The tracer comes at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(20);

fn marker() {
    // It is ignored where no tracer looks. The thread that calls is the first, which the system prefers for it.
    let _ = kill_process(getpid(), Signal::URG);
}

/// The call whose instructions are counted.
#[inline(never)]
fn one_call(group: &Group, x: &mut [f32; 2]) -> Result<()> {
    group.all_reduce(black_box(x), ReduceOp::Sum)
}

/// A call of a rank, and whether its sum is right.
fn call(group: &Group, marks: bool, more: usize) -> Result<()> {
    let mut x = [1f32; 2];
    if marks {
        marker();
    }
    (0..more).for_each(|i| {
        black_box(i);
    });
    one_call(group, &mut x)?;
    if marks {
        marker();
    }
    assert_eq!(x, [group.size() as f32; 2]);
    Ok(())
}

/// Says which process this is. Rank 0 waits for the tracer.
fn meet_tracer(rank: usize) -> std::io::Result<()> {
    let Some(folder) = env::var_os("COUNTED_IN").map(PathBuf::from) else { return Ok(()) };
    fs::write(folder.join(format!("rank-{rank}")), format!("{}\n", std::process::id()))?;
    let begun = Instant::now();
    while rank == 0 && !folder.join("go").exists() && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn main() -> Result<()> {
    let number = |at: usize| env::args().nth(at).and_then(|n| n.parse().ok()).unwrap_or(0);
    let empty = number(1);
    let calls = number(2);
    let more = number(3);
    let group = comity::init()?;
    if let Err(e) = meet_tracer(group.rank()) {
        eprintln!("the folder of the tracer cannot be used: {e}");
        std::process::exit(1);
    }
    let first = group.rank() == 0;
    (0..FIRST).try_for_each(|_| call(&group, false, 0))?;
    for _ in 0..if first { empty } else { 0 } {
        marker();
        marker();
    }
    (0..calls).try_for_each(|_| call(&group, first, if first { more } else { 0 }))?;
    println!("rank {} of {}: {calls} calls", group.rank(), group.size());
    Ok(())
}
