//! Two layers: 64 pixels, 128 hidden units, 10 digits.

use super::data::Random;
use candle_core::{Device, Result, Tensor, Var};
use std::collections::HashMap;

const LAYERS: [(usize, usize); 2] = [(64, 128), (128, 10)];

pub(crate) struct Network {
    layers: Vec<Layer>,
}

struct Layer {
    weight: Var,
    bias: Var,
}

impl Network {
    /// Random weights; the same `random` gives the same network.
    pub(crate) fn new(random: &mut Random) -> Result<Self> {
        let layers = LAYERS.map(|(inputs, outputs)| {
            let scale = (3.0 / inputs as f32).sqrt();
            let weight: Vec<f32> = (0..inputs * outputs).map(|_| random.uniform() * scale).collect();
            let weight = Var::from_vec(weight, (inputs, outputs), &Device::Cpu)?;
            let bias = Var::from_vec(vec![0f32; outputs], outputs, &Device::Cpu)?;
            Ok(Layer { weight, bias })
        });
        Ok(Self { layers: layers.into_iter().collect::<Result<_>>()? })
    }

    /// Scores of the ten digits for each row of `x`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let x_in = if i == 0 { x } else { x.relu()? };
            x = x_in.matmul(&layer.weight)?.broadcast_add(&layer.bias)?;
        }
        Ok(x)
    }

    /// What training changes, in an order that is the same on every rank.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &Var> {
        self.layers.iter().flat_map(|l| [&l.weight, &l.bias])
    }

    /// The weights with their names in a file.
    pub(crate) fn named(&self) -> HashMap<String, Tensor> {
        let layers = self.layers.iter().enumerate();
        layers
            .flat_map(|(i, l)| {
                [
                    (format!("{i}.weight"), l.weight.as_tensor().clone()),
                    (format!("{i}.bias"), l.bias.as_tensor().clone()),
                ]
            })
            .collect()
    }
}
