//! `speed ROUNDS`: what an all_reduce of 8 bytes takes through Rust; `tests/c/speed.c` asks the same through C.

use comity::{Group, ReduceOp};
use std::{hint::black_box, time::Instant};

fn main() -> comity::Result<()> {
    let rounds: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let group = comity::init()?;
    let mut x = [1f32; 2];
    let mut best = f64::MAX;
    for _ in 0..7 {
        group.barrier()?;
        let begun = Instant::now();
        for _ in 0..rounds {
            group.all_reduce(black_box(&mut x), ReduceOp::Max)?;
        }
        best = best.min(begun.elapsed().as_secs_f64() / f64::from(rounds));
    }
    if group.rank() == 0 {
        println!("rust {:.1} ns", best * 1e9);
    }
    // Alone, so that what a call itself costs is not lost in what the other rank does.
    let single = Group::single();
    let mut best = f64::MAX;
    for _ in 0..7 {
        let begun = Instant::now();
        for _ in 0..rounds {
            single.all_reduce(black_box(&mut x), ReduceOp::Max)?;
        }
        best = best.min(begun.elapsed().as_secs_f64() / f64::from(rounds));
    }
    if group.rank() == 0 {
        println!("rust, alone {:.1} ns", best * 1e9);
    }
    Ok(())
}
