//! The example's Llama.

#[path = "../checkpoints/llama.rs"]
mod checkpoint;
#[path = "../../examples/llama/config.rs"]
mod config;
#[path = "../../examples/llama/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../examples/llama/model.rs"]
mod model;

use candle_core::Device;
use checkpoint::{folder, gguf, safetensors};
use comity::Group;
use generate::{Settings, generate};
use std::path::Path;

pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[test]
fn llama_says_the_same_as_one_rank() {
    let group = super::ranks();
    let device = comity_candle::device(&group).unwrap();
    assert!(device.is_cuda());
    let alone = Group::single();
    let prompts = [vec![1, 17, 3, 42, 8], vec![30, 2]];
    let tokens = |group: &Group, device: &Device, model: &Path, pipeline: usize| {
        let settings = Settings { tokens: 12, temperature: 1.0, pipeline, ..Settings::default() };
        generate(group, device, model, &prompts, &settings, |_, _| ()).unwrap().tokens
    };
    for keys in [2, 3] {
        let folder = folder(&format!("cuda-{keys}"));
        safetensors(&folder.0, keys, keys == 2);
        let want = tokens(&alone, &Device::Cpu, &folder.0, 1);
        assert!(want[0].len() == 12 && want[0].iter().any(|t| *t != want[0][0]), "{want:?}");
        assert_eq!(tokens(&alone, &device, &folder.0, 1), want, "one rank");
        assert_eq!(tokens(&group, &device, &folder.0, 1), want, "layers divided");
        assert_eq!(tokens(&group, &device, &folder.0, group.size()), want, "stages");
    }
    // Quantized products round in another way than on the CPU.
    let folder = folder("cuda-gguf");
    let file = folder.0.join("model.gguf");
    gguf(&file, 1);
    let want = tokens(&alone, &device, &file, 1);
    assert_eq!(tokens(&group, &device, &file, 1), want, "quantized");
    println!("rank {}: the tokens of one rank on {device:?}", group.rank());
}
