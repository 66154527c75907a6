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
    /// True if pairs of neighbours turn together, as GGUF has it, rather than one of each half.
    pub(crate) interleaved: bool,
}

/// Names of the tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) tokens: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) norm: &'static str,
    pub(crate) scores: &'static str,
    /// Within a layer: queries, keys, values and output.
    pub(crate) attention: [&'static str; 4],
    /// Within a layer: up, gate and down.
    pub(crate) product: [&'static str; 3],
    /// Within a layer: before the attention, and before the product.
    pub(crate) norms: [&'static str; 2],
}

impl Names {
    const fn new(
        [tokens, layers, norm, scores]: [&'static str; 4],
        attention: [&'static str; 4],
        product: [&'static str; 3],
        norms: [&'static str; 2],
    ) -> Self {
        Self { tokens, layers, norm, scores, attention, product, norms }
    }
}

pub(crate) const SAFETENSORS: Names = Names::new(
    ["model.embed_tokens", "model.layers", "model.norm", "lm_head"],
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
    ["mlp.up_proj", "mlp.gate_proj", "mlp.down_proj"],
    ["input_layernorm", "post_attention_layernorm"],
);

pub(crate) const GGUF: Names = Names::new(
    ["token_embd", "blk", "output_norm", "output"],
    ["attn_q", "attn_k", "attn_v", "attn_output"],
    ["ffn_up", "ffn_gate", "ffn_down"],
    ["attn_norm", "ffn_norm"],
);

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
        // Its name and its place changed in time.
        let rope = [&json["rope_parameters"], &json["rope_scaling"]].into_iter().find(|r| r.is_object());
        let of = |name: &str| rope.map(|r| &r[name]);
        let kind = of("rope_type").or_else(|| of("type")).and_then(|k| k.as_str()).unwrap_or("default");
        if kind != "default" {
            return Err(format!(
                "{}: positions of the type {kind:?} are not supported, only those of \"default\"",
                file.display()
            )
            .into());
        }
        let base = json["rope_theta"].as_f64().or_else(|| of("rope_theta")?.as_f64());
        Ok(Self {
            width,
            layers: number("num_hidden_layers")?,
            heads,
            keys: number("num_key_value_heads").unwrap_or(heads),
            head_width: number("head_dim").unwrap_or_else(|_| width / heads.max(1)),
            norm_eps: json["rms_norm_eps"].as_f64().unwrap_or(1e-5),
            rope_base: base.unwrap_or(10_000.0),
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
