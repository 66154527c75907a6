//! The example's BERT on ranks that are threads: a small random checkpoint, the same vectors on every number of ranks.

#[path = "../examples/minilm/model.rs"]
mod model;

use candle_core::{DType, Device, Tensor};
use comity::Group;
use comity_candle::Weights;
use model::Bert;
use std::{collections::HashMap, fs, path::Path, time::Duration};

pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const WIDTH: usize = 24;
const INNER: usize = 40;

fn write(folder: &Path) {
    let config = format!(
        r#"{{"hidden_size": {WIDTH}, "num_attention_heads": 6, "num_hidden_layers": 2, "layer_norm_eps": 1e-12}}"#
    );
    fs::write(folder.join("config.json"), config).unwrap();
    let mut all: HashMap<String, Tensor> = HashMap::new();
    let mut state = 7u64;
    let mut add = |name: String, shape: &[usize], around: f64| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.3 + around as f32
            })
            .collect();
        all.insert(name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
    };
    for (name, rows) in [("word", 30), ("position", 16), ("token_type", 2)] {
        add(format!("embeddings.{name}_embeddings.weight"), &[rows, WIDTH], 0.0);
    }
    let mut norms = vec!["embeddings.LayerNorm".to_string()];
    for i in 0..2 {
        let layer = format!("encoder.layer.{i}");
        let square =
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"];
        for (name, out, inputs) in square
            .map(|n| (n, WIDTH, WIDTH))
            .into_iter()
            .chain([("intermediate.dense", INNER, WIDTH), ("output.dense", WIDTH, INNER)])
        {
            add(format!("{layer}.{name}.weight"), &[out, inputs], 0.0);
            add(format!("{layer}.{name}.bias"), &[out], 0.0);
        }
        norms.extend(["attention.output.LayerNorm", "output.LayerNorm"].map(|n| format!("{layer}.{n}")));
    }
    for name in norms {
        add(format!("{name}.weight"), &[WIDTH], 1.0);
        add(format!("{name}.bias"), &[WIDTH], 0.0);
    }
    assert!(all.values().all(|x| x.dtype() == DType::F32));
    candle_core::safetensors::save(&all, folder.join("model.safetensors")).unwrap();
}

fn open(g: &Group, folder: &Path) -> comity_candle::Result<Weights> {
    Weights::open(g, [folder.join("model.safetensors")], DType::F32, &Device::Cpu)
}

#[test]
fn any_number_of_ranks_finds_the_same_vectors() {
    let folder = std::env::temp_dir().join(format!("comity-minilm-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    write(&folder);
    let texts: [&[u32]; 2] = [&[1, 7, 3, 29, 4], &[2, 2, 9]];
    let embed = |g: &Group| -> Result<Vec<Vec<f32>>> {
        let bert = Bert::load(&open(g, &folder)?, &folder)?;
        texts.iter().map(|ids| bert.embed(ids)).collect()
    };
    let want = embed(&Group::single()).unwrap();
    assert!((want[0].iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    for n in 2..=4 {
        scope::each(Group::local(n).unwrap(), |g| {
            let got = embed(&g.with_timeout(Duration::from_secs(20))).unwrap();
            for (a, b) in got.iter().flatten().zip(want.iter().flatten()) {
                assert!((a - b).abs() < 1e-5, "{n} ranks: {a} {b}");
            }
        });
    }
    fs::remove_dir_all(folder).unwrap();
}
