//! Training that goes on when ranks are killed, and takes in those that come: the program of the page "Elastic jobs".
//!
//! ```text
//! comity launch -n 4 --elastic 2 -- target/release/examples/survives
//! ```

use comity::{ErrorKind, Group, ReduceOp, ReformOptions, Result};
use std::{thread::sleep, time::Duration};

/// Stands for your model.
fn backward(weights: &[f32]) -> Vec<f32> {
    sleep(Duration::from_millis(50));
    weights.iter().map(|w| w - 1.0).collect()
}

/// A step. True if processes wait to be taken in: then nothing was done.
fn advance(group: &Group, weights: &mut [f32], step: &mut [i64; 1], synced: bool) -> Result<bool> {
    if !synced {
        // Some ranks may have finished the step that failed, and one that joined has nothing. All go on from the furthest.
        let mut furthest = *step;
        group.all_reduce(&mut furthest, ReduceOp::Max)?;
        let holds = *step == furthest;
        group.sync(&mut [(&mut *weights).into(), step.into()], holds)?;
        println!(
            "rank {} of {}, pid {}, at step {}",
            group.rank(),
            group.size(),
            std::process::id(),
            step[0]
        );
    }
    let mut gradients = backward(weights);
    // Ranks learn of a joiner at different moments: they agree by the way.
    gradients.push(group.joiners() as f32);
    group.all_reduce(&mut gradients, ReduceOp::Avg)?;
    if gradients.pop() > Some(0.0) {
        return Ok(true);
    }
    weights.iter_mut().zip(&gradients).for_each(|(w, g)| *w -= 0.1 * g);
    step[0] += 1;
    Ok(false)
}

fn main() -> Result<()> {
    // `comity launch` starts this program again in place of a rank that died, with COMITY_JOIN=1. Then `init` waits until it is taken in.
    let mut group = comity::init()?;
    let mut step = [if std::env::var_os("COMITY_JOIN").is_some() { -1 } else { 0 }];
    let mut weights = vec![0f32; 1000];
    let mut synced = false;
    while step[0] < 600 {
        synced = match advance(&group, &mut weights, &mut step, synced) {
            Ok(waiting) => !waiting,
            Err(e) if matches!(e.kind(), ErrorKind::PeerLost { .. }) => {
                eprintln!("{e}");
                false
            }
            Err(e) => return Err(e),
        };
        if !synced {
            group = group.reform(&ReformOptions::new())?.group;
        }
    }
    group.close()
}
