//! A BERT whose heads and hidden units are divided among the ranks.

use super::Result;
use candle_core::{Device, Module, Tensor};
use candle_nn::LayerNorm;
use comity_candle::{
    Heads, ShardedAttention, ShardedEmbedding, ShardedLinear, Sharding, ShardingType, Weights,
};
use std::path::Path;

struct Layer {
    attention: ShardedAttention,
    norm1: LayerNorm,
    up: ShardedLinear,
    down: ShardedLinear,
    norm2: LayerNorm,
}

pub(crate) struct Bert {
    words: ShardedEmbedding,
    places: Tensor,
    kind: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

fn norm(weights: &Weights, name: &str, eps: f64) -> Result<LayerNorm> {
    let of = |part: &str| weights.tensor(&format!("{name}.{part}"));
    Ok(LayerNorm::new(of("weight")?, of("bias")?, eps))
}

impl Layer {
    fn load(weights: &Weights, heads: &Heads, eps: f64) -> Result<Self> {
        let share = Sharding::balanced();
        let names =
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"];
        Ok(Self {
            attention: weights.attention(names, heads)?,
            norm1: norm(weights, "attention.output.LayerNorm", eps)?,
            up: weights.linear("intermediate.dense", ShardingType::AllToSharded, &share)?,
            down: weights.linear("output.dense", ShardingType::ShardedToAll, &share)?,
            norm2: norm(weights, "output.LayerNorm", eps)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (q, k, v) = self.attention.project(x)?;
        let x = self.norm1.forward(&(self.attention.attend(&q, &k, &v, None)? + x)?)?;
        let h = self.up.forward(&x)?.gelu_erf()?;
        Ok(self.norm2.forward(&(self.down.forward(&h)? + x)?)?)
    }
}

impl Bert {
    /// This rank's part of these weights, whose sizes are in the folder's `config.json`.
    pub(crate) fn load(weights: &Weights, folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let config: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let number = |name: &str| -> Result<usize> {
            let n = config[name].as_u64().map(|n| n as usize);
            Ok(n.ok_or_else(|| format!("{} has no number {name:?}", file.display()))?)
        };
        let width = number("hidden_size")?;
        let count = number("num_attention_heads")?;
        let eps = config["layer_norm_eps"].as_f64().unwrap_or(1e-12);
        let heads = Heads::new(count, count, width / count.max(1), weights.group().size())?;
        let embeddings = weights.pp("embeddings");
        let layers = weights.pp("encoder.layer");
        Ok(Self {
            words: embeddings.embedding("word_embeddings", &Sharding::balanced())?,
            places: embeddings.tensor("position_embeddings.weight")?,
            kind: embeddings.tensor("token_type_embeddings.weight")?.get(0)?,
            norm: norm(&embeddings, "LayerNorm", eps)?,
            layers: (0..number("num_hidden_layers")?)
                .map(|i| Layer::load(&layers.pp(i), &heads, eps))
                .collect::<Result<_>>()?,
        })
    }

    /// The text's meaning as a vector of length 1, out of its tokens.
    pub(crate) fn embed(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let x = self.words.forward(&ids)?.broadcast_add(&self.places.narrow(0, 0, ids.dim(1)?)?)?;
        let mut x = self.norm.forward(&x.broadcast_add(&self.kind)?)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        let mean = x.mean(1)?.squeeze(0)?;
        let length = mean.sqr()?.sum_all()?.sqrt()?;
        Ok(mean.broadcast_div(&length)?.to_vec1()?)
    }
}
