//! Sizes and names of a Llama, out of `config.json` beside safetensors, or out of a GGUF file.

use super::Result;
use comity_candle::Weights;
use std::path::Path;

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) keys: usize,
    pub(crate) head_width: usize,
    pub(crate) norm_eps: f64,
    pub(crate) rope_base: f64,
    pub(crate) context: usize,
    pub(crate) end: Option<u32>,
    pub(crate) names: Names,
    /// Whether pairs of neighbours turn together, as GGUF has it, or one of each half.
    pub(crate) interleaved: bool,
}

/// Names of the tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) tokens: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) attention: [&'static str; 4],
    pub(crate) up: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) down: &'static str,
    pub(crate) norms: [&'static str; 2],
    pub(crate) norm: &'static str,
    pub(crate) scores: &'static str,
}

pub(crate) const SAFETENSORS: Names = Names {
    tokens: "model.embed_tokens",
    layers: "model.layers",
    attention: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
    up: "mlp.up_proj",
    gate: "mlp.gate_proj",
    down: "mlp.down_proj",
    norms: ["input_layernorm", "post_attention_layernorm"],
    norm: "model.norm",
    scores: "lm_head",
};

pub(crate) const GGUF: Names = Names {
    tokens: "token_embd",
    layers: "blk",
    attention: ["attn_q", "attn_k", "attn_v", "attn_output"],
    up: "ffn_up",
    gate: "ffn_gate",
    down: "ffn_down",
    norms: ["attn_norm", "ffn_norm"],
    norm: "output_norm",
    scores: "output",
};

impl Config {
    pub(crate) fn read(model: &Path, weights: &Weights) -> Result<Self> {
        if weights.metadata("general.architecture").is_some() {
            return Self::from_gguf(weights);
        }
        let folder = if model.is_dir() { model } else { model.parent().unwrap_or_else(|| Path::new(".")) };
        let file = folder.join("config.json");
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let number = |name: &str| {
            let n = json[name].as_u64().map(|n| n as usize);
            n.ok_or_else(|| format!("{} has no number {name:?}", file.display()))
        };
        let width = number("hidden_size")?;
        let heads = number("num_attention_heads")?;
        Ok(Self {
            width,
            layers: number("num_hidden_layers")?,
            heads,
            keys: number("num_key_value_heads").unwrap_or(heads),
            head_width: number("head_dim").unwrap_or_else(|_| width / heads.max(1)),
            norm_eps: json["rms_norm_eps"].as_f64().unwrap_or(1e-5),
            rope_base: json["rope_theta"].as_f64().unwrap_or(10_000.0),
            context: number("max_position_embeddings").unwrap_or(2048),
            end: json["eos_token_id"].as_u64().map(|t| t as u32),
            names: SAFETENSORS,
            interleaved: false,
        })
    }

    fn from_gguf(weights: &Weights) -> Result<Self> {
        let find = |name: &str| weights.metadata(name);
        let number = |name: &str| -> Result<usize> {
            let value =
                find(&format!("llama.{name}")).ok_or_else(|| format!("the file has no llama.{name}"))?;
            Ok(value.to_u32()? as usize)
        };
        let float = |name: &str| find(&format!("llama.{name}")).and_then(|v| v.to_f32().ok()).map(f64::from);
        let width = number("embedding_length")?;
        let heads = number("attention.head_count")?;
        Ok(Self {
            width,
            layers: number("block_count")?,
            heads,
            keys: number("attention.head_count_kv").unwrap_or(heads),
            head_width: number("attention.key_length").unwrap_or_else(|_| width / heads.max(1)),
            norm_eps: float("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
            rope_base: float("rope.freq_base").unwrap_or(10_000.0),
            context: number("context_length").unwrap_or(2048),
            end: find("tokenizer.ggml.eos_token_id").and_then(|v| v.to_u32().ok()),
            names: GGUF,
            interleaved: true,
        })
    }
}
