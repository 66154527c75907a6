//! Two layers with their gradients, and no framework.

use super::{Digits, LAYERS, Network, Random, Result};
use comity::{Group, ReduceOp};
use std::time::{Duration, Instant};

/// Weights of `x * weight + bias`, a row of outputs for each input.
#[derive(Clone, Debug)]
struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// The network of [`LAYERS`], with a ReLU between the two.
#[derive(Clone, Debug)]
pub struct Layers {
    hidden: Layer,
    output: Layer,
    in_calls: Duration,
}

impl Layers {
    /// Random weights; the same `random` gives the same network.
    ///
    /// # Errors
    /// None; a framework may have some.
    pub fn new(random: &mut Random) -> Result<Self> {
        let [hidden, output] = LAYERS.map(|(inputs, outputs)| {
            let scale = (3.0 / inputs as f32).sqrt();
            let weight = (0..inputs * outputs).map(|_| random.uniform() * scale).collect();
            Layer { weight, bias: vec![0.0; outputs] }
        });
        Ok(Self { hidden, output, in_calls: Duration::ZERO })
    }

    /// The hidden units, and the scores of the ten digits, for each row of `x`.
    fn forward(&self, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut hidden = self.hidden.forward(x);
        hidden.iter_mut().for_each(|h| *h = h.max(0.0));
        let scores = self.output.forward(&hidden);
        (hidden, scores)
    }
}

impl Network for Layers {
    fn step(
        &mut self,
        group: &Group,
        digits: &Digits,
        samples: &[usize],
        weight: f32,
        rate: f64,
    ) -> Result<f32> {
        let (x, labels) = digits.batch(samples);
        let (hidden, mut scores) = self.forward(&x);
        let loss = loss_and_gradient(&mut scores, &labels, weight);
        let (output, mut back) = self.output.gradient(&hidden, &scores);
        back.iter_mut().zip(&hidden).filter(|(_, h)| **h == 0.0).for_each(|(b, _)| *b = 0.0);
        let (first, _) = self.hidden.gradient(&x, &back);

        // One call for all gradients: of four, each would wait for the slowest rank.
        let mut gradients = [first.weight, first.bias, output.weight, output.bias].concat();
        let start = Instant::now();
        group.all_reduce(&mut gradients, ReduceOp::Avg)?;
        self.in_calls += start.elapsed();
        let weights = [&mut self.hidden, &mut self.output].into_iter().flat_map(Layer::values_mut);
        weights.zip(gradients).for_each(|(w, g)| *w -= rate as f32 * g);
        Ok(loss)
    }

    fn classify(&self, digits: &Digits, samples: &[usize]) -> Result<Vec<u8>> {
        let (_, scores) = self.forward(&digits.batch(samples).0);
        let best = |row: &[f32]| (0u8..).zip(row).max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
        Ok(scores.chunks_exact(LAYERS[1].1).map(best).collect())
    }

    fn weights(&self) -> Result<Vec<f32>> {
        let Self { hidden, output, .. } = self;
        Ok([&hidden.weight[..], &hidden.bias, &output.weight, &output.bias].concat())
    }

    fn time_in_calls(&self) -> Duration {
        self.in_calls
    }
}

impl Layer {
    fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        for row in x.chunks_exact(self.inputs()) {
            let mut sum = self.bias.clone();
            for (x, weights) in row.iter().zip(self.weight.chunks_exact(self.bias.len())) {
                add_scaled(&mut sum, *x, weights);
            }
            out.extend(sum);
        }
        out
    }

    /// The layer's gradient, and its input's, from its output's.
    fn gradient(&self, x: &[f32], back: &[f32]) -> (Self, Vec<f32>) {
        let outputs = self.bias.len();
        let mut own = Self { weight: vec![0.0; self.weight.len()], bias: vec![0.0; outputs] };
        let mut to_input = Vec::with_capacity(x.len());
        for (row, back) in x.chunks_exact(self.inputs()).zip(back.chunks_exact(outputs)) {
            add_scaled(&mut own.bias, 1.0, back);
            for (x, weights) in row.iter().zip(own.weight.chunks_exact_mut(outputs)) {
                add_scaled(weights, *x, back);
            }
            to_input.extend(
                self.weight
                    .chunks_exact(outputs)
                    .map(|weights| weights.iter().zip(back).map(|(w, b)| w * b).sum::<f32>()),
            );
        }
        (own, to_input)
    }

    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        self.weight.iter_mut().chain(&mut self.bias)
    }
}

fn add_scaled(to: &mut [f32], scale: f32, from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += scale * from);
}

/// Mean of -log(softmax(scores)[label]); in place of the scores its gradient, times `weight`.
fn loss_and_gradient(scores: &mut [f32], labels: &[u8], weight: f32) -> f32 {
    let n = labels.len() as f32;
    let mut loss = 0.0;
    for (row, label) in scores.chunks_exact_mut(LAYERS[1].1).zip(labels) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|s| (s - largest).exp()).sum();
        for (digit, s) in (0..).zip(row) {
            let log = *s - largest - sum.ln();
            let truth = if digit == *label { 1.0 } else { 0.0 };
            loss -= truth * log;
            *s = (log.exp() - truth) * weight / n;
        }
    }
    loss / n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// A small change of a weight changes the loss as its gradient says.
    #[test]
    fn gradients_are_those_of_the_loss() {
        let digits = Digits::read(&Options::default().data).unwrap();
        let (x, labels) = digits.batch(&[0, 5, 77]);
        let network = Layers::new(&mut Random::new(3)).unwrap();
        let loss = |network: &Layers| loss_and_gradient(&mut network.forward(&x).1, &labels, 1.0);
        let group = Group::local(1).unwrap().remove(0);
        let mut stepped = network.clone();
        stepped.step(&group, &digits, &[0, 5, 77], 1.0, 1.0).unwrap();
        let before = network.weights().unwrap();
        let after = stepped.weights().unwrap();
        // A weight of a pixel in the middle, a bias, a weight of the second layer, its last bias.
        for at in [28 * 128 + 5, 64 * 128 + 9, 64 * 128 + 128 + 77, before.len() - 1] {
            let moved = |by: f32| {
                let mut moved = network.clone();
                {
                    let layers = [&mut moved.hidden, &mut moved.output];
                    *layers.into_iter().flat_map(Layer::values_mut).nth(at).unwrap() += by;
                }
                loss(&moved)
            };
            let slope = (moved(0.01) - moved(-0.01)) / 0.02;
            let gradient = before[at] - after[at];
            assert!((slope - gradient).abs() < 2e-3, "weight {at}: {slope} for {gradient}");
        }
    }
}
