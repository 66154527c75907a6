//! Await communication in an async program: a [`Request`](comity::Request) is a `Future`, in any runtime. Here it is tokio.
//!
//! ```text
//! comity launch -n 2 -- cargo run -q --example tokio
//! ```
//! The group's own thread makes the calls and wakes the task. So the runtime needs no thread that blocks, and one thread is enough.
use comity::{Group, ReduceOp};
use std::time::Duration;

/// The mean of `gradients` over all ranks. Other tasks run while the ranks talk.
pub(crate) async fn average(group: &Group, mut gradients: Vec<f32>) -> comity::Result<Vec<f32>> {
    group
        .spawn(move |g| {
            g.all_reduce(&mut gradients, ReduceOp::Avg)?;
            Ok(gradients)
        })
        .await
}

/// Something else to do meanwhile.
async fn tick() -> usize {
    let mut ticks = 0;
    while ticks < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        ticks += 1;
    }
    ticks
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> comity::Result<()> {
    let group = comity::init()?;
    let mine = vec![group.rank() as f32; 1000];
    let (mean, ticks) = tokio::join!(average(&group, mine), tick());
    println!("rank {} of {}: the mean is {}, after {ticks} ticks", group.rank(), group.size(), mean?[0]);
    // A limit of the runtime stops the wait only. The work goes on, since other ranks count on it.
    let pending = group.spawn(|g| g.barrier());
    match tokio::time::timeout(Duration::from_secs(60), pending).await {
        Ok(done) => done,
        Err(late) => {
            eprintln!("not all ranks came within a minute: {late}");
            Ok(())
        }
    }
}
