//! The examples of comity-candle against candle's own models, of the same weights, on 1 to 4 ranks.

#[path = "../../../crates/comity-candle/examples/minilm/model.rs"]
mod bert;
#[path = "../../../crates/comity-candle/examples/llama/config.rs"]
mod config;
#[path = "../../../crates/comity-candle/examples/llama/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../../crates/comity-candle/examples/llama/model.rs"]
mod model;

use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::{
    bert::{BertModel, Config as BertConfig},
    llama::{Cache, Llama, LlamaConfig},
};
use comity::Group;
use comity_candle::Weights;
use generate::{Settings, generate};
use std::{fs, path::PathBuf, thread, time::Duration};

pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// New tokens of each request.
const TOKENS: usize = 10;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("comity-others-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A checkpoint: this configuration, and the model that candle makes of it, with numbers that depend on the names alone.
    fn write(&self, config: &str, make: impl Fn(VarBuilder)) {
        let vars = VarMap::new();
        make(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu));
        for (name, v) in vars.data().lock().unwrap().iter() {
            if !name.to_lowercase().contains("norm") {
                v.set(&noise(v.dims(), name)).unwrap();
            }
        }
        fs::write(self.0.join("config.json"), config).unwrap();
        vars.save(self.0.join("model.safetensors")).unwrap();
    }

    fn read(&self) -> VarBuilder<'static> {
        let all = candle_core::safetensors::load(self.0.join("model.safetensors"), &Device::Cpu).unwrap();
        VarBuilder::from_tensors(all, DType::F32, &Device::Cpu)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn noise(shape: &[usize], name: &str) -> Tensor {
    let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b));
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.3
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// `f` on each of `n` ranks, the result of rank 0 and that all are alike.
fn on_ranks<T: Send + PartialEq>(n: usize, f: impl Fn(&Group) -> Result<T> + Sync) -> T {
    let f = &f;
    let mut all: Vec<T> = thread::scope(|s| {
        let start = |g: Group| s.spawn(move || f(&g.with_timeout(Duration::from_secs(60))).unwrap());
        let ranks: Vec<_> = Group::local(n).unwrap().into_iter().map(start).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let first = all.remove(0);
    assert!(all.iter().all(|a| *a == first), "ranks differ");
    first
}

#[test]
fn a_llama_says_what_candles_says() {
    let config = r#"{"vocab_size": 53, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 20000.0,
        "max_position_embeddings": 64}"#;
    let shape = serde_json::from_str::<LlamaConfig>(config).unwrap().into_config(false);
    let folder = Folder::new("llama");
    folder.write(config, |vb| drop(Llama::load(vb, &shape).unwrap()));
    let whole = Llama::load(folder.read(), &shape).unwrap();
    let prompts = [vec![1u32, 17, 3, 42, 8], vec![30, 2]];
    let want: Vec<Vec<u32>> = prompts
        .iter()
        .map(|prompt| {
            let mut cache = Cache::new(true, DType::F32, &shape, &Device::Cpu).unwrap();
            let mut ids = prompt.clone();
            let mut at = 0;
            for _ in 0..TOKENS {
                let new = Tensor::new(&ids[at..], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
                let scores = whole.forward(&new, at, &mut cache).unwrap();
                at = ids.len();
                ids.push(scores.i(0).unwrap().argmax(D::Minus1).unwrap().to_scalar().unwrap());
            }
            ids.split_off(prompt.len())
        })
        .collect();
    for (n, pipeline) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2)] {
        let settings = Settings { tokens: TOKENS, pipeline, ..Settings::default() };
        let said =
            on_ranks(n, |g| Ok(generate(g, &Device::Cpu, &folder.0, &prompts, &settings, |_, _| ())?.tokens));
        assert_eq!(said, want, "{n} ranks, {pipeline} stages");
    }
}

#[test]
fn a_bert_finds_what_candles_finds() {
    let config = r#"{"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
        "intermediate_size": 40, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "max_position_embeddings": 16,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}"#;
    let shape: BertConfig = serde_json::from_str(config).unwrap();
    let folder = Folder::new("bert");
    folder.write(config, |vb| drop(BertModel::load(vb, &shape).unwrap()));
    let whole = BertModel::load(folder.read(), &shape).unwrap();
    let ids = [1u32, 7, 3, 29, 4];
    let rows = Tensor::new(&ids, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let states = whole.forward(&rows, &rows.zeros_like().unwrap(), None).unwrap();
    let mean = states.mean(1).unwrap().squeeze(0).unwrap();
    let length = mean.sqr().unwrap().sum_all().unwrap().sqrt().unwrap();
    let want: Vec<f32> = mean.broadcast_div(&length).unwrap().to_vec1().unwrap();
    for n in 1..=4 {
        let found = on_ranks(n, |g| {
            let weights = Weights::open(g, [&folder.0], DType::F32, &Device::Cpu)?;
            bert::Bert::load(&weights, &folder.0)?.embed(&ids)
        });
        let far = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(found.len() == 24 && far < 1e-5, "{n} ranks: {far}");
    }
}
