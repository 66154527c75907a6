//! The loop of training, the same for every network.

use super::{Digits, Network, Random, Result, Settings};
use comity::{Group, ReduceOp};
use std::{thread, time::Instant};

/// A trained network, the same on every rank but for the time.
#[derive(Debug)]
pub struct Trained<N> {
    /// Network as the last step left it.
    pub network: N,
    /// Part of the held-out samples that it knows.
    pub accuracy: f32,
    /// Samples that all ranks together took in a second.
    pub samples_per_s: f64,
    /// Mean loss of each epoch.
    pub losses: Vec<f64>,
    /// Part of the time that this rank spent in calls to other ranks.
    pub share_in_calls: f64,
}

/// Train on this rank's share; `say` gets a line about some of the epochs on rank 0.
///
/// # Errors
/// The settings do not fit the group, or the group failed.
pub fn train<N: Network>(
    group: &Group,
    digits: &Digits,
    settings: &Settings,
    new: impl FnOnce(&mut Random) -> Result<N>,
    say: impl Fn(String),
) -> Result<Trained<N>> {
    let rank = group.rank();
    let ranks = group.size();
    let batch = settings.batch;
    let samples = digits.train.len();
    if batch < ranks || batch > samples {
        return Err(format!(
            "--batch {batch} must lie between the number of ranks, {ranks}, and of samples, {samples}"
        )
        .into());
    }
    // The same seed on every rank gives all of them the same network and the same order of samples.
    let mut random = Random::new(settings.seed);
    let mut network = new(&mut random)?;
    let mut order: Vec<usize> = digits.train.clone();
    let start = Instant::now();
    let mut samples_seen = 0;
    let mut losses = Vec::new();

    for epoch in 1..=settings.epochs {
        random.shuffle(&mut order);
        let mut total = 0.0;
        for chosen in order.chunks_exact(batch) {
            let mine: Vec<usize> = chosen.iter().copied().skip(rank).step_by(ranks).collect();
            // Shares may differ by one sample: weigh each by its size, so that the average over ranks is the batch's.
            let weight = (mine.len() * ranks) as f32 / batch as f32;
            let loss = network.step(group, digits, &mine, weight, settings.rate)?;
            total += f64::from(loss) * mine.len() as f64;
            samples_seen += batch;
        }
        let mut sum = [total];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        let mean = sum[0] / (samples / batch * batch) as f64;
        losses.push(mean);
        if rank == 0 && (epoch % 5 == 0 || epoch == 1 || epoch == settings.epochs) {
            let accuracy = accuracy(&network, digits)?;
            let rate = samples_seen as f64 / start.elapsed().as_secs_f64();
            say(format!("epoch {epoch:3}  loss {mean:.4}  accuracy {accuracy:.4}  {rate:.0} samples/s"));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Trained {
        accuracy: accuracy(&network, digits)?,
        share_in_calls: network.time_in_calls().as_secs_f64() / seconds,
        network,
        samples_per_s: samples_seen as f64 / seconds,
        losses,
    })
}

/// The part of the held-out samples that the network knows.
fn accuracy(network: &impl Network, digits: &Digits) -> Result<f32> {
    let seen = network.classify(digits, &digits.held_out)?;
    let right = seen.iter().zip(&digits.held_out).filter(|(seen, at)| **seen == digits.label(**at)).count();
    Ok(right as f32 / digits.held_out.len() as f32)
}

/// The largest difference between two networks' weights; infinite where one has others or a NaN.
#[must_use]
pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(b).fold(0.0, |largest, (a, b)| {
        let d = (a - b).abs();
        // `max` would drop a NaN.
        if d.is_nan() { f32::INFINITY } else { largest.max(d) }
    })
}

/// Train on ranks that are threads of this process; the result of each.
///
/// # Errors
/// A rank failed.
///
/// # Panics
/// A rank did.
pub fn train_on_threads<N: Network + Send>(
    ranks: usize,
    digits: &Digits,
    settings: &Settings,
    new: impl Fn(&mut Random) -> Result<N> + Sync,
) -> Result<Vec<Trained<N>>> {
    let groups = Group::local(ranks)?;
    thread::scope(|s| {
        let new = &new;
        let start = |g: Group| s.spawn(move || train(&g, digits, settings, new, |_| ()));
        let ranks: Vec<_> = groups.into_iter().map(start).collect();
        ranks.into_iter().map(|r| r.join().expect("a rank panicked")).collect()
    })
}
