//! A small Llama with random weights on disk, as safetensors or GGUF.

use super::config;
use candle_core::{
    DType, Device, Tensor,
    quantized::{
        GgmlDType, QTensor,
        gguf_file::{self, Value},
    },
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const VOCABULARY: usize = 50;
const WIDTH: usize = 32;
const HEAD: usize = 16;
const HEADS: usize = 6;
const INNER: usize = 96;
const LAYERS: usize = 3;

/// A folder that is removed in the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

pub(crate) fn folder(name: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("comity-llama-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    Folder(path)
}

fn noise(shape: (usize, usize), name: &str) -> Tensor {
    let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b));
    let values: Vec<f32> = (0..shape.0 * shape.1)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.2
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// All tensors by the names of one of the formats; `keys` heads of keys.
fn tensors(names: &config::Names, keys: usize, tied: bool) -> Vec<(String, Tensor)> {
    let ones = |name: String| (name, Tensor::ones(WIDTH, DType::F32, &Device::Cpu).unwrap());
    let matrix = |name: String, shape| {
        let x = noise(shape, &name);
        (name, x)
    };
    let mut all = vec![matrix(format!("{}.weight", names.tokens), (VOCABULARY, WIDTH))];
    all.push(ones(format!("{}.weight", names.norm)));
    if !tied {
        all.push(matrix(format!("{}.weight", names.scores), (VOCABULARY, WIDTH)));
    }
    for i in 0..LAYERS {
        let name = |part: &str| format!("{}.{i}.{part}.weight", names.layers);
        let q = HEADS * HEAD;
        let k = keys * HEAD;
        for (part, shape) in names.attention.iter().zip([(q, WIDTH), (k, WIDTH), (k, WIDTH), (WIDTH, q)]) {
            all.push(matrix(name(part), shape));
        }
        let [up, gate, down] = names.product;
        all.push(matrix(name(up), (INNER, WIDTH)));
        all.push(matrix(name(gate), (INNER, WIDTH)));
        all.push(matrix(name(down), (WIDTH, INNER)));
        all.extend(names.norms.map(|n| ones(name(n))));
    }
    all
}

pub(crate) fn safetensors(folder: &Path, keys: usize, tied: bool) {
    let config = format!(
        r#"{{"hidden_size": {WIDTH}, "num_hidden_layers": {LAYERS}, "num_attention_heads": {HEADS},
        "num_key_value_heads": {keys}, "head_dim": {HEAD}, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}}"#
    );
    fs::write(folder.join("config.json"), config).unwrap();
    let all = tensors(&config::SAFETENSORS, keys, tied).into_iter().collect();
    candle_core::safetensors::save(&all, folder.join("model.safetensors")).unwrap();
}

pub(crate) fn gguf(file: &Path, keys: usize) {
    let number = |n: usize| Value::U32(n as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(WIDTH)),
        ("llama.block_count", number(LAYERS)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(keys)),
        ("llama.attention.key_length", number(HEAD)),
        ("llama.context_length", number(64)),
    ];
    let quantize = |x: &Tensor| {
        let kind = if x.rank() == 2 { GgmlDType::Q8_0 } else { GgmlDType::F32 };
        QTensor::quantize(x, kind).unwrap()
    };
    let all: Vec<(String, QTensor)> =
        tensors(&config::GGUF, keys, false).iter().map(|(n, x)| (n.clone(), quantize(x))).collect();
    let tensors: Vec<(&str, &QTensor)> = all.iter().map(|(n, x)| (n.as_str(), x)).collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(n, v)| (*n, v)).collect();
    gguf_file::write(&mut fs::File::create(file).unwrap(), &metadata, &tensors).unwrap();
}
