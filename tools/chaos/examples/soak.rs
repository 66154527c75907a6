//! All-reduces without end, to break by hand: kill, stop or trace a rank and read what the others say.
//!
//! ```text
//! comity launch -n 4 -- cargo run -q -p chaos --example soak -- 65536
//! ```
use comity::ReduceOp;
use std::time::{Duration, Instant};

fn main() -> comity::Result<()> {
    let count = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(65_536);
    let group = comity::init()?;
    println!("pid {}", std::process::id());
    let mut x = vec![1f32; count];
    let mut told = Instant::now();
    for i in 0u64.. {
        x.fill(1.0);
        group.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(x.iter().all(|&v| v == group.size() as f32), "wrong sum in call {i}");
        if group.rank() == 0 && told.elapsed() > Duration::from_secs(1) {
            println!("{i} calls");
            told = Instant::now();
        }
    }
    Ok(())
}
