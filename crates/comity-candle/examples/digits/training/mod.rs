//! The training itself.

mod data;
mod network;

pub(crate) use data::Digits;
pub(crate) use network::Network;

use candle_core::{Tensor, Var};
use candle_nn::{Optimizer, SGD, loss, ops};
use comity::Group;
use comity_candle::average_gradients;
use data::Random;
use std::{collections::HashMap, error::Error, time::Instant};

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The same on every rank.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) epochs: usize,
    /// Samples a step, over all ranks.
    pub(crate) batch: usize,
    pub(crate) rate: f64,
    pub(crate) seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 30, batch: 128, rate: 0.4, seed: 1 }
    }
}

/// What came out, the same on every rank but for the time.
pub(crate) struct Trained {
    pub(crate) network: Network,
    pub(crate) accuracy: f32,
    pub(crate) samples_per_s: f64,
}

/// Train on this rank's share; `say` gets a line about each epoch on rank 0.
pub(crate) fn train(
    group: &Group,
    digits: &Digits,
    settings: &Settings,
    say: impl Fn(String),
) -> Result<Trained> {
    let (rank, ranks, batch) = (group.rank(), group.size(), settings.batch);
    let samples = digits.train.len();
    if batch < ranks || batch > samples {
        return Err(format!(
            "--batch {batch} must lie between the number of ranks, {ranks}, and of samples, {samples}"
        )
        .into());
    }
    // The same seed on every rank gives all of them the same network and the same order of samples.
    let mut random = Random::new(settings.seed);
    let network = Network::new(&mut random)?;
    let variables: Vec<&Var> = network.variables().collect();
    let mut sgd = SGD::new(variables.iter().map(|&v| v.clone()).collect(), settings.rate)?;
    let mut order: Vec<usize> = digits.train.clone();
    let (start, mut samples_seen) = (Instant::now(), 0);

    for epoch in 1..=settings.epochs {
        random.shuffle(&mut order);
        let mut total = 0.0;
        for chosen in order.chunks_exact(batch) {
            let mine: Vec<usize> = chosen.iter().copied().skip(rank).step_by(ranks).collect();
            let (x, y) = digits.batch(&mine)?;
            let mean = loss(&network, &x, &y)?;
            // Shares may differ by one sample: weigh each by its size, so that the average over ranks is the batch's.
            let weight = (mine.len() * ranks) as f64 / batch as f64;
            let mut gradients = (&mean * weight)?.backward()?;
            average_gradients(group, variables.iter().copied(), &mut gradients)?;
            sgd.step(&gradients)?;
            total += f64::from(mean.to_scalar::<f32>()?) * mine.len() as f64;
            samples_seen += batch;
        }
        let mut sum = [total];
        group.all_reduce(&mut sum, comity::ReduceOp::Sum)?;
        if rank == 0 && (epoch % 5 == 0 || epoch == 1 || epoch == settings.epochs) {
            let mean = sum[0] / (samples / batch * batch) as f64;
            let accuracy = accuracy(&network, digits)?;
            let rate = samples_seen as f64 / start.elapsed().as_secs_f64();
            say(format!("epoch {epoch:3}  loss {mean:.4}  accuracy {accuracy:.4}  {rate:.0} samples/s"));
        }
    }
    let samples_per_s = samples_seen as f64 / start.elapsed().as_secs_f64();
    Ok(Trained { accuracy: accuracy(&network, digits)?, network, samples_per_s })
}

/// Mean loss of some samples.
fn loss(network: &Network, x: &Tensor, y: &Tensor) -> candle_core::Result<Tensor> {
    loss::nll(&ops::log_softmax(&network.forward(x)?, 1)?, y)
}

/// The part of the held-out samples that the network knows.
fn accuracy(network: &Network, digits: &Digits) -> candle_core::Result<f32> {
    let (x, y) = digits.batch(&digits.held_out)?;
    let right = network.forward(&x)?.argmax(1)?.eq(&y)?;
    right.to_dtype(candle_core::DType::F32)?.mean_all()?.to_scalar()
}

/// The largest difference between weights of the same names.
pub(crate) fn largest_difference(a: &HashMap<String, Tensor>, b: &HashMap<String, Tensor>) -> Result<f32> {
    let mut largest = 0f32;
    for (name, b) in b {
        let a = a.get(name).ok_or_else(|| format!("holds no {name}"))?;
        let d: f32 = (a - b)?.abs()?.max_all()?.to_scalar()?;
        // `max` would drop a NaN.
        largest = if d.is_nan() { f32::INFINITY } else { largest.max(d) };
    }
    Ok(largest)
}
