//! Two layers: 64 pixels, 128 hidden units, 10 digits.

use candle_core::{Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, loss, ops};
use comity::Group;
use comity_candle::{average_gradients, time_in_calls};
use demo::{Digits, LAYERS, Network, PIXELS, Random, Result};
use std::time::Duration;

pub(crate) struct Layers {
    layers: Vec<Layer>,
    in_calls: Duration,
}

struct Layer {
    weight: Var,
    bias: Var,
}

impl Layers {
    /// Random weights; the same `random` gives the same network.
    pub(crate) fn new(random: &mut Random) -> Result<Self> {
        let layers = LAYERS.map(|(inputs, outputs)| {
            let scale = (3.0 / inputs as f32).sqrt();
            let weight: Vec<f32> = (0..inputs * outputs).map(|_| random.uniform() * scale).collect();
            let weight = Var::from_vec(weight, (inputs, outputs), &Device::Cpu)?;
            let bias = Var::from_vec(vec![0f32; outputs], outputs, &Device::Cpu)?;
            Ok(Layer { weight, bias })
        });
        Ok(Self { layers: layers.into_iter().collect::<Result<_>>()?, in_calls: Duration::ZERO })
    }

    /// Scores of the ten digits for each row of `x`.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let x_in = if i == 0 { x } else { x.relu()? };
            x = x_in.matmul(&layer.weight)?.broadcast_add(&layer.bias)?;
        }
        Ok(x)
    }

    /// The variables that training changes, in an order that is the same on every rank.
    fn variables(&self) -> impl Iterator<Item = &Var> {
        self.layers.iter().flat_map(|l| [&l.weight, &l.bias])
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
        let (x, y) = batch(digits, samples)?;
        let mean = loss::nll(&ops::log_softmax(&self.forward(&x)?, 1)?, &y)?;
        let mut gradients = (&mean * f64::from(weight))?.backward()?;
        let before = time_in_calls();
        average_gradients(group, self.variables(), &mut gradients)?;
        self.in_calls += time_in_calls() - before;
        SGD::new(self.variables().cloned().collect(), rate)?.step(&gradients)?;
        Ok(mean.to_scalar()?)
    }

    fn classify(&self, digits: &Digits, samples: &[usize]) -> Result<Vec<u8>> {
        let best = self.forward(&batch(digits, samples)?.0)?.argmax(1)?.to_vec1::<u32>()?;
        Ok(best.into_iter().map(|digit| digit as u8).collect())
    }

    fn weights(&self) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for variable in self.variables() {
            all.extend(variable.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(all)
    }

    fn time_in_calls(&self) -> Duration {
        self.in_calls
    }
}

/// The images and labels of these samples.
fn batch(digits: &Digits, samples: &[usize]) -> candle_core::Result<(Tensor, Tensor)> {
    let (pixels, labels) = digits.batch(samples);
    let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
    Ok((Tensor::from_vec(pixels, (samples.len(), PIXELS), &Device::Cpu)?, Tensor::new(labels, &Device::Cpu)?))
}
